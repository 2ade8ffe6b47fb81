"""Checkpoint surgery: a trained model in a changed shape, to be trained a little more.

Fewer key and value heads (pooled, as in the GQA paper), another RoPE base or scaling, more positions, a window. Weights
that keep their shape stay as they are; a change that would leave a weight over, or need a new one, is refused.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from anyformer.errors import InputError
from anyformer.model.build import build
from anyformer.model.model import Model
from anyformer.model.native_checkpoint import empty_model
from anyformer.parts.patterns.causal import Causal
from anyformer.parts.positions.rope import Rope
from anyformer.parts.positions.rope_scaling import RopeScaling
from anyformer.specs.axes import ParamSpec
from anyformer.specs.codec import fields_of, required
from anyformer.specs.layer import Layer
from anyformer.specs.model import ModelSpec
from anyformer.specs.parameters import weights
from anyformer.specs.stacks import Stack, pattern_of

Pool = Literal["mean", "first", "random"]
Extend = Literal["repeat", "interpolate"]
POOLED = ("k", "v", "k_norm", "v_norm")
"""Names of modules whose tensors have a part for each key and value head."""


@dataclass(frozen=True, kw_only=True)
class Surgery:
    """What is to be changed; None leaves a thing as it is."""

    kv_heads: int | None = None
    pool: Pool | None = None
    """Heads that stand next to each other become one: their mean (unless given), the first of them, or new random
    weights."""
    theta: float | None = None
    scaling: tuple[str, float] | None = None
    """Kind and factor of a RoPE scaling; the length that it begins from is the context so far."""
    positions: int | None = None
    """A longer context; a learned table gets so many rows."""
    extend: Extend | None = None
    """New rows repeat the old ones (unless given), which stay exactly as they are; or all are interpolated between the
    old ones."""
    window: int | None = None
    """Tokens that a layer with full causal attention may see from now on, itself included."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Other fields of the spec, by dotted names."""
    seed: int | None = None
    """Of random weights; 0 unless given."""

    def __post_init__(self) -> None:
        idle = {
            "pool: is for kv_heads, and there are none": self.pool is not None and self.kv_heads is None,
            "extend: is for positions, and there are none": self.extend is not None and self.positions is None,
            'seed: is for random heads (pool="random"), and there are none': self.seed is not None
            and (self.pool != "random" or self.kv_heads is None),
        }
        if wrong := [why for why, is_idle in idle.items() if is_idle]:
            raise InputError("\n  ".join(["these would do nothing; leave them out, or add what they are for:", *wrong]))

    def __bool__(self) -> bool:
        given = (self.kv_heads, self.theta, self.scaling, self.positions, self.window)
        return bool(self.changes) or any(value is not None for value in given)

    def spec(self, spec: ModelSpec) -> ModelSpec:
        """The spec after the changes."""
        changes: dict[str, Any] = {}
        if self.pool not in (None, *get_args(Pool)) or self.extend not in (None, *get_args(Extend)):
            raise InputError(f"pool: {self.pool!r}, extend: {self.extend!r}; pick from {Pool} and {Extend}")
        if self.kv_heads is not None:
            changes["attention.kv_heads"] = self.kv_heads
            for stack, i, layer in ((s, i, layer) for s in spec.stacks for i, layer in enumerate(s.layers)):
                has = spec.dims(layer, stack).kv_heads
                if self.kv_heads < 1 or has % self.kv_heads:
                    divisors = ", ".join(str(n) for n in range(1, has + 1) if has % n == 0)
                    place = f"the {has} of layer {i} of the {stack.name}"
                    raise InputError(f"kv-heads: {place} can't be pooled into {self.kv_heads}; pick from {divisors}")
        if self.theta is not None:
            changes |= _rope_changes(spec, "theta", self.theta)
        if self.scaling is not None:
            changes |= _rope_changes(spec, "scaling", _scaling(spec, *self.scaling))
        if self.window is not None:
            why = "window: no layer of this model has full causal attention; use --set attention.pattern=..."
            path, pattern = "attention.pattern", f"window({self.window})"
            changes |= _layer_changes(
                spec, lambda stack, layer: isinstance(pattern_of(stack, layer), Causal), path, pattern, why
            )
        if self.positions is not None:
            if self.positions < spec.context:
                raise InputError(f"positions: {self.positions} is less than the {spec.context} that the model has")
            changes["context"] = self.positions
            if self.extend is not None and not any(w.role == "position_embedding" for w in weights(spec).values()):
                raise InputError(
                    "extend: this model has no learned table of positions, so there is nothing to extend; leave it out"
                )
        return spec.vary(changes | dict(self.changes))


