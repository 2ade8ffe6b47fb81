"""What a spec costs, as numbers: parameters by part, and for a context FLOPs, cache, traffic and what sets the pace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from anyformer.errors import InputError
from anyformer.explain.hardware import Machine
from anyformer.specs.count import PHASES, Count, Phase, dtype_bytes
from anyformer.specs.embed_head import PatchEmbed
from anyformer.specs.model import ModelSpec

CONTEXTS = (1024, 8192, 32768)
STORED = ("float32", "bfloat16", "int8")
DTYPE = "bfloat16"
"""Of caches and traffic."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """What does not depend on the length of a text."""

    params: int
    by_part: Mapping[str, int]
    weights_bytes: Mapping[str, int]
    """dtype -> bytes of all weights."""


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """One phase of work: a training step, reading a text, or one more token."""

    flops: int
    bytes: int
    intensity: float
    bound: str


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a document of `context` tokens costs, in one row."""

    context: int
    flops_per_token: float
    by_part: Mapping[str, float]
    """Forward FLOPs per token, by what spends them."""
    kv_bytes: int | None
    """None if there is nothing to cache."""
    kv_bytes_by_part: Mapping[str, int]
    """The cache of layers with the same pattern, and of cross-attention."""
    phases: Mapping[Phase, Traffic]

    @property
    def kv_bytes_per_token(self) -> float | None:
        """Of a cache that holds the whole context."""
        return None if self.kv_bytes is None else self.kv_bytes / self.context


def sizes(count: Count) -> Sizes:
    """Parameters and the bytes that they take."""
    parts = dict(sorted(count.params_by_part.items(), key=lambda part: -part[1]))
    stored = {dtype: count.params * dtype_bytes(dtype) for dtype in STORED}
    return Sizes(params=count.params, by_part=parts, weights_bytes=stored)


def decodes(spec: ModelSpec) -> bool:
    """Whether the model reads one token after the other, with a cache."""
    return spec.topology != "encoder" and not spec.head.pools


def usual_contexts(spec: ModelSpec) -> tuple[int, ...]:
    """A few lengths up to the spec's own; of an image its own."""
    if isinstance(spec.embed, PatchEmbed):
        return (spec.embed.tokens(),)
    longest = min(spec.context, _positions(spec) or spec.context)
    return (*(n for n in CONTEXTS if n < longest), longest)


def _positions(spec: ModelSpec) -> int | None:
    """How many positions all stacks have; None if there is no end of them."""
    limits = [layer.position.limit(spec.context) for stack in spec.stacks for layer in stack.layers]
    return min((n for n in limits if n is not None), default=None)


def check_contexts(spec: ModelSpec, contexts: Sequence[int]) -> tuple[int, ...]:
    """The contexts in order, if the model can read texts of these lengths."""
    if isinstance(spec.embed, PatchEmbed) and set(contexts) != {spec.embed.tokens()}:
        raise InputError(f"an image of this model is always {spec.embed.tokens()} tokens; leave --context out")
    limit = _positions(spec)
    if limit is not None and max(contexts) > limit:
        raise InputError(f"a context of {max(contexts):,} is more than the {limit:,} positions of this model")
    return tuple(sorted(set(contexts)))


def cost(count: Count, context: int, machine: Machine) -> Cost:
    """The cost of one document of `context` tokens (of an encoder-decoder: with as many source tokens)."""
    spec = count.spec
    spent = count.flops(context)
    return Cost(
        context=context,
        flops_per_token=spent.total / context,
        by_part={name: n / context for name, n in asdict(spent).items() if n},
        kv_bytes=count.kv_bytes(context, DTYPE) if decodes(spec) else None,
        kv_bytes_by_part=count.kv_bytes_by_part(context, DTYPE) if decodes(spec) else {},
        phases={
            phase: _traffic(count, phase, context, machine) for phase in PHASES if phase != "decode" or decodes(spec)
        },
    )


def _traffic(count: Count, phase: Phase, context: int, machine: Machine) -> Traffic:
    done, moved = count.phase_flops(phase, context), count.bytes_moved(phase, context, DTYPE)
    return Traffic(flops=done, bytes=moved, intensity=done / moved, bound=machine.bound(done / moved))
