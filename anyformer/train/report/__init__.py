"""report.html: all that a run has to show, in one file that needs no network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from anyformer.files import replace_file
from anyformer.train.metrics import is_final, records
from anyformer.train.report.series import Series

FILE = "report.html"
PICTURE = "loss.png"


class Stage(Protocol):
    """A stage as a drawing shows it."""

    @property
    def first(self) -> int:
        """Steps before it."""
        ...

    @property
    def words(self) -> str:
        """Its sizes."""
        ...

    @property
    def flops_per_token(self) -> float:
        """Of training."""
        ...


@dataclass(frozen=True, kw_only=True)
class About:
    """What does not change while a run goes on."""

    name: str
    total: int
    """Steps of the whole run."""
    params: int
    stretches: Sequence[Stage]
    summary: str = ""
    """The architecture in words."""
    facts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Tables of names and values, by title: data, machine, versions."""
    spec: str = ""
    """As TOML."""
    config: str = ""
    """As TOML."""
    peak: float | None = None
    """FLOP/s that the devices could do at best, where that is known."""
    picture: bool = False
    """Whether loss.png is drawn at the end."""

    def flops_per_token(self, step: int) -> float:
        """Of training, in the stage of a step."""
        return next((each.flops_per_token for each in reversed(self.stretches) if step > each.first), 0.0)


class Report:
    """A logger that keeps what it is told, and writes the page at each save and at the end."""

    def __init__(self, folder: Path, about: About) -> None:
        self.folder, self.about = folder, about
        self.steps = Series()
        self.looks: list[Mapping[str, Any]] = []
        """Points of held-out curves, each of a sample of the rows."""
        self.finals: list[Mapping[str, Any]] = []
        """The whole held-out part, at the end."""
        self.samples: list[Mapping[str, Any]] = []
        self._new = False

    def begin(self, name: str, config: Mapping[str, Any], step: int) -> None:
        """Take up what was measured before."""
        for record in records(self.folder):
            self._keep(str(record.get("event")), record)

    def log(self, event: str, values: Mapping[str, Any]) -> None:
        """Keep it; a save is the time to write."""
        self._keep(event, values)
        if event == "save":
            self.write()

    def end(self) -> None:
        """Write the last page."""
        if self._new:
            self.write()

    def _keep(self, event: str, values: Mapping[str, Any]) -> None:
        self._new = self._new or event in ("step", "look", "final", "sample")
        if event == "step":
            self.steps.add(values)
        elif is_final({**values, "event": event}):
            self.finals.append(values)
        elif event == "look":
            self.looks.append(values)
        elif event == "sample":
            self.samples.append(values)

    def curve(self) -> list[Mapping[str, Any]]:
        """Points that can be compared with the newest one: those of the same rows."""
        return [seen for seen in self.looks if _rows(seen) == _rows(self.looks[-1])]

    def other_curves(self) -> list[list[Mapping[str, Any]]]:
        """Points of other rows, those of a curve together: run.eval_batches was another, or the version of anyformer."""
        kinds = dict.fromkeys(_rows(seen) for seen in self.looks)
        found = [[seen for seen in self.looks if _rows(seen) == kind] for kind in kinds]
        return [seen for seen in found if _rows(seen[0]) != _rows(self.looks[-1])]

    def newest(self) -> Mapping[str, Any] | None:
        """What is known best of the held-out part: of all of it, if that is not older than the curve's last point."""
        looks, finals = self.looks[-1:], self.finals[-1:]
        if finals and (not looks or finals[0]["step"] >= looks[0]["step"]):
            return finals[0]
        return looks[0] if looks else None

    def write(self) -> None:
        """Write report.html beside the run's other files, and loss.png if the run is over; each as a whole or not at all."""
        from anyformer.train.report.page import page

        if not len(self.steps):
            return
        self._new = False
        text = page(self)
        replace_file(self.folder / FILE, lambda beside: beside.write_text(text, encoding="utf-8", newline="\n"))
        # The picture takes half a second, for which nobody who stops a run wants to wait.
        if self.about.picture and self.steps.last("step") >= self.about.total:
            replace_file(self.folder / PICTURE, self._draw)

    def _draw(self, place: Path) -> None:
        from anyformer.train.loss_plot import draw_curve
        from anyformer.train.report.page import headline
        from anyformer.train.report.series import thinned

        tokens_N = self.steps.column("tokens")
        draw_curve(
            place, title=f"{self.about.name}: {headline(self)}", train=thinned(tokens_N, self.steps.column("loss"), 2000),
            held_out=_points(self.curve()), final=_points(self.finals), yardsticks={}, unit="loss (nats)",
        )  # fmt: skip


def _rows(look: Mapping[str, Any]) -> tuple[Any, Any]:
    """Which rows a look was at. Before these were written down, it was at some of the first."""
    return look.get("rows"), look.get("all_rows")


def _points(looks: Sequence[Mapping[str, Any]]) -> list[tuple[float, float]]:
    return [(look["tokens"], look["loss"]) for look in looks if look.get("loss") is not None]