def operate(model: Model, surgery: Surgery) -> Model:
    """The model after the changes, in memory of its own: what is trained in it does not reach the given one."""
    spec = surgery.spec(model.spec)
    old, new = weights(model.spec), weights(spec)
    tensors = {name: p.detach() for name, p in model.named_parameters()}
    first = next(model.parameters())
    fresh: dict[str, Tensor] = {}
    if surgery.kv_heads is not None and surgery.pool == "random":
        drawn = build(spec, device=first.device, dtype=first.dtype, seed=surgery.seed or 0)
        fresh = {name: p.detach() for name, p in drawn.named_parameters()}
    made: dict[str, Tensor] = {}
    problems = [f"{name}: would be left over" for name in old if name not in new]
    for name, weight in new.items():
        if name not in tensors:
            problems.append(f"{name}: would be new, and has no weights")
        elif tensors[name].shape == weight.shape:
            made[name] = tensors[name]
        elif (found := _reshaped(name, tensors[name], weight, surgery, fresh)) is not None:
            made[name] = found
        else:
            problems.append(f"{name}: would go from {tuple(tensors[name].shape)} to {weight.shape}")
    if problems:
        lines = [*problems[:8], *([f"and {len(problems) - 8} more"] if len(problems) > 8 else [])]
        raise InputError("\n  ".join(["the weights of this model don't fit the changed spec:", *lines]))
    result = empty_model(spec, first.device, first.dtype)
    result.family = model.family
    for name, parameter in result.named_parameters():
        parameter.detach().copy_(made[name])
    return result.train(model.training)


def _reshaped(
    name: str, old: Tensor, weight: ParamSpec, surgery: Surgery, fresh: Mapping[str, Tensor]
) -> Tensor | None:
    """A tensor of another shape made from the old one, if that is what was asked for."""
    module = name.split(".")[-2] if "." in name else ""
    if surgery.kv_heads is not None and module in POOLED:
        # A gain that all heads share has kept its shape, so what is left has a part for each head at the front.
        parts = old.unflatten(0, (surgery.kv_heads, old.shape[0] // weight.shape[0], -1))
        if surgery.pool in ("random", "first"):
            return fresh[name] if surgery.pool == "random" else parts[:, 0].reshape(weight.shape)
        # Heads that are equal keep their value to the last bit: a sum of n equal numbers, divided by n, may not.
        wide = parts.to(torch.promote_types(parts.dtype, torch.float32))
        return (wide[:, 0] + (wide - wide[:, :1]).mean(1)).to(parts.dtype).reshape(weight.shape)
    is_table = weight.role == "position_embedding" and old.shape[1:] == weight.shape[1:]
    if surgery.positions is not None and is_table and weight.shape[0] > old.shape[0]:
        return _longer(old, weight.shape[0], surgery)
    return None


def _longer(old: Tensor, rows: int, surgery: Surgery) -> Tensor:
    """A table of positions with more rows. Those before position 0, which some models have, stay in front."""
    ahead = rows - (surgery.positions or rows)
    before, table = old[:ahead], old[ahead:]
    size = rows - ahead
    if surgery.extend != "interpolate":
        return torch.cat((before, table[torch.arange(size, device=old.device) % len(table)]))
    wide = table.to(torch.promote_types(table.dtype, torch.float32)).T[None]
    stretched = torch.nn.functional.interpolate(wide, size=size, mode="linear", align_corners=True)
    return torch.cat((before, stretched[0].T.to(old.dtype)))


def _layer_changes(
    spec: ModelSpec, applies: Callable[[Stack, Layer], bool], path: str, value: Any, why: str
) -> dict[str, Any]:
    """A change of some layers, by dotted names: of a whole stack at once where it is all of its layers.

    `why` is what is wrong if there are none.
    """
    found: dict[str, Any] = {}
    for stack in spec.stacks:
        above = f"{stack.name}." if len(spec.stacks) > 1 else ""
        chosen = [i for i, layer in enumerate(stack.layers) if applies(stack, layer)]
        names = [""] if len(chosen) == stack.depth else [f"layers.{i}." for i in chosen]
        found |= {f"{above}{name}{path}": value for name in names}
    if not found:
        raise InputError(why)
    return found


def _rope_changes(spec: ModelSpec, name: str, value: Any) -> dict[str, Any]:
    kinds = sorted({layer.position.kind for stack in spec.stacks for layer in stack.layers})
    why = f"rope-{name}: no layer of this model has RoPE; its positions are {', '.join(kinds)}"
    return _layer_changes(spec, lambda _, layer: isinstance(layer.position, Rope), f"position.{name}", value, why)


def _scaling(spec: ModelSpec, kind: str, factor: float) -> dict[str, Any] | None:
    """A scaling by kind and factor, beginning from the length that the model was trained for."""
    if kind == "none":
        return None
    fields = {name: fields_of(leaf) for name in RopeScaling.kinds() if (leaf := RopeScaling.named(name))}
    needed = {name: {field for field, (_, f) in own.items() if required(f)} for name, own in fields.items()}
    # A factor and a length are all that can be said here.
    known = [name for name in fields if needed[name] <= {"factor", "original"}]
    if kind not in known:
        raise InputError(f"rope-scaling: {kind!r} is none of {', '.join(known)}, none; for others use --set")
    # Without any RoPE it is refused where the layers are looked for.
    positions = [layer.position for stack in spec.stacks for layer in stack.layers]
    scalings = [position.scaling for position in positions if isinstance(position, Rope)]
    original = getattr(next(iter(scalings), None), "original", spec.context)
    more = {"original": original} if "original" in fields[kind] else {}
    return {"kind": kind, "factor": factor} | more
