"""RoPE (Su et al. 2021, eq. 34): turn each pair of a head's dimensions by the angle position * theta^(-2i/d).

Queries and keys are turned the same way; their product then depends on the difference of positions only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from anyformer.parts.positions.rope_scaling import RopeScaling
from anyformer.specs.axes import Dims, Position, Problem

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Rope(Position, kind="rope"):
    """Rotates queries and keys (and values, if asked) in each head."""

    relative = True
    theta: float = 10000.0
    layout: Literal["half", "interleaved"] = "half"
    """Pairs (i, i + d/2) as in NeoX and Llama, or (2i, 2i + 1) as in GPT-J."""
    fraction: float = 1.0
    """Share of each head that turns; the rest stays."""
    dims: int | None = None
    """That share as a number of dimensions, instead of a fraction."""
    on_values: bool = False
    scaling: RopeScaling | None = None

    @property
    def needs_length(self) -> bool:  # type: ignore[override]
        return self.scaling is not None and self.scaling.needs_length

    def problems(self) -> Iterator[Problem]:
        if self.theta <= 0:
            yield "theta", f"{self.theta} is not above 0"
        if not 0 < self.fraction <= 1:
            yield "fraction", f"{self.fraction} is not in (0, 1]"
        if self.dims is not None and self.fraction != 1.0:
            yield "dims", "and fraction both say how much of a head turns; set one of them"
        if self.scaling is not None:
            for name, message in self.scaling.problems():
                yield f"scaling.{name}", message

    def rotated(self, head_dim: int) -> int:
        """How many dimensions of a head turn."""
        return int(head_dim * self.fraction) if self.dims is None else self.dims

    def check(self, dims: Dims) -> Iterator[Problem]:
        turned = self.rotated(dims.head_dim)
        if turned % 2 or not 0 < turned <= dims.head_dim:
            yield (
                "kind",
                f"'rope' turns pairs: {turned} of head_dim={dims.head_dim} dimensions is not an even number up to it",
            )
        elif self.scaling is not None:
            for name, message in self.scaling.check(turned):
                yield f"scaling.{name}", message

    def constants(self, dims: Dims) -> dict[str, Sequence[float]]:
        turned = self.rotated(dims.head_dim)
        plain = [self.theta ** (-2 * i / turned) for i in range(turned // 2)]
        return {"frequency": plain} if self.scaling is None else self.scaling.constants(plain, self.theta)

    def angles(self, own: Mapping[str, Tensor], pos_BT: Tensor, length_BT: Tensor | None, like: Tensor) -> Any:
        import torch

        exact = torch.promote_types(like.dtype, torch.float32)
        if self.scaling is None:
            frequency, gain = own["frequency"].to(exact), 1.0
        else:
            frequency, gain = self.scaling.frequencies(own, length_BT, exact, self.theta), self.scaling.gain()
        angle = (pos_BT.to(exact)[..., None] * frequency)[:, :, None]
        cos, sin = angle.cos(), angle.sin()
        if gain != 1.0:
            cos, sin = cos * gain, sin * gain
        return cos.to(like.dtype), sin.to(like.dtype)

    def rotate(self, x_BTHK: Tensor, angles: Any) -> Tensor:
        import torch

        cos, sin = angles
        half = cos.shape[-1]
        turned, rest = (
            (x_BTHK, None) if 2 * half == x_BTHK.shape[-1] else (x_BTHK[..., : 2 * half], x_BTHK[..., 2 * half :])
        )
        if self.layout == "half":
            a, b = turned[..., :half], turned[..., half:]
            parts = [a * cos - b * sin, b * cos + a * sin]
        else:
            a, b = turned[..., 0::2], turned[..., 1::2]
            parts = [torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)]
        return torch.cat(parts if rest is None else [*parts, rest], -1)

    def rotates_values(self) -> bool:
        return self.on_values
