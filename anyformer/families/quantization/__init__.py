"""Released weights of few bits: which stored tensors make up one weight, and the numbers that they stand for.

A leaf reads one `quant_method` of a config's `quantization_config`. It goes by what the file holds: a module that the
config leaves out of the conversion is there as a plain weight, and is read as one. Weights are dequantised one at a
time, some rows at a time, so that a model takes its own memory and one tensor more. weight = (q - zero) * scale in
fp32, rounded once to the model's dtype. Activations are never rounded, whatever the config says of them.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from anyformer.errors import InputError, nearest
from anyformer.registry import OpenAxis

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from anyformer.model.safetensors_header import Place
    from anyformer.parts.quantized import Numbers

Shape = tuple[int, ...]
Read = Callable[[str], "Tensor"]
CHUNK = 1 << 22
"""Weights that are dequantised at a time, so that their fp32 copies stay small beside a model."""
FLOATS = ("F64", "F32", "F16", "BF16")
INT32, INT8, BYTES = ("I32",), ("I8",), ("U8",)
FP8 = ("F8_E4M3", "F8_E5M2")
KEYS = ("quantization_config", "compression_config")
"""The key of a config that says how weights are stored; the second is its name in older files."""
GROUP_SIZES = ("group_size", "q_group_size")
"""The key of how many inputs share a scale; the second is its name in older files of AWQ."""
UNUSED = r".*\.(input|output|activation|q|k|v)_(scale|scale_ub|zero_point|global_scale)"
"""Scales of activations and of KV caches, which are not rounded here."""


class StoredError(Exception):
    """A stored tensor that is missing or not what it should be: its name, and what is wrong."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"{name}: {why}")
        self.name, self.why = name, why


@dataclass(frozen=True)
class QuantizedWeight:
    """A weight that is stored in several tensors."""

    name: str
    shape: Shape
    parts: Mapping[str, str]
    """What each of them is for -> its stored name."""
    more: tuple[str, ...] = ()
    """Stored names that belong to it and are of no use once its shape is known."""


