"""RoPE (Su et al. 2021, eq. 34): turn each pair of a head's dimensions by the angle position * theta^(-2i/d).

Queries and keys are turned the same way; their product then depends on the difference of positions only.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from anyformer.parts.positions.rope_scaling import RopeScaling, Yarn
from anyformer.specs.axes import Dims, Params, Position, Problem, Tensor


@dataclass(frozen=True, kw_only=True)
class Rope(Position, kind="rope"):
    """Rotates queries and keys (and values, if asked) in each head."""

    title = "RoPE"
    positive = ("theta",)
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
    def relative(self) -> bool:  # type: ignore[override]
        # Turned values carry their own positions into the output.
        return not self.on_values

    @property
    def needs_length(self) -> bool:  # type: ignore[override]
        return self.scaling is not None and self.scaling.needs_length

    def problems(self) -> Iterator[Problem]:
        yield from super().problems()
        if isinstance(self.scaling, Yarn) and 0 < self.theta <= 1:
            yield "theta", f"{self.theta} is not above 1; 'yarn' divides by its logarithm"
        if not 0 < self.fraction <= 1:
            yield "fraction", f"{self.fraction} is not in (0, 1]"
        if self.dims is not None and self.fraction != 1.0:
            yield "dims", "and fraction both say how much of a head turns; set one of them"
        if self.scaling is not None:
            for name, message in self.scaling.problems():
                yield f"scaling.{name}", message

    def equation(self) -> str:
        pair = "(i, i + d/2)" if self.layout == "half" else "(2i, 2i + 1)"
        scaled = ""
        if self.scaling is not None:
            scaled = f"; {self.scaling.called()} scaling: {self.scaling.equation()}".rstrip(": ")
        turn = f"R_m turns the pair {pair} by m f_i, f_i = {self.theta:.10g}^(-2i/d)"
        return f"s_mn = scale (R_m q) . (R_n k){', values R_n v' if self.on_values else ''}; {turn}{scaled}"

    def rotated(self, head_dim: int) -> int:
        """How many dimensions of a head turn."""
        return int(head_dim * self.fraction) if self.dims is None else self.dims

    def check(self, dims: Dims) -> Iterator[Problem]:
        turned = self.rotated(dims.head_dim)
        if turned % 2 or not 0 < turned <= dims.head_dim:
            why = f"{turned} of head_dim={dims.head_dim} dimensions is not an even number up to it"
            yield "kind", f"'rope' turns pairs: {why}"
        elif self.scaling is not None:
            for name, message in self.scaling.check(turned):
                yield f"scaling.{name}", message

    def constants(self, dims: Dims) -> dict[str, Sequence[float]]:
        turned = self.rotated(dims.head_dim)
        plain = [self.theta ** (-2 * i / turned) for i in range(turned // 2)]
        return {"frequency": plain} if self.scaling is None else self.scaling.constants(plain, self.theta)

    def angles(self, own: Params, pos_BT: Tensor, length_BT: Tensor | None, like: Tensor) -> Any:
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
        # Over all turning dimensions, with the sign in the sine: a rotation is then x cos + swapped(x) sin.
        if self.layout == "half":
            cos, sin = torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)
        else:
            cos, sin = cos.repeat_interleave(2, -1), torch.stack((-sin, sin), -1).flatten(-2)
        return cos.to(like.dtype), sin.to(like.dtype)

    def rotate(self, x_BTHK: Tensor, angles: Any) -> Tensor:
        cos, sin = angles
        turned = cos.shape[-1]
        if turned < x_BTHK.shape[-1]:
            import torch

            return torch.cat((self.rotate(x_BTHK[..., :turned], angles), x_BTHK[..., turned:]), -1)
        if self.layout == "half":
            swapped = x_BTHK.roll(turned // 2, -1)
        else:
            swapped = x_BTHK.view(*x_BTHK.shape[:-1], -1, 2).flip(-1).flatten(-2)
        return (x_BTHK * cos).addcmul(swapped, sin)

    def rotates_values(self) -> bool:
        return self.on_values
