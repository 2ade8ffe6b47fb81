"""From a study to its variants: a name, a whole config and a spec each, or every reason why one can't be.

Loads no torch, unless the study has surgery between two runs.
"""

import itertools
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyformer.data.shards import open_index
from anyformer.errors import AnyformerError, InputError, SpecError, nearest
from anyformer.lab.quickstart_plan import SPEC as QUICKSTART
from anyformer.lab.results import BASE
from anyformer.lab.study import MOST_VARIANTS, Study, dotted
from anyformer.specs.codec import Table, flatten, nest, write
from anyformer.specs.model import ModelSpec
from anyformer.specs.parameters import weights
from anyformer.train.config import Config, in_familiar_words
from anyformer.train.resolve import resolved, specs_of

if TYPE_CHECKING:
    from anyformer.convert.surgery import Surgery

SECTIONS = frozenset(each.name for each in fields(Config))
"""First parts of the dotted names that belong to the config of a run; all others belong to the spec."""
LR, THEN = "lr", "then"
"""The axis that multiplies all learning rates, and what changes the second run."""
TRAINING = 3
"""A training step does so many times the arithmetic of a forward pass."""
PLACEHOLDER = "runs/study"
"""The run folder of configs that have none yet."""
USUAL = {"steps": 1000, "length": 256, "batch": 16}
"""The stage of a base that is only a spec; no longer than its context."""
FILLED = {
    "run.seed": "is the study's: seeds = N, and first_seed",
    "run.folder": "is the study's: every run has a folder of its own in --out",
}
"""Names of a config that a study fills in for each run."""
NAME = 80
"""Characters of a variant's name, which is also that of a folder."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """A config with the architecture that comes of it."""

    config: Config
    spec: ModelSpec

    @property
    def train_flops(self) -> float:
        """Training FLOPs of all stages, with rows as long as they can be."""
        specs = specs_of(self.spec, self.config.stages)
        return float(sum(
            TRAINING * stage.steps * stage.batch * spec.count().flops(stage.length).total
            for stage, spec in zip(self.config.stages, specs, strict=True)
        ))  # fmt: skip

    @property
    def tokens_per_step(self) -> int:
        """Cells of a step, on average over the stages."""
        return round(sum(s.steps * s.batch * s.length for s in self.config.stages) / self.config.steps)


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One thing that is compared: its run, and what follows it."""

    name: str
    run: Run
    changes: Table = field(default_factory=dict)
    """What was asked for, by dotted names."""
    solved: Table = field(default_factory=dict)
    """What matching chose."""
    off_by: float | None = None
    then: Run | None = None
    convert: Table = field(default_factory=dict)
    """Surgery on the weights between the two runs."""
    lr_factor: float | None = None

    @property
    def last(self) -> Run:
        """The run that is judged."""
        return self.then or self.run

    @property
    def params(self) -> int:
        return self.last.spec.count().params

    @property
    def train_flops(self) -> float:
        return self.run.train_flops + (self.then.train_flops if self.then else 0.0)

    def with_spec(self, changes: Mapping[str, Any]) -> "Variant":
        """The same with fields of the spec changed, in both runs."""
        then = None if self.then is None else changed(self.then, changes)
        return replace(self, run=changed(self.run, changes), then=then)

    def with_steps(self, steps: int) -> "Variant":
        """The same with so many steps in the first run."""
        return replace(self, run=stepped(self.run, steps))


def read_base(study: Study) -> Run:
    """The base of a study with the changes that all variants have."""
    data, given = _base_data(study.base), dotted(study.set)
    spec_changes, config_changes, _, _ = split(given)
    wrong = [name for name in given if name == LR or name.startswith(f"{THEN}.")]
    if wrong:
        raise InputError(f"set.{wrong[0]}: is for variants; in `set` write optim.matrices=..., or the table [then]")
    _refuse_filled(given, "set.")
    config = _config(data, config_changes, study.base)
    spec = _resolved(config, spec_changes)
    if "stages" not in data and not any(name.startswith("stages") and name.endswith("length") for name in given):
        short = [replace(stage, length=min(stage.length, spec.context)) for stage in config.stages]
        config = replace(config, stages=tuple(short))
    run = Run(config=config, spec=spec)
    return changed(run, {}) if spec_changes else run


def _refuse_filled(given: Mapping[str, Any], where: str = "") -> None:
    """Refuse what every run of a study gets from the study itself."""
    for name in given:
        if name in FILLED:
            raise InputError(f"{where}{name}: {FILLED[name]}")


def _base_data(base: str) -> Table:
    """What a base says, as the plain data of a config."""
    place = Path(base)
    config = place / "config.toml" if place.is_dir() else place
    if config.suffix == ".toml" and (config.is_file() or not place.is_dir()):
        try:
            data = tomllib.loads(config.read_text(encoding="utf-8-sig"))
        except OSError as error:
            where = "" if config.is_absolute() else "; a relative path begins where the command is called"
            raise InputError(f"base: {config}: can't be read: {error.strerror}{where}") from error
        except (ValueError, RecursionError) as error:
            raise InputError(f"base: {config} is not TOML: {error}") from error
        if "stages" not in data and "data" not in data:
            data = {"model": {"base": base}}
    elif base == "quickstart":
        data = {"model": {"spec": {name: value for name, value in QUICKSTART.items() if name not in ("vocab", "ids")}}}
    else:
        data = {"model": {"base": base}}
    data["run"] = {**data.get("run", {}), "folder": PLACEHOLDER}
    return data


