"""From the arguments of `ablate`, `sweep` and `scale` to a study: its base, what options change of it, its data, its folder."""

from __future__ import annotations

import argparse
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyformer.cli import tokenize
from anyformer.errors import InputError

if TYPE_CHECKING:
    from anyformer.lab.study import Study

QUICKSTART = "quickstart"
AT_LENGTH = re.compile(r"loss@(\d+)")
NAME = 80
"""Letters of the folder that a study gets unless told otherwise."""


def axis(given: str) -> tuple[str, tuple[Any, ...]]:
    """A type of argument: NAME=V1,V2 or NAME=FIRST..LAST:log:COUNT."""
    from anyformer.lab.ranges import parse_range

    name, equals, values = given.partition("=")
    if not equals or not name.strip():
        raise argparse.ArgumentTypeError(f"{given!r} is not NAME=VALUES, such as position.kind=rope,alibi")
    try:
        return name.strip(), parse_range(values)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def left_out(given: str) -> tuple[str, tuple[Any, ...]]:
    """A type of argument: NAME, or NAME=VALUE with what takes its place."""
    return axis(given) if "=" in given else (given.strip(), ())


def numbers(kind: type) -> Any:
    """A type of argument: numbers between commas."""

    def read(given: str) -> list[Any]:
        try:
            return [kind(each) for each in given.split(",")]
        except ValueError:
            what = "whole numbers" if kind is int else "numbers"
            raise argparse.ArgumentTypeError(f"{given!r} is no list of {what}, such as 1,2,4") from None

    return read


def names(given: str) -> list[str]:
    """A type of argument: names between commas."""
    return [name.strip() for name in given.split(",")]


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What BASE stands for."""

    data: dict[str, Any]
    """The study as plain data, so far."""
    source: str
    """What messages call it."""
    folder: Path | None = None
    """Of a study that was begun before."""
    stem: str = ""
    """What a folder is called after, unless the study has a title."""


def read_base(base: str) -> Asked:
    """A study's folder, a study's file (a TOML whose top level has `base`), or what a new study begins from."""
    from anyformer.lab.experiment import STUDY
    from anyformer.lab.plan import FILE, Plan

    place = Path(base)
    if place.is_dir() and ((place / STUDY).is_file() or (place / FILE).is_file()):
        plan = Plan.read(place)
        data = _toml(place / STUDY) if (place / STUDY).is_file() else dict(plan.study if plan else {})
        return Asked(data=data, source=str(place / STUDY), folder=place)
    if place.suffix == ".toml" and place.is_file():
        data = _toml(place)
        if "base" in data:
            return Asked(data=data, source=base, stem=place.stem)
    if not base.strip():
        raise InputError("BASE: is empty; give a config (.toml), a preset's name, or quickstart")
    if place.is_dir() and not any((place / name).is_file() for name in ("config.toml", "spec.toml", "config.json")):
        raise InputError(f"BASE: {base} is the folder of no study, no run and no model; give one, or a config (.toml)")
    if place.suffix != ".toml" and not place.exists() and base != QUICKSTART:
        from anyformer.families.zoo import named

        named(base)
    return Asked(data={"base": base}, source="the study", stem=place.stem if place.suffix == ".toml" else place.name)


def _toml(place: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(place.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise InputError(f"{place}: can't be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{place} is not TOML: {error}") from error


def override(asked: Asked, given: argparse.Namespace) -> None:
    """Let the options that all three commands have take the place of the study's keys."""
    data = asked.data
    for name in ("budget", "seeds", "metric"):
        if getattr(given, name) is not None:
            data[name] = getattr(given, name)
    if given.changes:
        data["set"] = flat(data.get("set", {})) | dict(given.changes)
    at = AT_LENGTH.fullmatch(str(data.get("metric", "")))
    measure = data.setdefault("measure", {})
    if isinstance(measure, dict) and given.no_speeds:
        measure["speeds"] = False
    if at and isinstance(measure, dict) and int(at[1]) not in measure.get("lengths", []):
        measure["lengths"] = [*measure.get("lengths", []), int(at[1])]


def flat(table: Any) -> dict[str, Any]:
    """A table of a study by dotted names; what is no table is left for whoever reads the study."""
    from anyformer.specs.codec import flatten

    return dict(flatten(table)) if isinstance(table, Mapping) and table else {}


def place_of(asked: Asked, given: argparse.Namespace, study: Study, varied: Sequence[str]) -> Path:
    """The folder of a study: where it was begun, where it is told to be, or one called after what is varied."""
    if asked.folder is not None:
        if given.out is not None and Path(given.out) != asked.folder:
            raise InputError(f"--out: {asked.folder} is a study's folder already, and goes on there; leave --out out")
        return asked.folder
    if given.out is not None:
        return Path(given.out)
    name = study.title or "-".join([asked.stem, *(each.removesuffix(".kind") for each in varied)])
    slug = re.sub(r"[^A-Za-z0-9._=+-]+", "-", name).strip("-.")[:NAME].strip("-.").lower()
    return Path("runs") / (slug or "study")


def with_data(study: Study, folder: Path, given: argparse.Namespace) -> Study:
    """The study with data to train on: made by its base's config, or of a text for a base that has none."""
    from anyformer.lab.study import dotted
    from anyformer.specs.overrides import Overrides

    changes = dotted(study.set)
    if given.text is None and (study.base != QUICKSTART or "data.folder" in changes):
        _make(study.base, changes, quiet=given.json)
        # A second run, or a variant, may be on data of its own.
        for more in (study.then.set if study.then else None, *(bundle.set for bundle in study.variants)):
            own = {} if more is None else dotted(more)
            if "data.make" in own or "data.folder" in own:
                _make(study.base, changes | own, quiet=given.json)
        return study
    from anyformer.lab.standard_text import text_folder

    data = text_folder(folder.parent / "data", given.text, progress=tokenize.progress)
    # All of the held-out part is measured at the end; on the way, a few rows tell enough, and on a CPU they cost time.
    usual = {"data.rows": "stream", "run.eval_batches": 2}
    return replace(study, set=Overrides.of(usual | changes | {"data.folder": str(data)}))


def _make(base: str, changes: Mapping[str, Any], *, quiet: bool) -> None:
    """Make the data of a config by its `data.make`, if they are not there; all else is the lab's to check."""
    place = Path(base) / "config.toml" if Path(base).is_dir() else Path(base)
    told = _toml(place) if place.suffix == ".toml" and place.is_file() else {}
    table = told.get("data")
    data = (table if isinstance(table, dict) else {}) | {
        name.removeprefix("data."): value for name, value in changes.items() if name.startswith("data.")
    }
    if "folder" not in data and table is None and (place.is_file() or place.suffix != ".toml"):
        raise InputError(
            f"BASE: {base} is an architecture, and says nothing of data; give --text FILE, or --set data.folder=DIR with a "
            "folder that anyformer tokenize wrote"
        )
    make, folder = data.get("make"), data.get("folder")
    if isinstance(make, str) and isinstance(folder, str):
        tokenize.make_data(folder, make, quiet=quiet)
