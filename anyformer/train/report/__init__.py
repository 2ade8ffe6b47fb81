"""report.html: all that a run has to show, in one file that needs no network."""

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from anyformer.files import replace_file
from anyformer.specs.number_format import data
from anyformer.train.components import Components
from anyformer.train.dry_run import Stretch, stretches
from anyformer.train.loggers import is_final, records
from anyformer.train.run_state import versions

COLUMNS = ("step", "loss", "gradient_norm", "rate", "tokens", "seconds", "memory", "skipped", "stage")
MOST = 360
"""Points of a drawn line: more than a screen can tell apart."""

Points = list[tuple[float, float]]


class Series:
    """The steps of a run by column, in little room: a run may have a million of them."""

    def __init__(self) -> None:
        self._columns = {name: array("d") for name in COLUMNS}
        self.terms: dict[str, array[float]] = {}
        """Terms of the loss, with NaN where a step has none."""

    def __len__(self) -> int:
        return len(self._columns["step"])

    def add(self, values: Mapping[str, Any]) -> None:
        count = len(self)
        for name, column in self._columns.items():
            column.append(_number(values.get(name)))
        terms = values.get("terms") or {}
        for name in terms:
            self.terms.setdefault(name, array("d", [math.nan]) * count)
        for name, column in self.terms.items():
            column.append(_number(terms.get(name)))

    def column(self, name: str) -> Any:
        """The numbers of a column or of a term, NaN where there is none."""
        found = self._columns.get(name, self.terms.get(name))
        return np.array(found if found is not None else [], dtype=np.float64)

    def last(self, name: str) -> float:
        """The newest number of a column, NaN if there is none."""
        column = self._columns[name]
        return column[-1] if column else math.nan

    def curve(self, name: str) -> Points:
        """A column over the steps, as means of neighbours."""
        return thinned(self.column("step"), self.column(name))

    def smooth(self, name: str) -> Points:
        """The same as a running mean over about a fiftieth of the run."""
        steps_N, values_N = _finite(self.column("step"), self.column(name))
        return thinned(steps_N, running_mean(values_N))

    def band(self, name: str) -> list[tuple[float, float, float]]:
        """Least and largest number of neighbouring steps."""
        steps_N, values_N = _finite(self.column("step"), self.column(name))
        starts = _starts(len(steps_N))
        if not len(starts):
            return []
        low, high = np.minimum.reduceat(values_N, starts), np.maximum.reduceat(values_N, starts)
        return list(zip(_means(steps_N, starts).tolist(), low.tolist(), high.tolist(), strict=True))

    def speed(self) -> Points:
        """Tokens of each second, over stretches of the run."""
        steps_N, tokens_N, seconds_N = (self.column(name) for name in ("step", "tokens", "seconds"))
        starts = _starts(len(steps_N), 60)
        if len(starts) < 2:
            return []
        ends = np.append(starts[1:], len(steps_N) - 1)
        spent, learned = seconds_N[ends] - seconds_N[starts], tokens_N[ends] - tokens_N[starts]
        sound = (spent > 0) & (learned >= 0)
        return list(zip(steps_N[ends][sound].tolist(), (learned[sound] / spent[sound]).tolist(), strict=True))

    def skips(self) -> list[int]:
        steps_N = self.column("step")
        return steps_N[self.column("skipped") == 1].astype(int).tolist()


def thinned(steps_N: Any, values_N: Any, most: int = MOST) -> Points:
    """At most so many points, each the mean of neighbours; what is not finite is left out."""
    steps_N, values_N = _finite(steps_N, values_N)
    starts = _starts(len(steps_N), most)
    return list(zip(_means(steps_N, starts).tolist(), _means(values_N, starts).tolist(), strict=True))


def running_mean(values_N: Any, share: float = 0.02) -> Any:
    """Means over about this share of all numbers, at each end over what there is."""
    count = len(values_N)
    reach = max(1, int(count * share / 2))
    sums = np.concatenate([[0.0], np.cumsum(values_N)])
    places = np.arange(count)
    low, high = np.maximum(places - reach, 0), np.minimum(places + reach + 1, count)
    return (sums[high] - sums[low]) / (high - low)


