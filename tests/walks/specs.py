"""The specs that are walked over: random ones of every topology, and published ones in small."""

import functools

import anyformer as af
from anyformer.specs import ModelSpec
from anyformer.verify.shrink import small
from tests.contract.draw import draw
from tests.generation.talking import talks

PRESETS = (
    "llama-3.2-1b", "gpt2-small", "t5-small", "reformer-enwik8", "bert-base", "gemma-2-2b", "mistral-7b", "led-base",
    "qwen3-0.6b", "pythia-14m",
)  # fmt: skip
"""These have a public class, so that they can be exported; random specs hardly ever do."""
EVERY = 6
"""Every so many-th spec is a published one."""


def is_published(number: int) -> bool:
    """Whether the spec of this number is a published one in small."""
    return number % EVERY == EVERY - 1


@functools.cache
def spec_of(number: int) -> ModelSpec:
    """The spec of this number; any two below 60 differ."""
    if is_published(number):
        return small(af.spec(PRESETS[number // EVERY % len(PRESETS)]))
    spec = draw(number)
    # Two in six are sure to go from tokens to tokens: most of what there is to do is to speak.
    seed = number
    while number % EVERY in (0, 2) and not talks(spec):
        seed += 101
        spec = draw(seed)
    return spec
