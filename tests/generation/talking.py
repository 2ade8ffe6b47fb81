"""Random specs that go from tokens to tokens, whatever kinds are registered."""

import functools

from anyformer.specs import ModelSpec
from tests.contract.draw import draw


def talks(spec: ModelSpec) -> bool:
    """Whether a spec can continue a text."""
    return spec.topology != "encoder" and spec.embed.reads == "input_ids" and spec.head.predicts_tokens


@functools.cache
def talking(seeds: range, topology: str | None = None) -> list[int]:
    """The seeds among these whose spec does, of this topology or of any."""
    return [seed for seed in seeds if talks(spec := draw(seed)) and topology in (None, spec.topology)]