def _config(data: Table, changes: Mapping[str, Any], source: str) -> Config:
    import tomli_w

    if "stages" not in data:
        data = {**data, "stages": [dict(USUAL)]}
    if "data" not in data and "data.folder" not in changes:
        raise InputError(
            f"base: {source} is an architecture, and says nothing of data; name a folder that anyformer tokenize wrote "
            "with --set data.folder=DIR (in a study: set), or give the config of a run"
        )
    return Config.from_toml(tomli_w.dumps(data), source, changes)


def _resolved(config: Config, changes: Mapping[str, Any]) -> ModelSpec:
    """The spec of a config on its data, with changes."""
    index = open_index(config.data.folder)
    known = {name: getattr(index, name) for name in ("vocab", "ids", "source_vocab", "source_ids")}
    spec = resolved(config.model, **known)
    return spec.vary(changes) if changes else spec


def split(changes: Mapping[str, Any]) -> tuple[Table, Table, Table, float]:
    """Changes of the spec, of the config, of the second run (without `then.`), and the factor on learning rates."""
    spec, config, then, factor = {}, {}, {}, 1.0
    for name, value in changes.items():
        first, _, rest = name.partition(".")
        if name == LR:
            if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
                raise InputError(f"{LR}: {value!r} is not a factor above 0")
            factor = float(value)
        elif first == THEN:
            then[rest] = value
        elif first in SECTIONS:
            config[name] = value
        else:
            spec[name] = value
    return spec, config, then, factor


def changed(run: Run, spec_changes: Mapping[str, Any], config_changes: Mapping[str, Any] | None = None) -> Run:
    """Another run: changes of the spec with the meaning of `vary`, changes of the config by dotted names."""
    import tomli_w

    spec = run.spec.vary(spec_changes) if spec_changes else run.spec
    data = run.config.to_data()
    if run.config.model.weights:
        written = nest(dotted(run.config.model.spec) | dict(spec_changes))
        data["model"] = {"weights": run.config.model.weights, "spec": written}
    else:
        data["model"] = {"spec": spec.to_data()}
    config = Config.from_toml(tomli_w.dumps(data), "the variant", config_changes or {})
    specs_of(spec, config.stages)
    return Run(config=config, spec=spec)


def stepped(run: Run, steps: int) -> Run:
    """A run of so many steps; several stages keep their shares."""
    old, total = run.config.stages, run.config.steps
    stages = [replace(stage, steps=max(1, round(stage.steps * steps / total))) for stage in old]
    stages[-1] = replace(stages[-1], steps=max(1, steps - sum(stage.steps for stage in stages[:-1])))
    return replace(run, config=replace(run.config, stages=tuple(stages)))


def scaled(config: Config, factor: float) -> Config:
    """A config with all learning rates multiplied."""
    if factor == 1.0:
        return config
    optim = config.optim
    leaf: Any = optim.leaf
    head = None if optim.head is None else optim.head * factor
    rates = {"tables": optim.tables * factor, "vectors": optim.vectors * factor, "head": head}
    return replace(config, optim=replace(optim, leaf=replace(leaf, matrices=leaf.matrices * factor), **rates))


def variants(study: Study, base: Run) -> list[Variant]:
    """The base and all that it is compared with; every reason why one of them can't be in one InputError."""
    wrong, found, known = list[str](), list[Variant](), dict[str, str]()
    for name, changes in [(BASE, dict[str, Any]()), *_asked(study, base)]:
        try:
            made = _variant(study, base, name, changes)
        except SpecError as error:
            wrong += [f"{name}: {in_familiar_words(line)}" for line in error.problems]
            continue
        except AnyformerError as error:
            wrong.append(f"{name}: {' '.join(str(error).split())}")
            continue
        same = known.setdefault(_identity(made), name)
        if same == name:
            found.append(made)
        elif same != BASE and not study.cross:
            wrong.append(f"{name}: is the same as {same}; leave one of them out")
    names = [each.name for each in found]
    wrong += [f"{name}: is there twice" for name in sorted({n for n in names if names.count(n) > 1})]
    for claim in study.claims:
        wrong += [f"claims: there is no variant {n!r}; they are {', '.join(names)}" for n in (claim.better, claim.than)
                  if n not in names and not study.derive]  # fmt: skip
    if wrong:
        raise InputError("\n  ".join(["these variants can't be, so nothing was begun:", *dict.fromkeys(wrong)]))
    own = {name: _value(base, name) for name in study.axes()}
    found[0] = replace(found[0], changes={name: value for name, value in own.items() if value is not None})
    return found


def _identity(variant: Variant) -> str:
    runs = [(each.config.to_data(), each.spec.to_data()) for each in (variant.run, variant.then) if each]
    return json.dumps([runs, variant.convert], sort_keys=True)


