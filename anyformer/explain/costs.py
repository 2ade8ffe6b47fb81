"""What a spec costs, as numbers, on which machine: parameters, FLOPs, cache, traffic, and what sets the pace."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from anyformer.errors import InputError, nearest
from anyformer.specs.count import PHASES, Count, Phase
from anyformer.specs.embed_head import PatchEmbed
from anyformer.specs.model import ModelSpec


@dataclass(frozen=True, kw_only=True)
class Machine:
    """An accelerator in bf16."""

    name: str
    flops: float
    """FLOP/s of dense matrix products."""
    bandwidth: float
    """Bytes/s to and from its memory."""
    source: str

    @property
    def balance(self) -> float:
        """FLOP/byte at which arithmetic and memory take the same time."""
        return self.flops / self.bandwidth

    def bound(self, intensity: float) -> str:
        """What sets the pace of work that does so many FLOPs for each byte."""
        return "compute-bound" if intensity >= self.balance else "memory-bound"


MACHINES = {
    machine.name: machine
    for machine in (
        Machine(name="h200", flops=775e12, bandwidth=4.1e12, source="measured on large products and copies"),
        Machine(name="h100", flops=989e12, bandwidth=3.35e12, source="data sheet, SXM"),
        Machine(name="a100", flops=312e12, bandwidth=2.04e12, source="data sheet, 80 GB SXM"),
    )
}


def machine(name: str) -> Machine:
    """The machine of a name."""
    if name not in MACHINES:
        raise InputError(f"machine {name!r} is unknown{nearest(name, MACHINES)}")
    return MACHINES[name]


def peak_of(device: str, dtype: str) -> float | None:
    """FLOP/s at best of a device by what its driver calls it; None where we don't know. The table is of bfloat16."""
    if dtype != "bfloat16":
        return None
    words = device.lower().replace("-", " ").split()
    return next((found.flops for name, found in MACHINES.items() if name in words), None)


CONTEXTS = (1024, 8192, 32768)
STORED = ("float32", "bfloat16", "int8")
DTYPE = "bfloat16"
"""Of caches and traffic."""


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
    positions = [layer.position for stack in spec.stacks for layer in stack.layers]
    limits = [each.limit(spec.context) for each in (*positions, spec.embed.position) if each is not None]
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
    spec, spent, phases = count.spec, count.flops(context), dict[Phase, Traffic]()
    for phase in PHASES if decodes(spec) else PHASES[:2]:
        done, moved = count.phase_flops(phase, context), count.bytes_moved(phase, context, DTYPE)
        intensity = done / moved
        phases[phase] = Traffic(flops=done, bytes=moved, intensity=intensity, bound=machine.bound(intensity))
    return Cost(
        context=context,
        flops_per_token=spent.total / context,
        by_part={name: n / context for name, n in asdict(spent).items() if n},
        kv_bytes=count.kv_bytes(context, DTYPE) if decodes(spec) else None,
        kv_bytes_by_part=count.kv_bytes_by_part(context, DTYPE) if decodes(spec) else {},
        phases=phases,
    )
