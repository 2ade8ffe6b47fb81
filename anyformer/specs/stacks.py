"""Stacks: the layers of an encoder or a decoder, each with its own choices, from the spec's order and overrides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from anyformer.errors import nearest
from anyformer.specs.cache_policy import LayerCacheSpec
from anyformer.specs.codec import MISSING, Problems, Table, join, read, write
from anyformer.specs.layer import Layer, NormPlacement
from anyformer.specs.overrides import NUMBER, Layers, Overrides, merge
from anyformer.specs.patterns import Pattern

if TYPE_CHECKING:
    from anyformer.specs.model import ModelSpec

LAYER_NODES = ("attention", "position", "ffn", "norm", "block")
STACK_NODES = ("depth", *LAYER_NODES, "layers")
DEEPEST = 10_000
"""Every layer is held in memory, so a slip of the hand must not ask for a billion."""
STACK_ONLY = ("final", "embedding")
"""Fields of [norm] that belong to the whole stack."""


@dataclass(frozen=True, kw_only=True)
class Stack:
    """One resolved stack: its layers in order, and what all of them share."""

    name: str
    layers: tuple[Layer, ...]
    causal: bool
    """Whether an unset pattern means causal."""
    cross: bool
    """Whether each block also attends to the encoder."""
    norm: NormPlacement
    """The norm after the embeddings and after the last block, if it has them."""
    shared: tuple[int, ...] = ()
    """The number of the block that each layer runs, if some layers share one; empty: each has its own."""

    @property
    def depth(self) -> int:
        """Number of layers."""
        return len(self.layers)

    @property
    def uses(self) -> tuple[int, ...]:
        """The number of the block that each layer runs."""
        return self.shared or tuple(range(len(self.layers)))

    @property
    def blocks(self) -> tuple[Layer, ...]:
        """What each block is: as many as there are sets of parameters, which layers may share."""
        return tuple(self.layers[self.shared.index(n)] for n in dict.fromkeys(self.shared)) or self.layers

    @property
    def reversible(self) -> bool:
        """Whether two streams run through its blocks."""
        return self.layers[0].block.wiring == "reversible"

    @property
    def merge(self) -> str:
        """What becomes of the two streams of a reversible stack."""
        return self.layers[0].block.merge

    def out_width(self, width: int) -> int:
        """Width of what leaves it, in a model of this width."""
        return 2 * width if self.reversible and self.merge == "concat" else width


def pattern_of(stack: Stack, layer: Layer) -> Pattern:
    """A layer's pattern, with the stack's default where it is unset."""
    pattern = layer.attention.pattern
    return Pattern.of_kind("causal" if stack.causal else "full") if pattern is None else pattern


def cache_specs(spec: ModelSpec, stack: Stack) -> tuple[LayerCacheSpec, ...]:
    """What a cache keeps for the self-attention of each layer."""
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


Origin = tuple[tuple[str, Overrides], ...]
"""Where a layer's choices were written: tables of overrides with their names, outermost first."""
Resolved = tuple[Stack, tuple[Origin, ...]]
"""A stack, and the origin of each of its layers."""


def locate(origin: Origin, path: str, *reads: str) -> str:
    """The full name of a path: below the innermost table that sets it, or something that a rule reads with it."""
    for name, over in reversed(origin):
        if any(over.touch(p) for p in (path, *reads)):
            return join(name, path)
    return path


class Plan(NamedTuple):
    """A stack before its layers are resolved."""

    name: str
    over: Overrides
    """What this stack has otherwise than the spec."""
    data: Table
    """The spec's nodes with that applied."""
    layers: Layers
    depth: int | None
    """None if it could not be read."""
    order: list[str | None]
    """The group of each layer."""
    shared: tuple[int, ...]
    """The set of parameters of each layer; empty: each has its own."""

    def located(self, path: str) -> str:
        """The full name of a path that this stack, or else the spec, sets."""
        return locate(((self.name, self.over),), path)

    def names(self) -> set[str]:
        """The groups that the order names. A small depth may cut some of them off: a larger one brings them back."""
        return {name for name in self.layers.expand(None, "", Problems()) if name is not None}

    def reaches(self, group: str) -> bool:
        """Whether there is such a layer (as far as can be known), or the order names the group."""
        if NUMBER.fullmatch(group):
            return self.depth is None or int(group) < self.depth
        return group in self.names()


