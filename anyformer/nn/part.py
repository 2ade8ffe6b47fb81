"""The base of parts that stand alone: one layer from keywords, around a module that models are made of, freshly drawn;
and what is refused of tensors, by their shapes and dtypes: values are never looked at.

The keywords are read, checked and completed as those of the only layer of a spec.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from anyformer.errors import InputError, SpecError
from anyformer.kernels.trace_constants import constant
from anyformer.model.build import allocate, check_inventory
from anyformer.parts.linear import drawn
from anyformer.parts.patterns.full import Full
from anyformer.specs.axes import Dims, Leaf, ParamSpec
from anyformer.specs.codec import Problems, read
from anyformer.specs.layer import Layer
from anyformer.specs.model import ModelSpec
from anyformer.specs.parameters import weights
from anyformer.specs.patterns import Pattern
from anyformer.specs.stacks import Stack

Node = str | Mapping[str, Any]
"""A kind, or a table with a kind and its options, as in a spec."""
CONTEXT = 2048
"""The longest sequence that a part is made for by default. Only patterns and positions that count tokens read it."""


@dataclass(frozen=True)
class OneLayer:
    """A layer with all its sizes, and the spec of a model that has no other."""

    spec: ModelSpec
    stack: Stack
    layer: Layer
    dims: Dims
    pattern: Pattern
    """Who sees whom, unless a call says otherwise."""


def one_layer(
    source: str,
    *,
    width: int,
    attention: Mapping[str, Any],
    position: Any = "none",
    ffn: Any = None,
    norm: Any = None,
    block: Any = None,
    cross: bool = False,
    context: int | None = None,
    refused: Sequence[str] = (),
) -> OneLayer:
    """The layer that these nodes of a spec describe. All problems are told at once, under the names of a spec's fields,
    with those that the caller `refused` for reasons of its own.
    """
    given = attention.get("pattern")
    pattern = Full() if given is None else read(Pattern, given, "pattern", Problems())
    # One that is wrong stays as it was given: the spec says why, together with all else.
    sound = isinstance(pattern, Pattern) and not list(pattern.problems())
    # What a decoder may have is a decoder's: schemes that know earlier tokens only (T5's buckets) go by it.
    looks_back = sound and pattern.prefix() is not None and not pattern.needs_length
    # Beside an encoder stands a decoder, which looks back; ours needn't.
    left_out = ("pattern",) if cross and sound and not looks_back else ()
    heads = {name: value for name, value in attention.items() if value is not None and name not in left_out}
    nodes = {"attention": heads, "position": position, "ffn": ffn, "norm": norm, "block": block}
    sizes = {"vocab": 1, "width": width, "depth": 1, "context": CONTEXT if context is None else context}
    topology = "encoder-decoder" if cross else "decoder" if looks_back else "encoder"
    data = {"topology": topology, "head": "none", **sizes, **nodes}
    try:
        spec = ModelSpec.from_data({name: value for name, value in data.items() if value is not None}, source)
    except SpecError as error:
        raise SpecError([*refused, *error.problems], source) from None
    if refused:
        raise InputError("\n  ".join([f"{source}: {refused[0]}", *refused[1:]]))
    stack = spec.stacks[-1]
    layer = stack.layers[0]
    return OneLayer(spec, stack, layer, spec.dims(layer, stack), pattern)


_patterns: dict[str, Pattern] = {}
"""Patterns by their text, so that a call does not parse one that was parsed before."""


def as_pattern(given: Any, source: str) -> Pattern:
    """A pattern from its text, such as "causal & window(128)", or itself."""
    if not isinstance(given, str):
        return read_leaf(Pattern, given, "pattern", source)
    _parse(given, source)
    return _patterns[given]


@constant
def _parse(text: str, source: str) -> bool:
    """Parse a text, also while a call is traced, where a parser can't be."""
    if text not in _patterns:
        _patterns[text] = read_leaf(Pattern, text, "pattern", source)
    return True


def read_leaf(axis: type[Leaf], data: Any, path: str, source: str) -> Any:
    """A leaf from its written form, checked on its own."""
    problems = Problems()
    leaf = read(axis, data, path, problems)
    for name, why in () if problems.found else leaf.problems():
        problems.add(f"{path}.{name}", why)
    if problems.found:
        raise SpecError(problems.lines, source)
    return leaf


