"""The plan of a study: its variants with solved sizes, the steps of its runs, and its jobs; decided once and kept as plan.json.

The same study again finds its plan and goes on with it, so that a budget in minutes means the same steps after a stop.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from anyformer.data.shards import INDEX
from anyformer.errors import InputError
from anyformer.explain.costs import decodes
from anyformer.files import replace_file
from anyformer.lab.engine.job import Job, config_data
from anyformer.lab.results import VariantResult
from anyformer.lab.study import Study
from anyformer.lab.variants import Run, Variant, scaled
from anyformer.specs.codec import flatten
from anyformer.train.config import Config

FILE = "plan.json"
VERSION = 1
FREE = ("seeds", "title", "claims", "metric")
"""What may change when a study is continued: runs that are there stay, others are added."""
TUNING_SEEDS = 1_000_000
"""Learning rates are tuned on seeds from here on, so that no run is judged by what it was chosen by."""


@dataclass(frozen=True, kw_only=True)
class PlannedVariant:
    """A variant as plain data."""

    name: str
    slug: str
    changes: dict[str, Any]
    solved: dict[str, Any]
    off_by: float | None
    config: dict[str, Any]
    then: dict[str, Any] | None
    convert: dict[str, Any]
    params: int
    train_flops: float
    kv_bytes_per_token: float | None
    steps: int
    tokens_per_step: int

    @classmethod
    def of(cls, variant: Variant, slug: str) -> Self:
        last = variant.last
        length = last.config.stages[-1].length
        cached = last.spec.count().kv_bytes(length) / length if decodes(last.spec) else None
        return cls(
            name=variant.name, slug=slug, changes=dict(variant.changes), solved=dict(variant.solved),
            off_by=variant.off_by, config=config_data(variant.run.config),
            then=None if variant.then is None else config_data(variant.then.config), convert=dict(variant.convert),
            params=variant.params, train_flops=variant.train_flops, kv_bytes_per_token=cached,
            steps=last.config.steps, tokens_per_step=last.tokens_per_step,
        )  # fmt: skip

    def result(self, **more: Any) -> VariantResult:
        """The variant in the results of a study."""
        names = ("name", "changes", "solved", "off_by", "params", "train_flops", "kv_bytes_per_token", "steps")
        same = {name: getattr(self, name) for name in (*names, "tokens_per_step")}
        return VariantResult(**same, **more)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All that is decided before the first run."""

    study: dict[str, Any]
    variants: list[PlannedVariant]
    budget: str
    """In words."""
    match: str
    machine: dict[str, Any]
    devices: list[str]
    """One for each run at a time."""
    date: str
    base: dict[str, Any] = field(default_factory=dict)
    """The config of the base, and a hash of the data, when it was planned."""
    notes: list[str] = field(default_factory=list)

    def jobs(self, study: Study, folder: Path, factors: Mapping[str, float] | None = None) -> list[Job]:
        """The runs of the study, those that others begin from first. `factors`: on the learning rates of each variant."""
        found: dict[str, Job] = {}
        seeds = range(study.first_seed, study.first_seed + study.seeds)
        for seed in seeds:
            for variant in self.variants:
                factor = (factors or {}).get(variant.name, 1.0)
                for job in self._chain(study, folder, variant, seed, factor, f"runs/{variant.slug}/seed-{seed}"):
                    found.setdefault(job.id, job)
        first = [job for job in found.values() if not job.after]
        return [*first, *(job for job in found.values() if job.after)]

    def tuning_jobs(self, study: Study, folder: Path) -> list[tuple[str, float, Job]]:
        """Runs that find the learning rates of each variant: its name, the factor, the job that is judged and those before."""
        found: list[tuple[str, float, Job]] = []
        for variant in self.variants:
            for factor in study.tune.factors:
                for seed in range(TUNING_SEEDS, TUNING_SEEDS + study.tune.seeds):
                    place = f"tuning/{variant.slug}/lr-{factor:g}/seed-{seed}"
                    for job in self._chain(study, folder, variant, seed, factor, place):
                        found.append((variant.name, factor, job))
        return found

    def _chain(
        self, study: Study, folder: Path, variant: PlannedVariant, seed: int, factor: float, place: str
    ) -> list[Job]:
        """The job of a variant with a seed, after the one that it begins from."""
        measure = study.to_data()["measure"]
        given: dict[str, Any] = {"variant": variant.name, "seed": seed, "measure": measure}
        config = _scaled(variant.config, factor)
        if variant.then is None:
            return [Job(id=str(folder / place), folder=str(folder / place), config=config, **given)]
        shared = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:10]
        before = str(folder / f"runs/first-{shared}/seed-{seed}")
        first = Job(id=before, folder=before, config=config, shared=True, **given)
        # The second run has learning rates of its own.
        second = Job(
            id=str(folder / place), folder=str(folder / place), config=variant.then, after=before, start=before,
            convert=variant.convert, **given,
        )  # fmt: skip
        return [first, second]

    def save(self, folder: Path) -> None:
        text = json.dumps({"version": VERSION, **asdict(self)}, indent=1)
        replace_file(folder / FILE, lambda beside: beside.write_text(text, encoding="utf-8"))

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """The plan of a study's folder; None if there is none yet."""
        place = folder / FILE
        if not place.is_file():
            return None
        try:
            data = json.loads(place.read_text(encoding="utf-8"))
            if data.pop("version") != VERSION:
                raise InputError(f"{place}: was made by another version of the lab; give --out another folder")
            return cls(**{**data, "variants": [PlannedVariant(**each) for each in data["variants"]]})
        except (ValueError, TypeError, KeyError) as error:
            raise InputError(f"{place}: is no plan of a study: {error}; give --out another folder") from error

    def check_same(self, study: Study, folder: Path, base: Mapping[str, Any] | None = None) -> None:
        """Refuse to go on with another study or, where it can still be read, another base, naming what differs."""
        was, now = (dict(flatten(each)) for each in (self.study, study.to_data()))
        if base is not None and self.base:
            was, now = was | dict(flatten(self.base, "the base")), now | dict(flatten(dict(base), "the base"))
        # Learning rates that were tuned were chosen by the metric.
        free = tuple(name for name in FREE if name != "metric" or not study.tune.factors)
        differ = [
            f"{name}: was {was.get(name, 'not set')!r}, is {now.get(name, 'not set')!r}"
            for name in sorted(was.keys() | now.keys())
            if was.get(name) != now.get(name) and name.split(".")[0].split("[")[0] not in free
        ]
        if differ:
            lines = "\n  ".join([f"{folder} holds another study, and can't be continued as this one:", *differ])
            raise InputError(f"{lines}\nGive --out another folder, or set these back")