def resolve(spec: ModelSpec, problems: Problems) -> tuple[Resolved, ...]:
    """The stacks of a spec in the order in which they run."""
    names = ("encoder", "decoder") if spec.topology == "encoder-decoder" else (spec.topology,)
    plans = [_plan(spec, name, problems, both=len(names) == 2) for name in names]
    _check_groups(plans, problems)
    return tuple(_resolved(plan, problems, cross=len(names) == 2 and plan.name == "decoder") for plan in plans)


def _plan(spec: ModelSpec, name: str, problems: Problems, *, both: bool) -> Plan:
    over: Overrides = getattr(spec, name) if both else Overrides()
    base = {node: write(getattr(spec, node)) for node in STACK_NODES}
    data = merge(type(spec), base, over.written())
    for key in data:
        if key not in STACK_NODES:
            problems.add(join(name, key), f"can't differ between the stacks; only {', '.join(STACK_NODES)} can")
    plan = Plan(name, over, data, Layers(), None, [], ())
    where = plan.located("depth")
    depth = read(int, data["depth"], where, problems)
    if depth is not MISSING and not 1 <= depth <= DEEPEST and not problems.touches(where):
        problems.add(where, f"{depth} is not between 1 and {DEEPEST}")
    depth = None if problems.touches(where) else depth
    layers = read(Layers, data["layers"], join(name, "layers") if over.touch("layers") else "layers", problems)
    order = layers.expand(depth, plan.located("layers.order"), problems)
    shared = layers.sharing(depth, plan.located("layers.shared"), problems)
    return plan._replace(layers=layers, depth=depth, order=order, shared=shared)


def _check_groups(plans: list[Plan], problems: Problems) -> None:
    """Every group must be named in the order of some stack, and every number be that of a layer."""
    for plan in plans:
        for group in plan.layers.named():
            users = [plan] if plan.over.touch(f"layers.{group}") else plans
            if any(user.reaches(group) for user in users):
                continue
            if problems.touches(*(user.located("layers.order") for user in users)):
                continue
            known = {name for user in users for name in user.names()}
            if NUMBER.fullmatch(group):
                why = f"there is no layer {group}; layers are 0 to {max(user.depth or 1 for user in users) - 1}"
            elif known:
                why = f"is a group that layers.order does not name{nearest(group, known)}"
            else:
                why = "is a group, but nothing says which layers are in it; set layers.order, or number a layer"
            problems.add(plan.located(f"layers.{group}"), why)


def _resolved(plan: Plan, problems: Problems, *, cross: bool) -> Resolved:
    groups = plan.layers.named()
    bases = {node: plan.data[node] for node in LAYER_NODES}
    norm = read(NormPlacement, plan.data["norm"], "", Problems())
    norm = NormPlacement() if norm is MISSING else norm
    known: dict[tuple[str | None, str | None], tuple[Layer, Origin]] = {}
    found: list[tuple[Layer, Origin]] = []
    for i, group in enumerate(plan.order):
        single = str(i) if str(i) in groups else None
        if (group, single) not in known:
            names = [name for name in (group, single) if name is not None]
            tables = [(plan.located(f"layers.{name}"), groups[name]) for name in names]
            origin = ((plan.name, plan.over), *tables)
            known[group, single] = _layer(bases, norm, origin, problems), origin
        found.append(known[group, single])
    layers, origins = zip(*found, strict=True)
    stack = Stack(
        name=plan.name, layers=layers, causal=plan.name == "decoder", cross=cross, norm=norm, shared=plan.shared
    )
    return stack, origins


def _layer(data: Table, norm: NormPlacement, origin: Origin, problems: Problems) -> Layer:
    for _, over in origin[1:]:
        data = merge(Layer, data, over.written())
    trial = Problems()
    layer: Layer = read(Layer, data, "", trial)
    for path, message in trial.found:
        # Fields of a kind that could not be read would seem unknown.
        if not problems.touches(join(path.split(".")[0], "kind")):
            problems.add(locate(origin, path), message)
    for name in STACK_ONLY:
        if getattr(layer.norm, name) != getattr(norm, name):
            problems.add(locate(origin, f"norm.{name}"), f"belongs to the whole stack; set norm.{name}")
    return layer
