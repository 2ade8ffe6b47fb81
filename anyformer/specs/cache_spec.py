"""Cache specs: what a cache keeps of a row for each layer of a decoder, from the spec alone."""

from __future__ import annotations

import math
from dataclasses import dataclass

from anyformer.specs.axes import Dims
from anyformer.specs.cache_policy import Keep
from anyformer.specs.layer import Attention, mixer_of
from anyformer.specs.model import ModelSpec
from anyformer.specs.stacks import Stack, pattern_of


@dataclass(frozen=True, kw_only=True)
class LayerCacheSpec:
    """What one layer keeps: tensors of some tokens, a state of the whole row, or both."""

    streams: tuple[tuple[int, int], ...] = ()
    """(heads, dim) of each tensor that is kept of a token."""
    keep: Keep = Keep()
    """Which tokens."""
    state: tuple[tuple[int, ...], ...] = ()
    """Shapes of what is kept of a row, however long it is."""

    @property
    def per_token(self) -> int:
        """Numbers kept of one token."""
        return sum(heads * dim for heads, dim in self.streams)

    @property
    def per_row(self) -> int:
        """Numbers of a row's state."""
        return sum(math.prod(shape) for shape in self.state)

    def tokens(self, length: int, chunk: int) -> int:
        """For how many tokens there are slots, in rows of up to `length` that are fed `chunk` at once."""
        return self.keep.fed(chunk).room(length)


def rooms(spec: ModelSpec, stack: Stack) -> tuple[LayerCacheSpec, ...]:
    """What the self-attention of each layer keeps."""
    found: list[LayerCacheSpec] = []
    for layer in stack.layers:
        dims, mixer = spec.dims(layer, stack), layer.attention.mixer
        if mixer.stateful:
            found.append(LayerCacheSpec(state=mixer.state(dims)))
            continue
        # Global queries with projections of their own meet keys and values of their own.
        streams = mixer.streams(dims) * (2 if layer.attention.global_projections else 1)
        found.append(LayerCacheSpec(streams=streams, keep=pattern_of(stack, layer).keeps()))
    return tuple(found)


def cross_streams(attention: Attention, dims: Dims) -> tuple[tuple[int, int], ...]:
    """(heads, dim) of each tensor that cross-attention keeps of a source token."""
    return mixer_of(attention, cross=True).streams(dims)