class Part(nn.Module):
    """A part that knows the role of each of its parameters. `body` is the module that models are made of."""

    def __init__(self, layer: OneLayer, places: Mapping[str, str]) -> None:
        super().__init__()
        self.layer, self._places = layer, dict(places)
        """`places`: where in a stack its parameters would be, and the names that the part has for those places."""

    def inventory(self) -> dict[str, ParamSpec]:
        """What each parameter is for, by name."""
        prefixes = {f"{self.layer.stack.name}.{old}.": f"{new}." for old, new in self._places.items()}
        return {
            new + name.removeprefix(old): weight
            for name, weight in weights(self.layer.spec).items()
            for old, new in prefixes.items()
            if name.startswith(old)
        }

    def start(self, device: torch.device | str | None, dtype: torch.dtype | None) -> None:
        """Give a part that was made on the meta device its memory and its first weights."""
        dtype = torch.get_default_dtype() if dtype is None else dtype
        if not dtype.is_floating_point:
            raise InputError(f"dtype: {dtype} can't hold weights; pick a floating-point one")
        self.to(dtype)
        check_inventory(self, self.inventory())
        device = torch.get_default_device() if device is None else torch.device(device)
        if device.type != "meta":
            allocate(self, device)
            self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Fresh weights: matrices of variance 2/(d_in + d_out) and tables of variance 1, cut at 3 sigma; gains of 1."""
        inventory, dims, rule = self.inventory(), self.layer.dims, self.layer.spec.init.rule
        sizes = {"width": dims.width, "depth": dims.depth, "heads": dims.heads, "head_dim": dims.head_dim}
        for name, parameter in self.named_parameters():
            weight = inventory[name]
            if weight.fill is not None:
                parameter.fill_(weight.fill)
            elif not parameter.is_meta:
                parameter.copy_(drawn(rule(weight, tied=False, **sizes), weight.shape, parameter.device))


RENAMED = {
    "attn_mask": "mask",
    "is_causal": 'pattern="causal"',
    "causal": 'pattern="causal"',
    "dropout_p": "dropout",
    "window": 'pattern="window(128)"',
    "position_ids": "positions",
    "encoder_hidden_states": "memory",
    "key_padding_mask": "attention_mask (1 = real)",
}
"""Names of the same thing elsewhere."""


def check_size(source: str, name: str, value: Any) -> int:
    """A size that must be a whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{source}: {name}: {value!r} is not a whole number of at least 1")
    return value


def check_rows(source: str, name: str, x: Any, width: int) -> None:
    """Refuse what is not (batch, tokens, width) in floating point."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{source}: {name}: expected a tensor (batch, tokens, {width}), got {type(x).__name__}")
    if x.dim() != 3 or x.shape[-1] != width:
        raise InputError(f"{source}: {name}: expected (batch, tokens, {width}), got {tuple(x.shape)}")
    if not x.is_floating_point():
        raise InputError(f"{source}: {name}: expected floating-point numbers, got {x.dtype}")


def mask_problems(mask: Any, batch: int, heads: int, queries: int, keys: int) -> list[str]:
    """What is wrong with a mask of pairs."""
    if not isinstance(mask, Tensor):
        return [f"mask: expected a tensor, got {type(mask).__name__}; a pattern's text goes into pattern="]
    wrong: list[str] = []
    if mask.dtype != torch.bool and not mask.is_floating_point():
        wrong.append(f"mask: {mask.dtype} is neither boolean (True = may see) nor added numbers; write mask.bool()")
    shape, whole = tuple(mask.shape), (batch, heads, queries, keys)
    if mask.dim() not in (2, 4) or any(n not in (1, all_) for n, all_ in zip(shape, whole[-mask.dim() :], strict=True)):
        advice = f"; a padding mask {(batch, keys)} is mask[:, None, None, :]" if shape == (batch, keys) else ""
        wrong.append(
            f"mask: expected (queries, keys) = {whole[2:]} or (batch or 1, heads or 1, queries, keys) = {whole}, got "
            f"{shape}{advice}"
        )
    return wrong


def spread(mask: Tensor, queries: int, keys: int) -> Tensor:
    """A mask that was checked as (B or 1, H or 1, T, S)."""
    whole = mask[None, None] if mask.dim() == 2 else mask
    found = whole.expand(-1, -1, queries, keys)
    # Kernels read along the keys, one number after the other.
    return found if whole.shape[-1] == keys else found.contiguous()
