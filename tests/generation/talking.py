"""Random specs that go from tokens to tokens, whatever kinds are registered."""

import functools

from anyformer.specs import ModelSpec
from tests.contract.contracts import prefix_of
from tests.contract.draw import draw


def talks(spec: ModelSpec) -> bool:
    """Whether a spec can continue a text."""
    if spec.topology == "encoder" or spec.embed.reads != "input_ids" or not spec.head.predicts_tokens:
        return False
    # A decoder that begins with its start token can't be fed the whole of a prefix at once.
    return spec.topology == "decoder" or prefix_of(spec) <= 1


@functools.cache
def talking(seeds: range, topology: str | None = None) -> list[int]:
    """The seeds among these whose spec does, of this topology or of any."""
    return [seed for seed in seeds if talks(spec := draw(seed)) and topology in (None, spec.topology)]
