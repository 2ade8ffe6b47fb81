"""A study: which choices are varied around a base, what is kept equal, over which seeds. Reading one loads no torch.

A TOML file says it, or the options of `anyformer ablate`:

    title = "Feed-forwards at equal parameters"
    base = "recipes/wikitext-2.toml"
    seeds = 5
    budget = "1000 steps"
    match = { to = "params", by = ["ffn.width"] }
    [vary]
    "ffn.kind" = ["relu", "gelu", "swiglu"]
"""

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from anyformer.errors import InputError, nearest
from anyformer.lab.results import BASE, Claim, higher_is_better
from anyformer.specs.axes import Problem
from anyformer.specs.codec import Problems, Table, draft, flatten, read_fields, write
from anyformer.specs.overrides import Overrides

Design = Literal["one", "grid", "leave-one-out"]
KNOBS = ("ffn.width", "width", "depth", "steps")
"""What matching can solve for."""
TOLERANCE = {"params": 0.005, "flops": 0.005, "time": 0.03}
MOST_VARIANTS = 200


def dotted(table: Overrides) -> dict[str, Any]:
    """All that a table sets, by dotted names."""
    return dict(flatten(table.written())) if table.items else {}


@dataclass(frozen=True, kw_only=True)
class Match:
    """[match]: what every variant has in common with the base, and what is solved for to get there."""

    to: Literal["none", "params", "flops", "time"] = "none"
    """params: parameters; flops: training FLOPs of a run; time: measured time of a run."""
    by: tuple[str, ...] = ("ffn.width",)
    """What is solved for: ffn.width, width, depth or steps. Of several, each is set as well as it can be before the next, so
    that width or depth comes first and ffn.width makes up for what their coarse values leave."""
    tolerance: float | None = None
    """Relative; unset: 0.5%, of a measured time 3%."""

    @property
    def within(self) -> float:
        return TOLERANCE.get(self.to, 0.0) if self.tolerance is None else self.tolerance

    def problems(self) -> Iterator[Problem]:
        yield from (
            ("by", f"{name!r} can't be solved for{nearest(name, KNOBS)}") for name in self.by if name not in KNOBS
        )
        if not self.by:
            yield "by", f"names nothing to solve for; pick from {', '.join(KNOBS)}"
        if self.to == "params" and "steps" in self.by:
            yield "by", "'steps' changes no parameter; pick from ffn.width, width, depth"
        if self.tolerance is not None and not 0 < self.tolerance < 1:
            yield "tolerance", f"{self.tolerance:g} is not between 0 and 1"


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """One of [[variants]]: several changes under one name."""

    name: str
    set: Overrides
    """Dotted names of the spec or the config, and their values."""


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """[tune]: a small sweep of the learning rates for each variant, on seeds of its own, whose cost is counted."""

    factors: tuple[float, ...] = ()
    """All learning rates are multiplied by each of these; empty: every variant has those of the base."""
    seeds: int = 1

    def problems(self) -> Iterator[Problem]:
        if any(factor <= 0 for factor in self.factors):
            yield "factors", f"{list(self.factors)} are not all above 0"
        if self.seeds < 1:
            yield "seeds", f"{self.seeds} is not at least 1"


@dataclass(frozen=True, kw_only=True)
class Measure:
    """[measure]: what is measured besides the held-out loss at the end."""

    lengths: tuple[int, ...] = ()
    """Row lengths at which the held-out loss is measured too, as `loss@512`."""
    rows: tuple[Literal["stream", "packed", "padded"], ...] = ()
    """Other kinds of rows in which the held-out loss is measured too, as `loss_packed`: variants of `data.rows` compare only
    by rows of one kind."""
    steps_to: tuple[float, ...] = ()
    """Held-out losses; how many steps a run took to reach each, as `steps_to_3.5`."""
    gradients: bool = False
    """The gradient norm of each layer before the first step and after the last one."""
    speeds: bool = True
    """Tokens per second in training and decoding, and peak memory, of each variant alone on the device."""
    decode: bool = True
    """Whether decoding is among the speeds."""
    decode_batch: int = 8
    """Rows of the measured decoding."""
    decode_context: int = 0
    """Tokens in the KV cache when measured decoding begins; 0: half of a training row."""

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Self:
        """From what `write` made of it."""
        return cls(**draft(cls, read_fields(cls, data, "measure", Problems()) or {}))

    def problems(self) -> Iterator[Problem]:
        if any(length < 2 for length in self.lengths):
            yield "lengths", f"{list(self.lengths)} are not all at least 2"
        if self.decode_batch < 1:
            yield "decode_batch", f"{self.decode_batch} is not at least 1"
        if self.decode_context < 0:
            yield "decode_context", f"{self.decode_context} is not at least 0"