def _finite(steps_N: Any, values_N: Any) -> tuple[Any, Any]:
    sound = np.isfinite(steps_N) & np.isfinite(values_N)
    return steps_N[sound], values_N[sound]


def _starts(count: int, most: int = MOST) -> Any:
    """Where each of at most so many groups of neighbours begins."""
    return np.unique(np.linspace(0, count, min(count, most), endpoint=False).astype(int))


def _means(values_N: Any, starts: Any) -> Any:
    if not len(starts):
        return np.zeros(0)
    return np.add.reduceat(values_N, starts) / np.diff(np.append(starts, len(values_N)))


def _number(value: Any) -> float:
    return float(value) if isinstance(value, bool | int | float) else math.nan


FILE = "report.html"
PICTURE = "loss.png"


@dataclass(frozen=True, kw_only=True)
class About:
    """What does not change while a run goes on."""

    name: str
    total: int
    params: int
    stretches: Sequence[Stretch]
    summary: str = ""
    """The architecture in words."""
    facts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Tables of names and values, by title: data, machine, versions."""
    spec: str = ""
    config: str = ""
    peak: float | None = None
    """FLOP/s that the devices could do at best, where that is known."""
    picture: bool = False

    def flops_per_token(self, step: int) -> float:
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
        for record in records(self.folder):
            self._keep(str(record.get("event")), record)

    def log(self, event: str, values: Mapping[str, Any]) -> None:
        self._keep(event, values)
        if event == "save":
            self.write()

    def end(self) -> None:
        if self._new:
            self.write()

    def _keep(self, event: str, values: Mapping[str, Any]) -> None:
        self._new = self._new or event in ("step", "look", "final", "sample")
        if event == "step":
            self.steps.add(values)
            return
        kind = "final" if is_final({**values, "event": event}) else event
        kept = {"final": self.finals, "look": self.looks, "sample": self.samples}.get(kind)
        if kept is not None:
            kept.append(values)

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
        from anyformer.train.report.chart import draw_curve
        from anyformer.train.report.page import headline

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


SHORT = 16
"""Characters of a fingerprint that are shown."""


def about_of(components: Components, *, summary: str = "", peak: float | None = None, picture: bool = False) -> About:
    """Gather it from a run that is ready. `summary` and `peak` are for who knows them."""
    config, found = components.config, stretches(components)
    machine = components.machine | versions()
    words = {n: {True: "yes", False: "no"}[v] if isinstance(v, bool) else str(v) for n, v in machine.items()}
    return About(
        name=components.folder.resolve().name, total=config.steps, params=components.spec.count().params, stretches=found,
        summary=summary, spec=components.spec.to_toml(), config=config.to_toml(), peak=peak, picture=picture,
        facts={"Data": _data(components), "Machine": words},
    )  # fmt: skip


def _data(components: Components) -> dict[str, str]:
    config, index = components.config, components.index
    part = index.parts[config.data.train]
    told = {
        "folder": config.data.folder,
        "examples to learn from": f"{part.examples:,}",
        "text": data(part.bytes) if part.bytes else "",
        "vocabulary": f"{index.vocab:,} tokens" if index.vocab else "",
        "vocabulary of the source": f"{index.source_vocab:,} tokens" if index.source_vocab else "",
        "objective": components.objective.kind,
        "rows": config.data.rows + (f", packed by {config.data.packing.kind}" if config.data.rows == "packed" else ""),
    }
    for i, each in enumerate(stretches(components)):
        stage = f" (stage {i + 1})" if len(config.stages) > 1 else ""
        told[f"epochs{stage}"] = f"{each.epochs:.2f} of {each.rows:,} rows"
        told[f"padding{stage}"] = f"{each.waste:.2%} of all cells"
    told[f"fingerprint of {config.data.train}"] = components.examples.fingerprint[:SHORT]
    if components.valid is not None:
        told[f"fingerprint of {config.data.valid}"] = components.held_out.fingerprint[:SHORT]
    told["tokenizer"] = (index.tokenizer_sha256 or "")[:SHORT]
    told["tokenizer of the source"] = (index.source_sha256 or "")[:SHORT]
    return {name: value for name, value in told.items() if value}
