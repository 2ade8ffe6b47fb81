"""Charts of a run: inline SVG over its steps in the colours of the page, and the loss curve as a PNG."""

import html
import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from anyformer.errors import naming
from anyformer.specs.number_format import STEPS, short
from anyformer.train.report import running_mean

Points = Sequence[tuple[float, float]]
LEFT, RIGHT, TOP, BOTTOM = 80, 22, 12, 44


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line or row of dots; `style` is a class of the page's style sheet."""

    name: str
    points: Points
    style: str
    dots: bool = False
    joined: bool = True
    """Whether neighbours are joined by a line."""


@dataclass(frozen=True, kw_only=True)
class _Scale:
    """From steps and values to places in the drawing."""

    width: int
    height: int
    total: int
    low: float
    high: float
    log: bool

    def x(self, step: float) -> float:
        return LEFT + (self.width - LEFT - RIGHT) * min(step / max(self.total, 1), 1.0)

    def y(self, value: float) -> float:
        low, high = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        at = (math.log(max(value, self.low)) if self.log else value) - low
        return TOP + (self.height - TOP - BOTTOM) * (1 - at / (high - low))

    def points(self, points: Points) -> str:
        return " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in points)


@dataclass(frozen=True, kw_only=True)
class Chart:
    """What is drawn."""

    title: str
    measure: str
    """What goes up the drawing, with its unit."""
    lines: Sequence[Line]
    total: int
    """Steps of the whole run: a run that goes on leaves room."""
    band: Sequence[tuple[float, float, float]] = ()
    """(step, least, largest): drawn faintly behind the lines."""
    marks: Sequence[tuple[int, str]] = ()
    """Steps after which a stage begins, in order, each with its words."""
    faults: Sequence[int] = ()
    """Steps that are marked below."""
    log: bool = False
    from_zero: bool = False
    unit: Callable[[float], str] | None = None
    """How a value is written; unset: in a few digits."""
    wide: bool = False

    @property
    def empty(self) -> bool:
        return not any(line.points for line in self.lines)

    def svg(self) -> str:
        width, height = (1060, 346) if self.wide else (520, 216)
        low, high = self._span()
        scale = _Scale(width=width, height=height, total=self.total, low=low, high=high, log=self.log)
        parts = [*self._axes(scale), *self._marks(scale)]
        w, h = width - LEFT - RIGHT, height - TOP - BOTTOM
        # A drawing within the drawing: what leaves its frame is cut off.
        parts.append(f'<svg x="{LEFT}" y="{TOP}" width="{w}" height="{h}" viewBox="{LEFT} {TOP} {w} {h}">')
        if self.band:
            over = [(x, y) for x, _, y in self.band] + [(x, y) for x, y, _ in reversed(self.band)]
            parts.append(f'<polygon class="band" points="{scale.points(over)}"/>')
        for line in self.lines:
            if line.joined:
                parts.append(f'<polyline class="{line.style}" points="{scale.points(self._sound(line.points))}"/>')
        parts.append("</svg>")
        for line in self.lines:
            parts += self._dots(scale, line)
        parts += [
            f'<circle class="fault" cx="{scale.x(step):.1f}" cy="{height - BOTTOM - 4}" r="2.5"/>'
            for step in self.faults[:200]
        ]
        words = html.escape(self._words())
        return (
            f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{words}"><title>{words}</title>'
            f"{''.join(parts)}</svg>"
        )

    def _words(self) -> str:
        """The chart for who can't see it."""
        say = self.unit or plain
        lines = [line for line in self.lines if line.points]
        ends = [f"{line.name} from {say(line.points[0][1])} to {say(line.points[-1][1])}" for line in lines]
        return f"{self.title} ({self.measure}) over {self.total:,} steps: {'; '.join(ends)}"

    def _span(self) -> tuple[float, float]:
        values = sorted(y for line in self.lines for _, y in self._sound(line.points))
        if not values:
            return (0.1, 1.0) if self.log else (0.0, 1.0)
        # The first few steps are far above all others: most of the room belongs to the rest.
        low, high = values[0], values[min(len(values) - 1, int(len(values) * 0.97))]
        if self.log:
            return low / 1.15, max(high, low * 1.5) * 1.15
        if self.from_zero:
            return 0.0, max(high, values[-1], 1e-12) * 1.08
        air = 0.06 * (high - low) or abs(high) * 0.05 or 1.0
        return low - air, high + air

    def _axes(self, scale: _Scale) -> list[str]:
        parts: list[str] = []
        values = log_ticks(scale.low, scale.high) if self.log else ticks(scale.low, scale.high)
        if self.log or self.unit is not None:
            labels = [brief((self.unit or plain)(value)) for value in values]
        else:
            labels = tick_labels(values)
        for value, label in zip(values, labels, strict=True):
            y = scale.y(value)
            parts.append(f'<line class="grid" x1="{LEFT}" x2="{scale.width - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
            parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{html.escape(label)}</text>')
        base = scale.height - BOTTOM
        steps = [value for value in ticks(0, self.total, 6 if self.wide else 4) if value == int(value)]
        for value, label in zip(steps, step_labels(steps), strict=True):
            x = scale.x(value)
            parts.append(f'<text x="{x:.1f}" y="{base + 18}" text-anchor="middle">{label}</text>')
        parts.append(f'<line class="axis" x1="{LEFT}" x2="{scale.width - RIGHT}" y1="{base}" y2="{base}"/>')
        across, up = (LEFT + scale.width - RIGHT) / 2, (TOP + base) / 2
        parts.append(f'<text class="across" x="{across:.1f}" y="{scale.height - 6}" text-anchor="middle">step</text>')
        label = html.escape(f"{self.measure}, log scale" if self.log else self.measure)
        at = f'x="14" y="{up:.1f}" text-anchor="middle" transform="rotate(-90 14 {up:.1f})"'
        parts.append(f'<text class="up" {at}>{label}</text>')
        return parts

    def _marks(self, scale: _Scale) -> list[str]:
        parts: list[str] = []
        ends = [step for step, _ in self.marks[1:]] + [self.total]
        for (step, word), end in zip(self.marks, ends, strict=False):
            x = scale.x(step)
            if step:
                parts.append(f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{scale.height - BOTTOM}"/>')
            if word and self.wide:
                # At the end of its stretch, where a loss is lowest and leaves room above.
                at = f'x="{scale.x(end) - 6:.1f}" y="{TOP + 10}" text-anchor="end"'
                parts.append(f"<text {at}>{html.escape(word)}</text>")
        return parts

    def _sound(self, points: Points) -> Points:
        return [(x, y) for x, y in points if math.isfinite(y) and (y > 0 or not self.log)]

    def _dots(self, scale: _Scale, line: Line) -> list[str]:
        points = self._sound(line.points)
        if not line.dots and len(points) != 1:
            return []
        return [
            f'<circle class="{line.style}" cx="{scale.x(x):.1f}" cy="{scale.y(y):.1f}" r="3.2">'
            f"<title>step {x:,.0f}: {html.escape((self.unit or plain)(y))}</title></circle>"
            for x, y in points
            if scale.low <= y <= scale.high
        ]


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers within a span, at most about so many."""
    span = high - low
    if span <= 0 or not math.isfinite(span):
        return [low]
    rough = span / most
    unit = 10.0 ** math.floor(math.log10(rough))
    each = next(unit * factor for factor in (1, 2, 2.5, 5, 10) if unit * factor >= rough * 0.999)
    first = math.ceil(low / each - 1e-9)
    return [round(i * each, 12) for i in range(first, math.floor(high / each + 1e-9) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten within a span, with their halves and fifths where there are few."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1,), (1, 3), (1, 2, 5)):
        found = [f * 10.0**p for p in powers for f in factors if low <= f * 10.0**p <= high]
        if len(found) >= 3:
            return found
    return found if len(found) > 1 else [low, high]


def brief(text: str) -> str:
    """A round number without the noughts after its point: 1.50 M is 1.5 M."""
    return re.sub(r"\.(\d*?)0+(?=\D|$)", lambda found: f".{found[1]}" if found[1] else "", text)


def tick_labels(values: Sequence[float]) -> list[str]:
    """Round numbers of one axis, written in one way and with as many digits as tell them apart."""
    top, each = max(map(abs, values)), min((b - a for a, b in itertools.pairwise(values)), default=1.0)
    if top >= 1e4 and each >= top * 1e-3:
        # All in one step of a thousand.
        step = min(len(STEPS) - 1, max(1, math.floor(math.log10(top) / 3 + 1e-9)))
        return [f"{value / 1000**step:g} {STEPS[step]}" if value else "0" for value in values]
    if 0 < top < 1e-3:
        power = math.floor(math.log10(top) + 1e-9)
        return [f"{value / 10.0**power:.6g}e{power}" if value else "0" for value in values]
    digits = next((d for d in range(12) if all(abs(round(v, d) - v) < 1e-3 * each for v in values)), 12)
    return [f"{value:.{digits}f}" for value in values]


def step_labels(values: Sequence[float]) -> list[str]:
    """Numbers of steps of one axis, written in one way."""
    top = max(values, default=0.0)
    if top < 1e5:
        return [f"{value:,.0f}" for value in values]
    size, letter = (1e6, "M") if top >= 1e6 else (1e3, "k")
    return [f"{value / size:g}{letter}" if value else "0" for value in values]


def plain(value: float) -> str:
    """A number in a few digits."""
    if 1e-3 <= abs(value) < 1e4 or value == 0 or not math.isfinite(value):
        return f"{value:.4g}"
    if abs(value) >= 1e4:
        return short(value)
    number, power = f"{value:.2e}".split("e")
    return f"{brief(number)}e{int(power)}"


INK, FAINT, ACCENT, WARM = "#1f2430", "#b9c3d6", "#2b6cb0", "#c05621"


def draw_curve(
    path: Path,
    *,
    title: str,
    train: Points,
    held_out: Points,
    final: Points = (),
    yardsticks: Mapping[str, float],
    unit: str = "bits per byte",
) -> None:
    """Write a PNG of points (tokens, value) and level lines; `held_out` is of a sample, `final` of the whole part."""
    # The figure is made without pyplot: no window system is asked, and nothing is left behind in global state.
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    figure = Figure(figsize=(8, 4.5), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    smooth: list[float] = running_mean([y for _, y in train], share=0.04).tolist()
    if train:
        axes.plot(*zip(*train, strict=True), color=FAINT, linewidth=0.8, label="training rows")
        axes.plot([x for x, _ in train], smooth, color=ACCENT, linewidth=1.8, label="training rows, smoothed")
    if held_out:
        axes.plot(*zip(*held_out, strict=True), "o-", color=INK, markersize=4, linewidth=1.2, label="held out")
    if final:
        axes.plot(*zip(*final, strict=True), "D", color=WARM, markersize=7, label="held out, all of it", clip_on=False)
    right = max((x for x, _ in (*train, *held_out, *final)), default=1.0)
    values = [*smooth, *(y for _, y in (*held_out, *final)), *yardsticks.values()]
    # All that was reached, with some air, but not a whole first spike.
    sound = [value for value in values if math.isfinite(value)]
    low, high = (min(sound), max(sound)) if sound else (0.0, 1.0)
    low, high = max(0.0, low - 0.08 * (high - low) - 0.05), high + 0.1 * (high - low) + 0.05
    for name, value in yardsticks.items():
        if low <= value <= high:
            axes.axhline(value, color=WARM, linewidth=1, linestyle=(0, (4, 3)))
            axes.annotate(
                f"{name} {value:.2f}", (right, value), xytext=(0, 3), textcoords="offset points", ha="right",
                color=WARM, fontsize=9,
            )  # fmt: skip
    axes.set(xlim=(0, right), ylim=(low, high), xlabel="tokens learned from", ylabel=unit)
    axes.set_title(title, loc="left", fontsize=11, color=INK)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: short(x)))
    axes.grid(color="#e6eaf2", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9, loc="upper right", ncols=2)
    with naming(path):
        figure.savefig(path, format="png")
