"""Still pictures of a page: what is seen before its script has drawn, and without one."""

from collections.abc import Sequence
from html import escape

from anyformer.lab.plots import palette
from anyformer.lab.plots.figure import fit_name, robust_span
from anyformer.lab.plots.palette import Style
from anyformer.lab.report.plot_data import APART_POINTS, shown_first
from anyformer.lab.results import Results
from anyformer.lab.statistics import curves, series
from anyformer.lab.statistics.curves import Axis
from anyformer.train.report.chart import tick_labels, ticks

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 340, 62, 14, 10, 44
NAMES, WORDS, ROW = 200, 170, 26
"""Room of the names at the left of final values and of words at their right, and the height of a row."""


def look(style: Style) -> str:
    """The classes and dashes of a variant's line."""
    dash = " ".join(f"{2 * length:g}" for length in style.dashes)
    return f'class="line c{style.colour + 1}"' + (f' stroke-dasharray="{dash}"' if dash else "")


def css(word: str) -> str:
    """An outcome or a verdict as a class of the style sheet: can't tell -> cant-tell."""
    return word.replace("'", "").replace(" ", "-")


def still_curves(results: Results, axis: Axis) -> str:
    """Mean learning curves as SVG; empty where there are none."""
    shown = shown_first(results)
    found = {each.name: curves.band(each, axis) for each in results.variants if each.name in shown}
    bands = {name: band for name, band in found.items() if band is not None}
    limits = curves.span(list(bands.values()))
    if limits is None:
        return ""
    (low, high), right = limits, max(float(band.x[-1]) for band in bands.values())
    wide, tall, looks = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM, palette.styles(results, shown)
    parts = [*_across(0, right, LEFT, wide, HEIGHT - BOTTOM, curves.WORDS[axis]), *_up(low, high)]
    # A drawing within the drawing: what leaves its frame is cut off.
    parts.append(f'<svg x="{LEFT}" y="{TOP}" width="{wide}" height="{tall}" viewBox="0 0 {wide} {tall}">')
    for name, band in bands.items():
        points = " ".join(
            f"{wide * band.x[i] / right:.1f},{tall * (high - band.mean[i]) / (high - low):.1f}"
            for i in curves.thin(len(band.x), APART_POINTS)
        )
        parts.append(f'<polyline {look(looks[name])} points="{points}"><title>{escape(name)}</title></polyline>')
    ends = "; ".join(f"{name} ends at {band.mean[-1]:.4f}" for name, band in bands.items())
    return _svg(HEIGHT, f"Held-out loss over {curves.WORDS[axis]}: {ends}", [*parts, "</svg>"])


def still_finals(results: Results) -> str:
    """Final values with their intervals as SVG, the best first; empty where there are none."""
    rows = series.finals(results)
    if not rows:
        return ""
    spread = [end for row in rows for end in (row.estimate.low, row.estimate.high) if end is not None]
    low, high = robust_span([row.estimate.mean for row in rows], spread)
    wide, base = WIDTH - NAMES - WORDS, next((row.estimate.mean for row in rows if row.name == results.base), None)
    lacking = series.missing(results)
    height = TOP + ROW * (len(rows) + len(lacking)) + BOTTOM

    def at(value: float) -> float:
        return NAMES + wide * (min(max(value, low), high) - low) / (high - low)

    parts = _across(low, high, NAMES, wide, height - BOTTOM, series.words(results.metric))
    if base is not None:
        parts.append(f'<line class="mark" x1="{at(base):.1f}" x2="{at(base):.1f}" y1="{TOP}" y2="{height - BOTTOM}"/>')
    for place, row in enumerate(rows):
        y, said = TOP + ROW * (place + 0.5), "base" if row.comparison is None else row.comparison.outcome
        kind = css(said)
        parts.append(_name(row.name, y))
        if row.estimate.low is not None and row.estimate.high is not None:
            parts.append(_bar(at(row.estimate.low), at(row.estimate.high), y, f"thin {kind}"))
        if (ends := series.around_base(row, base)) is not None:
            parts.append(_bar(at(ends[0]), at(ends[1]), y, f"thick {kind}"))
        parts.append(f'<circle class="dot {kind}" cx="{at(row.estimate.mean):.1f}" cy="{y}" r="5"/>')
        parts.append(_said(row.lost or said, y, kind))
    for place, (name, words) in enumerate(lacking.items(), len(rows)):
        parts += [_name(name, TOP + ROW * (place + 0.5)), _said(words, TOP + ROW * (place + 0.5), "lost")]
    told = "; ".join(f"{row.name} {row.estimate.mean:.4f}" for row in rows)
    return _svg(height, f"{series.words(results.metric)}, the best first: {told}", parts)


def _name(name: str, y: float) -> str:
    return f'<text class="name" x="{NAMES - 10}" y="{y + 4}" text-anchor="end">{escape(fit_name(name, 30))}</text>'


def _said(words: str, y: float, kind: str) -> str:
    return f'<text class="said {kind}" x="{WIDTH - WORDS + 10}" y="{y + 4}">{escape(words)}</text>'


def _bar(low: float, high: float, y: float, kind: str) -> str:
    return f'<line class="bar {kind}" x1="{low:.1f}" x2="{high:.1f}" y1="{y}" y2="{y}"/>'


def _across(low: float, high: float, left: float, wide: float, y: float, words: str) -> list[str]:
    values = ticks(low, high, 5)
    parts = [f'<line class="axis" x1="{left}" x2="{left + wide}" y1="{y}" y2="{y}"/>']
    for value, label in zip(values, tick_labels(values), strict=True):
        x = left + wide * (value - low) / (high - low)
        parts.append(f'<text x="{x:.1f}" y="{y + 17}" text-anchor="middle">{escape(label)}</text>')
    parts.append(f'<text x="{left + wide / 2:.1f}" y="{y + 36}" text-anchor="middle">{escape(words)}</text>')
    return parts


def _up(low: float, high: float) -> list[str]:
    values, parts = ticks(low, high), list[str]()
    for value, label in zip(values, tick_labels(values), strict=True):
        y = TOP + (HEIGHT - TOP - BOTTOM) * (high - value) / (high - low)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{escape(label)}</text>')
    return parts


def _svg(height: float, words: str, parts: Sequence[str]) -> str:
    said = escape(words)
    return f'<svg class="still" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{said}">{"".join(parts)}</svg>'