@dataclass(frozen=True, kw_only=True)
class Then:
    """[then]: a second run that begins from the weights of the first, such as fine-tuning or uptraining; it is what is judged.

    The first run's figures are kept as `before.loss` and so on. Variants that only differ here share the first run.
    """

    set: Overrides = field(default_factory=Overrides)
    """What is otherwise in its config; a variant changes it by names such as `then.stages.steps`."""
    convert: Overrides = field(default_factory=Overrides)
    """Surgery on the weights between the two: `kv_heads`, `pool`, `window` and whatever else `af.convert` offers; a variant
    changes it by names such as `then.convert.pool`."""


@dataclass(frozen=True, kw_only=True)
class Derive:
    """[[derive]]: a metric made of several runs that differ in one axis: the edge up to which it can be pushed."""

    name: str
    along: str
    """The axis, whose values are numbers. What is left are variants without it."""
    below: float
    """The edge is the value, as log2, at which the metric crosses this."""
    metric: str = "loss"


@dataclass(frozen=True, kw_only=True)
class Study:
    """What is asked for."""

    title: str = ""
    base: str
    """A config of a run (.toml), a run's folder, a spec (.toml), a preset's name, or `quickstart`."""
    set: Overrides = field(default_factory=Overrides)
    """Changes of the base that every variant has, by dotted names of the spec or the config."""
    vary: Overrides = field(default_factory=Overrides)
    """The axes: dotted names and lists of values. `lr` is a factor on all learning rates."""
    design: Design = "one"
    """one: one axis at a time; grid: all combinations; leave-one-out: each axis alone is set to the value that leaves a
    feature of the base out."""
    cross: tuple[str, ...] = ()
    """Axes of `vary` that the base and every other variant are combined with, such as `lr`."""
    variants: tuple[Bundle, ...] = ()
    """Further variants, several changes each."""
    match: Match = field(default_factory=Match)
    budget: str = ""
    """Of each run: 5m, 90s, 2000 steps, 20M tokens, 1e15 flops; empty: the steps of the base's config. A time is converted
    once into steps, which are recorded."""
    seeds: int = 3
    first_seed: int = 0
    metric: str = "loss"
    """What variants are compared by."""
    tune: Tuning = field(default_factory=Tuning)
    measure: Measure = field(default_factory=Measure)
    then: Then | None = None
    derive: tuple[Derive, ...] = ()
    claims: tuple[Claim, ...] = ()

    def problems(self) -> Iterator[Problem]:
        if self.seeds < 1:
            yield "seeds", f"{self.seeds} is not at least 1"
        if not 0 <= self.first_seed < 2**31:
            yield "first_seed", f"{self.first_seed} is not from 0 to 2^31 - 1"
        for name, part in (("match", self.match), ("tune", self.tune), ("measure", self.measure)):
            yield from ((f"{name}.{inner}", message) for inner, message in part.problems())
        names = [bundle.name for bundle in self.variants]
        for name in sorted({name for name in names if names.count(name) > 1 or name == BASE}):
            yield "variants", f"{name!r} is there twice; every variant needs a name of its own ({BASE!r} is the base's)"
        for name in self.cross:
            if name not in self.axes():
                yield "cross", f"{name!r} is no axis of vary{nearest(name, self.axes())}"
        for name, values in self.axes().items():
            if not values and self.design != "leave-one-out":
                yield f"vary.{name}", "has no value; give at least one"
        if not self.axes() and not self.variants and self.seeds < 2:
            yield "vary", "nothing is varied, and one run has nothing to be compared with; add an axis or more seeds"
        if self.budget:
            try:
                Budget.parse(self.budget)
            except InputError as error:
                yield "budget", str(error).removeprefix("budget: ")
        varied = {*self.axes(), *(name for bundle in self.variants for name in dotted(bundle.set))}
        for derive in self.derive:
            if derive.along not in varied:
                yield "derive", f"along: {derive.along!r} is not varied{nearest(derive.along, varied)}"
        if self.match.to == "time" and not self.measure.speeds:
            yield "measure.speeds", "is false, and match.to = 'time' needs it"
        if self.match.to == "time" and self.then is not None:
            yield "match.to", "'time' is measured of one run, and there are two with [then]; match flops or params"
        for i, derive in enumerate(self.derive):
            if not higher_is_better(derive.name):
                yield (
                    f"derive[{i}].name",
                    f"{derive.name!r} does not say that it is an edge; call it such, e.g. lr_edge",
                )
        at, known = re.fullmatch(r"loss@(\d+)", self.metric), self._metrics()
        if at and int(at[1]) not in self.measure.lengths:
            yield "metric", f"{self.metric!r} is measured nowhere; add {at[1]} to measure.lengths"
        elif self.metric not in known and (near := difflib.get_close_matches(self.metric, known, n=1, cutoff=0.75)):
            yield "metric", f"{self.metric!r} is measured nowhere; did you mean {near[0]!r}?"
        for i, claim in enumerate(self.claims):
            if claim.margin is not None and claim.margin <= 0:
                yield f"claims[{i}].margin", f"{claim.margin:g} is not above 0"

    def _metrics(self) -> frozenset[str]:
        """Metrics that are known by name; objectives have figures of their own besides."""
        known = {
            "loss",
            "bits_per_byte",
            "accuracy",
            "gradient_spikes",
            "skipped_steps",
            *(d.name for d in self.derive),
        }
        known |= {f"loss@{length}" for length in self.measure.lengths} | {f"loss_{rows}" for rows in self.measure.rows}
        known |= {f"steps_to_{loss:g}" for loss in self.measure.steps_to}
        return frozenset(known | {"train_tokens_per_second", "decode_tokens_per_second"})

    def axes(self) -> dict[str, list[Any]]:
        """Values by dotted name."""
        return {name: value if isinstance(value, list) else [value] for name, value in dotted(self.vary).items()}

    @classmethod
    def from_data(cls, data: Mapping[str, Any], source: str = "the study") -> Self:
        """Read plain data; every problem is named in one InputError."""
        problems = Problems()
        values = read_fields(cls, data, "", problems) or {}
        study = cls(**draft(cls, values))
        for path, message in study.problems():
            if not problems.touches(path):
                problems.add(path, message)
        if problems.found:
            raise InputError("\n  ".join([f"{source} can't be used:", *problems.lines]))
        return study

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        """Read a study file. Relative paths in it begin where the command is called."""
        place = Path(path)
        try:
            data = tomllib.loads(place.read_text(encoding="utf-8-sig"))
        except OSError as error:
            raise InputError(f"{place}: can't be read: {error.strerror}; give a study, e.g. studies/*.toml") from error
        except (ValueError, RecursionError) as error:
            raise InputError(f"{place} is not TOML: {error}") from error
        return cls.from_data(data, str(place))

    def to_data(self) -> Table:
        return write(self)

    def to_toml(self) -> str:
        import tomli_w

        return tomli_w.dumps(self.to_data())