class Quantization(OpenAxis, abc.ABC, axis="quantization", leaves="anyformer.families.quantization"):
    """Base of the methods; one is made from the table in a config."""

    main: ClassVar[str]
    """How the name of the tensor ends that holds the numbers of a weight; what is before it is its stem."""
    unused: ClassVar[str] = UNUSED
    """Stored names that no weight depends on."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config

    def problems(self) -> Iterable[str]:
        """What of the table can't be read."""
        return ()

    def weights(self, held: Mapping[str, Place], read: Read) -> list[QuantizedWeight]:
        """The weights that stored tensors make up, each checked for what it needs; `read` gives a tensor by its name."""
        return [
            self.described(name.removesuffix(self.main), held, read)
            for name, place in held.items()
            if name.endswith(self.main) and self.holds(place)
        ]

    def holds(self, place: Place) -> bool:
        """Whether a tensor whose name ends so holds numbers of this method, and no plain weight."""
        return True

    @abc.abstractmethod
    def described(self, stem: str, held: Mapping[str, Place], read: Read) -> QuantizedWeight:
        """The weight of one stem; StoredError if a tensor of it is missing or does not fit."""

    @abc.abstractmethod
    def rows(self, weight: QuantizedWeight, stored: Mapping[str, Tensor], rows: slice) -> Tensor:
        """Some rows of a weight, along its first dimension; `stored` has the tensors by what they are for."""

    def dequantised(self, weight: QuantizedWeight, stored: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
        """The whole weight."""
        import torch

        made = torch.empty(weight.shape, dtype=dtype)
        step = max(1, CHUNK // max(1, math.prod(weight.shape[1:])))
        for at in range(0, weight.shape[0], step):
            rows = slice(at, min(at + step, weight.shape[0]))
            made[rows] = self.rows(weight, stored, rows)
        return made

    def integers(self, weight: QuantizedWeight, stored: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, int] | None:
        """Signed numbers (out, in), scales (out, groups) and bits, if weight = number * scale; None if it is not."""
        return None

    def numbers(self, weight: QuantizedWeight, stored: Mapping[str, Tensor], kind: str) -> Numbers | None:
        """The same weight in whole numbers of ours; None where ours can't hold it exactly."""
        found = self.integers(weight, stored) if len(weight.shape) == 2 else None
        return None if found is None else exact_numbers(*found, kind)


def exact_numbers(data_OI: Tensor, scale_OG: Tensor, bits: int, kind: str) -> Numbers | None:
    """Signed whole numbers and their scales in our layout; None where that does not hold them exactly."""
    import torch

    from anyformer.kernels.small_gemm.quantized import packed_int4
    from anyformer.parts.quantized import GROUPS, Numbers

    into, groups = data_OI.shape[1], scale_OG.shape[1]
    if kind == "int8":
        fits = bits == 8 and groups == 1 and bool((data_OI > -128).all())
        return Numbers(data_OI.to(torch.int8).contiguous(), scale_OG[:, 0].float(), kind, 0) if fits else None
    size = into // groups
    # A scale of more inputs than our groups have stands for several groups.
    group = next((own for own in GROUPS if size % own == 0), 0)
    if bits != 4 or not group or into % groups:
        return None
    return Numbers(packed_int4(data_OI, group), scale_OG.repeat_interleave(size // group, 1).contiguous(), kind, group)


def need(held: Mapping[str, Place], name: str, dtypes: tuple[str, ...], *shapes: Shape) -> Place:
    """What a header says of a tensor that must be there, of one of these dtypes and, if any are given, shapes."""
    if name not in held:
        raise StoredError(name, "is missing, and its weight can't be known without it; is the checkpoint complete?")
    place = held[name]
    if place.dtype not in dtypes:
        raise StoredError(name, f"holds {place.dtype}, and such files have {' or '.join(dtypes)} there")
    if shapes and place.shape not in shapes:
        raise StoredError(name, f"has shape {place.shape}, and its weight needs {' or '.join(map(str, shapes))}")
    return place


def matrix(name: str, place: Place) -> tuple[int, int]:
    """The sizes of a matrix."""
    if len(place.shape) != 2:
        raise StoredError(name, f"has shape {place.shape}, not that of a matrix")
    return place.shape[0], place.shape[1]


def group_size(table: Mapping[str, Any], into: int) -> int | None:
    """How many inputs a table says that a group has, where -1 means all of them; None if it does not say."""
    size = next((table[name] for name in GROUP_SIZES if table.get(name) is not None), None)
    return max(into, 1) if size == -1 else size


def check_groups(name: str, groups: int, into: int, size: int | None) -> None:
    """StoredError if a tensor has another number of groups than its inputs make; the last one may be smaller."""
    if size is not None and groups != -(-into // size):
        raise StoredError(name, f"has {groups} groups, and {into} inputs in groups of {size} make {-(-into // size)}")


def wrong_group_size(table: Mapping[str, Any]) -> Iterable[str]:
    """What of the size of groups can't be read."""
    for name in GROUP_SIZES:
        size = table.get(name)
        if size is not None and (not isinstance(size, int) or isinstance(size, bool) or (size < 1 and size != -1)):
            yield f"{name}: {size!r:.40} is no size of groups; it must be at least 1, or -1 for all inputs"


def unpacked(words: Tensor, bits: int, dim: int) -> Tensor:
    """The numbers, from 0 on, that words of 32 bits hold along a dimension, the lowest bits first."""
    import torch

    shifts = torch.arange(0, 32, bits, dtype=torch.int32, device=words.device)
    size = [1] * (words.dim() + 1)
    size[dim + 1] = len(shifts)
    return (words.unsqueeze(dim + 1) >> shifts.view(size) & (1 << bits) - 1).flatten(dim, dim + 1)


def quantization_of(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The table of a config that says how its weights are stored; None if they are plain."""
    return next((config[key] for key in KEYS if config.get(key) is not None), None)


def refusal(table: Mapping[str, Any]) -> str | None:
    """Why weights that are stored so can't be read; None if they can."""
    method = _method(table)
    known = Quantization.kinds()
    if method not in known:
        return (
            f"quant_method {method!r} can't be read{nearest(str(method), known)} (known: {', '.join(known)}); take the model "
            "that it was made from, or let the library that wrote it save the weights in floating point "
            "(model.dequantize(), save_pretrained)"
        )
    problems = list(_made(method, table).problems())
    return "; ".join(problems) or None


def quantization(table: Mapping[str, Any]) -> Quantization:
    """The method of a table that can be read."""
    if why := refusal(table):
        raise InputError(f"{KEYS[0]}: {why}")
    return _made(_method(table), table)


def _method(table: Mapping[str, Any]) -> Any:
    return table.get("quant_method")


def _made(method: str, table: Mapping[str, Any]) -> Quantization:
    found = Quantization.named(method)
    if found is None:
        raise InputError(f"{KEYS[0]}: quant_method {method!r} is unknown")
    return found(table)


def whole_or(table: Mapping[str, Any], name: str, allowed: tuple[int, ...], problems: list[str]) -> None:
    """Note a number of a table that is none of those allowed."""
    if table.get(name) not in allowed:
        problems.append(f"{name}: {table.get(name)!r:.40} can't be read (known: {', '.join(map(str, allowed))})")