def _asked(study: Study, base: Run) -> list[tuple[str, Table]]:
    """Names and changes of all variants but the base."""
    every = {name: values or [plain_value(base.spec, name)] for name, values in study.axes().items()}
    axes = {name: values for name, values in every.items() if name not in study.cross}
    found: list[tuple[str, Table]] = []
    if study.design == "grid":
        pairs = ([(name, value) for value in values] for name, values in axes.items())
        found += [(label(dict(each)), dict(each)) for each in itertools.product(*pairs)] if axes else []
    else:
        left_out = study.design == "leave-one-out"
        for name, values in axes.items():
            for value in values:
                one = {name: value}
                found.append((f"without {name}" if left_out and len(values) == 1 else label(one), one))
    found += [(bundle.name, dotted(bundle.set)) for bundle in study.variants]
    if study.cross:
        found = _crossed(found, {name: every[name] for name in study.cross})
    if len(found) > MOST_VARIANTS:
        raise InputError(f"vary: these are {len(found)} variants, more than {MOST_VARIANTS}; leave some values out")
    return found


def _crossed(found: list[tuple[str, Table]], axes: Mapping[str, list[Any]]) -> list[tuple[str, Table]]:
    """Variants, and the base, with every combination of further axes."""
    crossed: list[tuple[str, Table]] = []
    for name, changes in [("", dict[str, Any]()), *found]:
        for values in itertools.product(*axes.values()):
            more = dict(zip(axes, values, strict=True))
            crossed.append((", ".join(filter(None, (name, label(more)))), {**changes, **more}))
    return crossed


def label(changes: Mapping[str, Any]) -> str:
    """A short name of changes."""
    parts = (f"{name.removesuffix('.kind')}={_spelled(value)}" for name, value in changes.items())
    return ", ".join(parts)


def _spelled(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _variant(study: Study, base: Run, name: str, changes: Table) -> Variant:
    if len(name) > NAME:
        raise InputError(f"its name has {len(name)} characters, and {NAME} are the most; name it in [[variants]]")
    _refuse_filled(changes)
    if "compute.device" in changes:
        raise InputError(
            "compute.device: all runs of a study are on one kind of device; put it into `set`, or give --device"
        )
    spec, config, then, factor = split(changes)
    run = changed(base, spec, config)
    run = replace(run, config=scaled(run.config, factor))
    if study.then is None:
        if then:
            raise InputError(f"then.{next(iter(then))}: the study has no second run; add the table [then]")
        return Variant(name=name, run=run, changes=changes)
    convert = dotted(study.then.convert)
    convert |= {n.removeprefix("convert."): v for n, v in then.items() if n.startswith("convert.")}
    after = {n: v for n, v in then.items() if not n.startswith("convert.")}
    second, settings, _, _ = split(dotted(study.then.set) | after)
    convert = {n: v for n, v in convert.items() if v}
    begun = replace(run, spec=surgery_of(convert).spec(run.spec)) if convert else run
    following = changed(begun, second, settings)
    have, want = ({n: w.shape for n, w in weights(each.spec).items()} for each in (begun, following))
    if differ := sorted(n for n in have.keys() | want.keys() if have.get(n) != want.get(n)):
        raise InputError(
            f"then: {differ[0]} has {have.get(differ[0])} after the first run, and {want.get(differ[0])} in the second; "
            "change shapes by then.convert, or in both runs"
        )
    return Variant(name=name, run=run, changes=changes, then=following, convert=convert)


def surgery_of(convert: Mapping[str, Any], seed: int | None = None) -> "Surgery":
    """What [then.convert] says; loads torch. `seed`: of random weights, unless it says one."""
    from anyformer.convert.surgery import Surgery

    known = {each.name for each in fields(Surgery)}
    given: Table = {name: value for name, value in convert.items() if not name.startswith("changes.")}
    for name in given:
        if name not in known:
            raise InputError(f"then.convert.{name}: is unknown{nearest(name, known)}")
    more = {name.removeprefix("changes."): value for name, value in convert.items() if name not in given}
    if given.get("pool") == "random":
        given = {"seed": seed, **given}
    whole: Table = given | ({"changes": more} if more else {})
    return Surgery(**whole)


def plain_value(spec: ModelSpec, name: str) -> Any:
    """What a field of the spec is in a plain one: the value that leaves a feature out."""
    sizes: dict[str, Any] = {"vocab": spec.vocab, "width": spec.width, "depth": spec.depth, "context": spec.context}
    plain = ModelSpec.from_data(sizes | {"attention": {"heads": spec.attention.heads}})
    found, own = (dict(flatten(write(each, whole=True))) for each in (plain, spec))
    value = found.get(name)
    if value == own.get(name) and not any(other.startswith(f"{name}.") for other in own):
        raise InputError(
            f"{name}: the base has the plain value, {value!r}, so there is nothing to leave out; say what to put in its "
            f"place, e.g. {name}=VALUE"
        )
    return value


def _value(base: Run, name: str) -> Any:
    if name == LR:
        return 1.0
    known = dict(flatten(base.spec.to_data())) | dict(flatten(base.config.to_data()))
    return known.get(name)
