"""Colours, dashes and markers by which variants are told apart, the same in every plot and on the page.

Under simulated protanopia, deuteranopia and tritanopia (Machado et al. 2009) any two of the colours, ink included, are at
least 22 apart in CIELAB. Dashes and markers differ too, so that a plot can be read without its colours.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from anyformer.lab.results import Results

INK, SOFT, GRID, PAPER = "#1d2430", "#667085", "#e6eaf2", "#ffffff"
BETTER, WORSE = "#1b23b6", "#9c1414"
COLOURS = ("#1f95f0", "#9c1414", "#a29b00", "#9d4a94", "#2f7d55", "#1b23b6")
DARK = ("#65a6ff", "#ea8949", "#f1d22b", "#d388b6", "#0d8a63", "#7468ff")
"""The same on a dark page, in the same order."""
DASHES: tuple[tuple[float, ...], ...] = ((), (5, 2), (1.2, 1.6), (7, 2, 1.5, 2), (10, 3))
"""Lengths of lines and gaps in widths of the line; empty: a solid line."""
MARKS = "osD^vP"


@dataclass(frozen=True, kw_only=True)
class Style:
    """How a variant is drawn; `colour`, `dash` and `mark` are places in the tables above, -1 is the base's ink."""

    colour: int
    dash: int
    mark: int

    @property
    def ink(self) -> str:
        return INK if self.colour < 0 else COLOURS[self.colour]

    @property
    def dashes(self) -> tuple[float, ...]:
        return DASHES[self.dash]

    @property
    def marker(self) -> str:
        return "*" if self.mark < 0 else MARKS[self.mark]


def style(place: int) -> Style:
    """Of the variant with this number, the base not counted: 30 different ones, then from the beginning."""
    round_ = place // len(COLOURS)
    return Style(colour=place % len(COLOURS), dash=(place + round_) % len(DASHES), mark=(place + round_) % len(MARKS))


def styles(results: Results, first: Collection[str] = ()) -> Mapping[str, Style]:
    """By the names of the variants; those of `first` come before others, so that they differ most from each other."""
    others = [variant.name for variant in results.variants if variant.name != results.base]
    ordered = sorted(others, key=lambda name: name not in first)
    base = Style(colour=-1, dash=0, mark=-1)
    return {results.base: base} | {name: style(place) for place, name in enumerate(ordered)}
