"""The files of compressed-tensors (vLLM, LLM Compressor): packed whole numbers, int8, or 8-bit floats.

pack-quantized: `X.weight_packed` (out, in * bits / 32) holds words of several inputs, plus half of their range, and
`X.weight_shape` the sizes. int-quantized, float-quantized: `X.weight` (out, in) holds int8 or fp8. `X.weight_scale` has
one number for all ("tensor"), for each output ("channel"), group of inputs ("group") or block; so has
`X.weight_zero_point` where it is asymmetric, packed along the outputs in packed files. `X.weight_g_idx` is the group
of each input.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from anyformer.families.quantization import (
    FLOATS,
    FP8,
    INT8,
    INT32,
    Quantization,
    QuantizedWeight,
    Read,
    StoredError,
    matrix,
    need,
    unpacked,
)
from anyformer.families.quantization.fp8 import spread

if TYPE_CHECKING:
    from torch import Tensor

    from anyformer.model.safetensors_header import Place

PACKED, PLAIN = "pack-quantized", ("int-quantized", "float-quantized", "naive-quantized")
FORMATS = (PACKED, *PLAIN, "mixed-precision")
STRATEGIES = ("tensor", "channel", "group", "block")
ENDING = ".weight_packed"


class CompressedTensors(Quantization, kind="compressed-tensors"):
    """Groups of modules, each with its number of bits and its scales."""

    main = ENDING

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        groups = config.get("config_groups")
        self.groups: list[Any] = list(groups.values()) if isinstance(groups, Mapping) else []

    def problems(self) -> Iterable[str]:
        if not self.groups:
            yield "config_groups: is missing; it says how weights are stored"
        sparsity = self.config.get("sparsity_config")
        if isinstance(sparsity, Mapping) and sparsity.get("format") not in (None, "dense"):
            yield f"sparsity_config.format: {sparsity.get('format')!r:.40} can't be read (known: dense)"
        if self.config.get("transform_config"):
            yield "transform_config: rotations of weights can't be read"
        for group in (self.config, *self.groups):
            name = group.get("format") if isinstance(group, Mapping) else None
            if name is not None and name not in FORMATS:
                yield f"format: {name!r:.40} can't be read (known: {', '.join(FORMATS)})"
        for group in self.groups:
            yield from _wrong(group.get("weights") if isinstance(group, Mapping) else None)

    def weights(self, held: Mapping[str, Place], read: Read) -> list[QuantizedWeight]:
        """Packed weights, and plain ones that hold no floats of 16 bits or more."""
        plain = [
            name.removesuffix(".weight")
            for name, place in held.items()
            if name.endswith(".weight") and place.dtype in (*INT8, *FP8)
        ]
        return super().weights(held, read) + [self._plain(stem, held) for stem in plain]

    def described(self, stem: str, held: Mapping[str, Place], read: Read) -> QuantizedWeight:
        packed, shape = stem + ENDING, f"{stem}.weight_shape"
        stored = matrix(packed, need(held, packed, INT32))
        need(held, shape, ("I64", "I32"), (2,))
        out, into = (int(n) for n in read(shape).tolist())
        if out < 0 or into < 0 or (out, -(-into * self._given(stem)["num_bits"] // 32)) != stored:
            raise StoredError(shape, f"holds {(out, into)}, which does not go with {stored} words beside it")
        return replace(self._scaled(stem, (out, into), {"packed": packed}, held), more=(shape,))

    def _plain(self, stem: str, held: Mapping[str, Place]) -> QuantizedWeight:
        place = held[f"{stem}.weight"]
        return self._scaled(stem, matrix(f"{stem}.weight", place), {"weight": f"{stem}.weight"}, held)

    def _scaled(
        self, stem: str, shape: tuple[int, int], parts: dict[str, str], held: Mapping[str, Place]
    ) -> QuantizedWeight:
        """A weight with its scales, and zeros and groups if it has them."""
        given, (out, into) = self._given(stem), shape
        names = {part: f"{stem}.weight_{part}" for part in ("scale", "zero_point", "g_idx")}
        grids: list[tuple[int, ...]] = {
            "tensor": [(), (1,), (1, 1)],
            "channel": [(out, 1), (out,)],
            "group": [(out, -(-into // given["group_size"]))] if given["group_size"] else [],
            "block": [tuple(-(-n // step) for n, step in zip(shape, given["block_structure"] or (1, 1), strict=True))],
        }[given["strategy"]]
        need(held, names["scale"], FLOATS, *grids)
        parts = parts | {"scale": names["scale"]}
        if names["zero_point"] in held:
            zeros, packs = grids, "packed" in parts and given["strategy"] in ("group", "channel")
            if packs:
                zeros = [(-(-out * given["num_bits"] // 32), *grid[1:]) for grid in grids]
            need(held, names["zero_point"], INT32 if packs else ("I8", "U8", "I32", "I64", *FP8, *FLOATS), *zeros)
            parts["zero_point"] = names["zero_point"]
        elif not given["symmetric"]:
            raise StoredError(names["zero_point"], "is missing, and the config says that weights are not symmetric")
        if names["g_idx"] in held:
            need(held, names["g_idx"], ("I32", "I64"), (into,))
            parts["g_idx"] = names["g_idx"]
        return QuantizedWeight(f"{stem}.weight", shape, parts)

    def rows(self, weight: QuantizedWeight, stored: Mapping[str, Tensor], rows: slice) -> Tensor:
        number = self._numbers(weight, stored, rows).float()
        if (zero := self._zeros(weight, stored)) is not None:
            number -= self._each(weight, stored, zero, rows)
        return number * self._each(weight, stored, stored["scale"], rows)

    def integers(self, weight: QuantizedWeight, stored: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, int] | None:
        import torch

        given, zero = self._given(weight.name.removesuffix(".weight")), self._zeros(weight, stored)
        number = self._numbers(weight, stored, slice(0, weight.shape[0]))
        floats = number.is_floating_point() or given["strategy"] == "block"
        if floats or self._group(stored) is not None or (zero is not None and bool((zero != 0).any())):
            return None
        if given["strategy"] == "group" and stored["scale"].shape[1] > 1 and weight.shape[1] % given["group_size"]:
            # The last group is smaller than the others.
            return None
        scale = stored["scale"].reshape(1, 1) if given["strategy"] == "tensor" else stored["scale"]
        scale_OG = scale.reshape(scale.shape[0], -1).expand(weight.shape[0], -1)
        return number.to(torch.int8), scale_OG.contiguous(), given["num_bits"]

    def _numbers(self, weight: QuantizedWeight, stored: Mapping[str, Tensor], rows: slice) -> Tensor:
        """Numbers of some rows, around 0."""
        if "weight" in stored:
            return stored["weight"][rows]
        bits = self._given(weight.name.removesuffix(".weight"))["num_bits"]
        return unpacked(stored["packed"][rows], bits, 1)[:, : weight.shape[1]] - (1 << bits - 1)

    def _zeros(self, weight: QuantizedWeight, stored: Mapping[str, Tensor]) -> Tensor | None:
        given = self._given(weight.name.removesuffix(".weight"))
        if "zero_point" not in stored:
            return None
        if "packed" not in stored or given["strategy"] not in ("group", "channel"):
            return stored["zero_point"].float()
        return unpacked(stored["zero_point"], given["num_bits"], 0)[: weight.shape[0]] - (1 << given["num_bits"] - 1)

    def _each(self, weight: QuantizedWeight, stored: Mapping[str, Tensor], scale: Tensor, rows: slice) -> Tensor:
        """The scale, or the zero, of each number in some rows."""
        given = self._given(weight.name.removesuffix(".weight"))
        if given["strategy"] == "tensor":
            return scale.float().reshape(())
        if given["strategy"] == "block":
            return spread(scale.float(), given["block_structure"], weight.shape, rows)
        scale = scale.reshape(weight.shape[0], -1)[rows].float()
        if (group := self._group(stored)) is not None:
            if bool(((group < 0) | (group >= scale.shape[1])).any()):
                raise StoredError(weight.parts["g_idx"], f"names groups outside of the {scale.shape[1]} that there are")
            return scale[:, group]
        return scale.repeat_interleave(given["group_size"] or weight.shape[1], 1)[:, : weight.shape[1]]

    @staticmethod
    def _group(stored: Mapping[str, Tensor]) -> Tensor | None:
        """The group of each input, unless they are in order; -1 everywhere says that too."""
        group = stored.get("g_idx")
        return None if group is None or bool((group == -1).all()) else group.long()

    def _given(self, stem: str) -> dict[str, Any]:
        """How the weight of a module is stored: by a group that names it, or else by one for its class."""
        named, classes = [], []
        for group in self.groups:
            for target in group.get("targets") or []:
                by_name = re.match(target[3:], stem) if target.startswith("re:") else stem == target
                (named if by_name else classes if re.fullmatch(r"[A-Z]\w*", target) else []).append(group)
        found = (named + classes or self.groups)[0]["weights"]
        return {"symmetric": True, "group_size": None, "block_structure": None} | {
            name: value for name, value in found.items() if value is not None
        }


def _wrong(given: Any) -> Iterable[str]:
    """What of the settings of a group can't be read."""
    if not isinstance(given, Mapping):
        yield "config_groups: a group has no weights; only quantised weights are read"
        return
    bits, kind, strategy = (given.get(name) for name in ("num_bits", "type", "strategy"))
    if (kind, bits) not in (("int", 4), ("int", 8), ("float", 8)):
        yield f"config_groups: weights of {bits!r:.20} bits of type {kind!r:.20} can't be read (known: int 4, int 8, float 8)"
    if strategy not in STRATEGIES:
        yield f"config_groups: strategy {strategy!r:.40} can't be read (known: {', '.join(STRATEGIES)})"
    sizes = {"group": given.get("group_size"), "block": math.prod(given.get("block_structure") or (0,))}
    if strategy in sizes and not (isinstance(sizes[strategy], int) and sizes[strategy] > 0):
        yield f"config_groups: strategy {strategy!r} needs sizes, and they are missing"
