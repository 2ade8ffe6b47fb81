"""What is asked for, and what is known of the files once everything was read once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from anyformer.data.columns import CLASSES, Layout, class_names, find_layout
from anyformer.data.raw import RawFile
from anyformer.data.shards import PARTS
from anyformer.data.sources.format import Format, Record
from anyformer.data.split import Way
from anyformer.data.tokenizer_training import Training
from anyformer.errors import DataError, InputError

SHARD = 2**24
"""Values that fill a shard unless told otherwise."""
Report = Callable[[int, int], None]
Progress = Callable[[str], AbstractContextManager[Report | None]]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is to be made of which files."""

    out: Path
    files: Mapping[str, tuple[RawFile, ...]]
    """The files of each part; "train" is always there."""
    format: Format
    columns: Mapping[str, str] = field(default_factory=dict)
    """The field of each role; unless given, it is found by the names of fields."""
    training: Training | None = None
    """The tokenizer to train on the examples to learn from, or ..."""
    tokenizer: Path | None = None
    """... the one to use."""
    source_training: Training | None = None
    """The same two for the column `source`, where that has a vocabulary of its own; the others are then the target's."""
    source_tokenizer: Path | None = None
    hold_out: Fraction = Fraction(0)
    """The share of the training examples that become the part "valid"."""
    way: Way | None = None
    """How they are chosen; unless given, the end of plain text, and drawn otherwise."""
    key: str | None = None
    """The role whose equal values are never in two parts."""
    shard: int = SHARD

    def __post_init__(self) -> None:
        if self.training is not None and self.tokenizer is not None:
            raise InputError("a tokenizer is trained or given, not both; leave out one of them")
        if self.source_training is not None and self.source_tokenizer is not None:
            raise InputError("a tokenizer of the source is trained or given, not both; leave out one of them")
        if self.two and self.training is None and self.tokenizer is None:
            raise InputError("the source has a tokenizer of its own, and the target has none; train one, or give one")
        if self.hold_out and "valid" in self.files:
            raise InputError("examples for validation are given or held out, not both; leave out one of them")
        if self.key is not None and not self.hold_out:
            raise InputError(
                f"to keep each {self.key} on one side there must be two; hold out a share, e.g. --hold-out 0.1"
            )
        if self.key is not None and self.way == "last":
            raise InputError(f"each {self.key} is kept on one side by drawing; the last examples can't be taken")

    @property
    def two(self) -> bool:
        """Whether source and target have a tokenizer each."""
        return self.source_training is not None or self.source_tokenizer is not None

    @property
    def parts(self) -> list[str]:
        """The parts that the folder will have."""
        return [part for part in PARTS if part in self.files or (part == "valid" and self.hold_out)]

    def records(self, part: str) -> Iterator[Record]:
        """All records of the files of a part."""
        for file in self.files[part]:
            for record in self.format.read(file.lines(), file.name):
                yield record if file.label is None else replace(record, fields={**record.fields, "label": file.label})

    @property
    def labels(self) -> tuple[str, ...]:
        """Classes that files stand for, in the order in which they were given."""
        return tuple(
            dict.fromkeys(file.label for part in self.files.values() for file in part if file.label is not None)
        )


@dataclass(frozen=True, kw_only=True)
class Survey:
    """What is known once everything was read once: nothing is written before."""

    layout: Layout
    names: dict[str, tuple[str, ...]]
    documents: dict[str, int]
    characters: dict[str, int]


def take_survey(plan: Plan, report: Report | None = None) -> Survey:
    """Read everything once: find the columns, check every record, collect names of classes and count."""
    layout: Layout | None = None
    seen: dict[str, set[str]] = {}
    documents, characters = dict.fromkeys(plan.files, 0), dict.fromkeys(plan.files, 0)
    total, done = sum(map(len, plan.files.values())), 0
    for part, some in plan.files.items():
        for file in some:
            for record in Plan(out=plan.out, files={part: (file,)}, format=plan.format).records(part):
                if layout is None:
                    layout = find_layout(record.fields, plan.columns)
                values = layout.values(record)
                characters[part] += sum(map(len, layout.texts(values)))
                documents[part] += not record.more
                for role, kind in layout.kinds.items():
                    if kind in ("class", "tags"):
                        _collect(seen.setdefault(role, set()), values[role], role, record.where)
            done += 1
            if report is not None:
                report(done, total)
    if layout is None:
        some = ", ".join(str(file.path) for file in plan.files["train"][:3])
        raise DataError(f"{some}: there is no example in it; give a file that has some")
    names = {role: plan.labels if role == "label" and plan.labels else class_names(n) for role, n in seen.items()}
    if layout.roles[:3] == ("a", "b", "c") and names["label"] == ("b",):
        names["label"] = ("b", "c")
    return Survey(layout=layout, names=names, documents=documents, characters=characters)


def _collect(seen: set[str], value: Any, role: str, where: str) -> None:
    seen.update(value if isinstance(value, list) else (value,))
    if len(seen) > CLASSES:
        raise DataError(f"{where}: column {role!r} has more than {CLASSES:,} different values; is it a class?")
