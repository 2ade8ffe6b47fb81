"""RoPE beyond the trained length: how each scaling changes the frequencies.

Those that depend on the length read one declared length, fixed when the forward or the cache is made.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from anyformer.specs.axes import Leaf, Params, Problem

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class RopeScaling(Leaf, axis="rope scaling", leaves="anyformer.parts.positions.rope_scaling"):
    """A change of RoPE's frequencies, and a gain on its sines and cosines."""

    minimum = {"factor": 1}
    needs_length: ClassVar[bool] = False
    factor: float

    def check(self, turned: int) -> Iterator[Problem]:
        """What is wrong if `turned` dimensions of a head turn."""
        yield from ()

    def constants(self, plain: list[float], theta: float) -> dict[str, Sequence[float]]:
        """Fixed numbers from the plain frequencies."""
        return {"frequency": plain}

    def frequencies(self, own: Params, length_BT: Tensor | None, exact: torch.dtype, theta: float) -> Tensor:
        """The frequencies, one set or one for each token."""
        return own["frequency"].to(exact)

    def gain(self) -> float:
        """What sines and cosines are multiplied by."""
        return 1.0


@dataclass(frozen=True, kw_only=True)
class Linear(RopeScaling, kind="linear"):
    """Positions are divided by the factor (Chen et al. 2023)."""

    formula = "f_i becomes f_i / {factor:.10g}"
    factor: float

    def constants(self, plain: list[float], theta: float) -> dict[str, Sequence[float]]:
        return {"frequency": [f / self.factor for f in plain]}


@dataclass(frozen=True, kw_only=True)
class DynamicNtk(RopeScaling, kind="dynamic"):
    """theta grows with the length beyond the original: theta (factor L / original - factor + 1)^(d / (d - 2))."""

    title = "dynamic NTK"
    minimum = {"factor": 1, "original": 1}
    needs_length = True
    factor: float
    original: int

    def check(self, turned: int) -> Iterator[Problem]:
        if turned <= 2:
            yield "kind", f"'dynamic' needs more than 2 turning dimensions, got {turned}"

    def equation(self) -> str:
        growth = f"{self.factor:.10g} L / {self.original} - {self.factor - 1:.10g}"
        return f"theta becomes theta ({growth})^(d / (d - 2)) for a length L above {self.original}"

    def constants(self, plain: list[float], theta: float) -> dict[str, Sequence[float]]:
        turned = 2 * len(plain)
        return {"exponent": [-2 * i / turned for i in range(len(plain))], "growth": [turned / (turned - 2)]}

    def frequencies(self, own: Params, length_BT: Tensor | None, exact: torch.dtype, theta: float) -> Tensor:
        if length_BT is None:
            raise TypeError("dynamic RoPE scaling reads a length")
        length = length_BT.to(own["growth"].dtype).clamp(min=self.original)
        base = theta * (self.factor * length / self.original - (self.factor - 1)) ** own["growth"]
        return (base[..., None] ** own["exponent"]).to(exact)


@dataclass(frozen=True, kw_only=True)
class Yarn(RopeScaling, kind="yarn"):
    """Slow dimensions interpolate, fast ones stay, with a ramp between (Peng et al. 2023)."""

    title = "YaRN"
    minimum = {"factor": 1, "original": 1}
    positive = ("attention_factor", "beta_slow")
    factor: float
    original: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    """Round the ends of the ramp to whole dimensions (gpt-oss does not)."""
    attention_factor: float | None = None
    """The gain on sines and cosines; unset: 0.1 ln(factor) + 1."""

    def problems(self) -> Iterator[Problem]:
        yield from super().problems()
        if 0 < self.beta_slow >= self.beta_fast:
            yield "beta_fast", f"{self.beta_fast} is not above beta_slow={self.beta_slow}"

    def equation(self) -> str:
        ramp = f"r_i from 0 at {self.beta_fast:.10g} turns in {self.original} tokens to 1 at {self.beta_slow:.10g}"
        return f"f_i becomes f_i (1 - r_i + r_i / {self.factor:.10g}), {ramp}; sin and cos times {self.gain():.6g}"

    def constants(self, plain: list[float], theta: float) -> dict[str, Sequence[float]]:
        half = len(plain)

        def dimension(turns: float) -> float:
            return 2 * half * math.log(self.original / (turns * 2 * math.pi)) / (2 * math.log(theta))

        low, high = dimension(self.beta_fast), dimension(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, 2 * half - 1)
        span = high - low or 0.001
        ramp = [min(max((i - low) / span, 0.0), 1.0) for i in range(half)]
        return {"frequency": [f / self.factor * r + f * (1 - r) for f, r in zip(plain, ramp, strict=True)]}

    def gain(self) -> float:
        return 0.1 * math.log(self.factor) + 1.0 if self.attention_factor is None else self.attention_factor