BUDGET = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?(?:e[+-]?[0-9]+)?)\s*([kKMGB]?)\s*([A-Za-z]+)\s*")
UNITS = {"s": 1.0, "sec": 1.0, "seconds": 1.0, "m": 60.0, "min": 60.0, "minutes": 60.0, "h": 3600.0, "hours": 3600.0}
Spent = Literal["seconds", "steps", "tokens", "flops"]
COUNTS: dict[str, Spent] = {"step": "steps", "steps": "steps", "token": "tokens", "tokens": "tokens"}
COUNTS |= {"flop": "flops", "flops": "flops"}
LARGE = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9}


@dataclass(frozen=True, kw_only=True)
class Budget:
    """How long each run lasts."""

    kind: Spent
    amount: float

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read 5m, 90s, 2000 steps, 20M tokens, 1e15 flops."""
        match = BUDGET.fullmatch(text)
        unit = match[3].lower() if match else ""
        if match is None or (unit not in UNITS and unit not in COUNTS):
            allowed = "write a time (90s, 5m, 2h), or 2000 steps, 20M tokens, 1e15 flops"
            raise InputError(f"budget: {text!r} can't be read; {allowed}")
        amount = float(match[1]) * LARGE[match[2]]
        if not 0 < amount < float("inf"):
            raise InputError(f"budget: {text!r} is not a finite amount above 0")
        if unit in UNITS:
            if match[2]:
                raise InputError(f"budget: {text!r} is no time; write 90s, 5m or 2h")
            return cls(kind="seconds", amount=amount * UNITS[unit])
        return cls(kind=COUNTS[unit], amount=amount)