def _scaled(data: Mapping[str, Any], factor: float) -> dict[str, Any]:
    if factor == 1.0:
        return dict(data)
    whole = {**data, "run": {**data["run"], "folder": "-"}}
    return config_data(scaled(Config.from_data(whole), factor))


def slugs(names: Sequence[str]) -> list[str]:
    """A folder's name for each variant; different names never share one."""
    found: list[str] = []
    for name in names:
        slug = re.sub(r"[^A-Za-z0-9._=+-]+", "-", name).strip("-.") or "variant"
        if slug != name or slug in found:
            slug = (
                f"{slug[:60]}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"
                if slug in found or len(slug) > 60
                else slug
            )
        found.append(slug)
    return found


def identity_of(base: Run) -> dict[str, Any]:
    """What a study must find unchanged in its base when it is continued."""
    data = config_data(base.config)
    place = Path(base.config.data.folder) / INDEX
    digest = hashlib.sha256(place.read_bytes()).hexdigest() if place.is_file() else ""
    return {"config": {name: data[name] for name in data if name not in ("compute", "run")}, "data": digest}


def plan_of(every: Sequence[Variant], study: Study, **more: Any) -> Plan:
    """A plan of solved variants."""
    named = zip(every, slugs([variant.name for variant in every]), strict=True)
    return Plan(study=study.to_data(), variants=[PlannedVariant.of(each, slug) for each, slug in named], **more)


def with_threads(variant: Variant, threads: int) -> Variant:
    """The same with so many cores for each operation on a CPU, unless the config says how many."""

    def set_in(config: Config) -> Config:
        return config if config.compute.threads else replace(config, compute=replace(config.compute, threads=threads))

    then = None if variant.then is None else replace(variant.then, config=set_in(variant.then.config))
    return replace(variant, run=replace(variant.run, config=set_in(variant.run.config)), then=then)