@dataclass(frozen=True, kw_only=True)
class Llama3(RopeScaling, kind="llama3"):
    """Long waves are stretched, short ones stay, those between are mixed (Llama 3.1)."""

    minimum = {"factor": 1, "original": 1}
    factor: float = 8.0
    original: int = 8192
    low: float = 1.0
    high: float = 4.0

    def problems(self) -> Iterator[Problem]:
        yield from super().problems()
        if self.low > self.high:
            yield "low", f"{self.low} is above high={self.high}"

    def equation(self) -> str:
        share = f"c_i from 0 at {self.low:.10g} turns in {self.original} tokens to 1 at {self.high:.10g}"
        if self.low == self.high:
            share = f"c_i is 1 from {self.low:.10g} turns in {self.original} tokens on, else 0"
        return f"f_i becomes f_i (c_i + (1 - c_i) / {self.factor:.10g}), {share}"

    def constants(self, plain: list[float], theta: float) -> dict[str, Sequence[float]]:
        return {"frequency": [self._scaled(f) for f in plain]}

    def _scaled(self, frequency: float) -> float:
        turns, span = self.original * frequency / (2 * math.pi), self.high - self.low
        # Without anything between, it is a step (Llama 4 Scout).
        keep = min(max((turns - self.low) / span, 0.0), 1.0) if span else float(turns >= self.low)
        return (1 - keep) * frequency / self.factor + keep * frequency


@dataclass(frozen=True, kw_only=True)
class LongRope(RopeScaling, kind="longrope"):
    """A factor for each frequency, of one list up to the original length and of another beyond (Phi-3)."""

    needs_length = True
    minimum = {"factor": 1, "original": 1}
    positive = ("attention_factor",)
    factor: float
    """Longest context over the original one: it sets the gain."""
    original: int
    short: tuple[float, ...]
    long: tuple[float, ...]
    attention_factor: float | None = None
    """The gain on sines and cosines; unset: sqrt(1 + ln(factor) / ln(original))."""

    def problems(self) -> Iterator[Problem]:
        yield from super().problems()
        for name in ("short", "long"):
            if any(f <= 0 for f in getattr(self, name)):
                yield name, "has a factor that is not above 0"
        if self.original == 1 and self.factor > 1 and self.attention_factor is None:
            yield "original", "1 has a logarithm of 0, which the gain divides by; set attention_factor"

    def equation(self) -> str:
        which = f"short_i up to a length of {self.original}, long_i beyond"
        return f"f_i becomes f_i / {which}; sin and cos times {self.gain():.6g}"

    def check(self, turned: int) -> Iterator[Problem]:
        for name in ("short", "long"):
            if len(getattr(self, name)) != turned // 2:
                yield name, f"has {len(getattr(self, name))} factors; {turned} turning dimensions need {turned // 2}"

    def constants(self, plain: list[float], theta: float) -> dict[str, Sequence[float]]:
        named: dict[str, tuple[float, ...]] = {"short": self.short, "long": self.long}
        return {name: [f / by for f, by in zip(plain, factors, strict=True)] for name, factors in named.items()}

    def frequencies(self, own: Params, length_BT: Tensor | None, exact: torch.dtype, theta: float) -> Tensor:
        if length_BT is None:
            raise TypeError("longrope scaling reads a length")
        within = (length_BT <= self.original)[..., None]
        return own["short"].where(within, own["long"]).to(exact)

    def gain(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        return math.sqrt(1 + math.log(self.factor) / math.log(self.original)) if self.factor > 1 else 1.0
