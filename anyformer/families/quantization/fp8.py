"""FP8 weights with a scale for each block of 128 x 128 (DeepSeek-V3, 2024), or one for all of a weight.

`X.weight` (out, in) holds 8-bit floats and `X.weight_scale_inv` (out/128, in/128), rounded up, what they are multiplied
with; blocks at the edges are cut off. Experts in one tensor have both (experts, ...).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from anyformer.families.quantization import BYTES, FLOATS, FP8, Quantization, QuantizedWeight, Read, StoredError, need

if TYPE_CHECKING:
    from torch import Tensor

    from anyformer.model.safetensors_header import Place

POWERS = (*BYTES, "F8_E8M0")
"""Scales that are powers of two, stored as exponents plus 127."""


class Fp8(Quantization, kind="fp8"):
    """Eight-bit floats in blocks."""

    main = ".weight"
    scale = ".weight_scale_inv"

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        self.block: list[int] | None = config.get("weight_block_size")

    def problems(self) -> Iterable[str]:
        sizes = self.block
        fits = isinstance(sizes, list) and len(sizes) == 2 and all(isinstance(n, int) and n > 0 for n in sizes)
        if sizes is not None and not fits:
            yield f"weight_block_size: {sizes!r:.40} is no pair of sizes, such as [128, 128]"
        if self.config.get("fmt") not in (None, "e4m3", "e5m2"):
            yield f"fmt: {self.config['fmt']!r:.40} is unknown (known: e4m3, e5m2)"

    def holds(self, place: Place) -> bool:
        return place.dtype in FP8

    def described(self, stem: str, held: Mapping[str, Place], read: Read) -> QuantizedWeight:
        name = stem + self.main
        shape = need(held, name, FP8).shape
        if len(shape) not in (2, 3):
            raise StoredError(name, f"has shape {shape}; such files have (out, in) or (experts, out, in)")
        need(held, stem + self.scale, (*FLOATS, *POWERS), *self.grids(shape))
        return QuantizedWeight(name, shape, {"weight": name, "scale": stem + self.scale})

    def grids(self, shape: tuple[int, ...]) -> list[tuple[int, ...]]:
        """The shapes that scales of a weight may have."""
        if self.block is None:
            return [(), (1,), (1,) * len(shape), shape[:-2]]
        return [(*shape[:-2], *(-(-size // step) for size, step in zip(shape[-2:], self.block, strict=True)))]

    def rows(self, weight: QuantizedWeight, stored: Mapping[str, Tensor], rows: slice) -> Tensor:
        numbers, scale = stored["weight"][rows].float(), scales(stored["scale"])
        if self.block is None:
            each = scale if scale.numel() == 1 else scale[rows]
            return numbers * (each.flatten()[0] if each.numel() == 1 else each[:, None, None])
        return numbers * spread(scale, self.block, weight.shape, rows)


class FbgemmFp8(Fp8, kind="fbgemm_fp8"):
    """Eight-bit floats with a scale for each output, `X.weight_scale` (out, 1) (Llama 3.1 405B, 2024)."""

    scale = ".weight_scale"

    def grids(self, shape: tuple[int, ...]) -> list[tuple[int, ...]]:
        return [(*shape[:-1], 1), shape[:-1]]

    def rows(self, weight: QuantizedWeight, stored: Mapping[str, Tensor], rows: slice) -> Tensor:
        numbers = stored["weight"][rows].float()
        return numbers * scales(stored["scale"]).reshape(*weight.shape[:-1], 1)[rows]


def scales(stored: Tensor) -> Tensor:
    """Scales as numbers, whether they are stored so or as exponents."""
    import torch

    return torch.exp2(stored.float() - 127) if stored.dtype == torch.uint8 else stored.float()


def spread(scale: Tensor, block: list[int], shape: tuple[int, ...], rows: slice) -> Tensor:
    """The scale of each number in some rows of a weight, from one for each block of it."""
    import torch

    high, wide = block
    if len(shape) == 3:
        scale, taken = scale[rows], torch.arange(shape[1])
    else:
        taken = torch.arange(rows.start, rows.stop)
    return scale.index_select(-2, taken // high).index_select(-1, torch.arange(shape[-1]) // wide)
