"""MXFP4 (OCP Microscaling Formats 1.0, 2023): 32 numbers of 4 bits share a power of two. The experts of gpt-oss.

`X_blocks` (experts, out, in/32, 16) holds two numbers in a byte, the lower half first; `X_scales` (experts, out, in/32)
holds exponents plus 127. The weight is (experts, in, out), the way of the class.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from anyformer.families.quantization import BYTES, Quantization, QuantizedWeight, Read, StoredError, need

if TYPE_CHECKING:
    from torch import Tensor

    from anyformer.model.safetensors_header import Place

VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""What the lower three bits stand for; the highest is the sign."""
BLOCK, BIAS = 32, 127


class Mxfp4(Quantization, kind="mxfp4"):
    """Four bits, and a power of two for each 32."""

    main = "_blocks"

    def described(self, stem: str, held: Mapping[str, Place], read: Read) -> QuantizedWeight:
        blocks = need(held, stem + self.main, BYTES)
        if len(blocks.shape) != 4 or blocks.shape[-1] != BLOCK // 2:
            raise StoredError(stem + self.main, f"has shape {blocks.shape}, not (experts, out, blocks, {BLOCK // 2})")
        experts, out, count, _ = blocks.shape
        need(held, f"{stem}_scales", BYTES, (experts, out, count))
        parts = {"blocks": stem + self.main, "scales": f"{stem}_scales"}
        return QuantizedWeight(stem, (experts, count * BLOCK, out), parts)

    def rows(self, weight: QuantizedWeight, stored: Mapping[str, Tensor], rows: slice) -> Tensor:
        import torch

        blocks, scales = stored["blocks"][rows], stored["scales"][rows]
        table = torch.tensor([*VALUES, *(-value for value in VALUES)])
        number = torch.stack([table[(blocks & 15).int()], table[(blocks >> 4).int()]], -1).flatten(-2)
        return torch.ldexp(number, scales[..., None].int() - BIAS).flatten(-2).transpose(-1, -2)
