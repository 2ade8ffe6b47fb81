"""What is asked for: columns, held-out examples, tokenizers; and what is known of the files after one reading."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from anyformer.data.corpus import RawFile
from anyformer.data.shards import PARTS
from anyformer.data.sources import Format, Record
from anyformer.data.tokenizer_training import Training
from anyformer.errors import DataError, InputError, nearest

Kind = Literal["tokens", "words", "tags", "class", "numbers"]

_LAYOUTS = "text, text label, source target, a b, a b label, a b c, a b c label, words tags, values target"
LAYOUTS = tuple(tuple(roles.split()) for roles in _LAYOUTS.split(", "))
"""What an example can be made of."""

CLASSES = 100_000
"""More names of classes than this are taken for a mistake."""
STORED = {"text": "tokens", "words": "tokens"}
"""Fields whose column has another name."""
LARGEST = 3.4028234e38
"""The largest number of 32 bits."""
TRIPLET = "b"
"""The class of a triplet that has none: `a` is nearer to `b`."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Roles and the fields that have them."""

    fields: Mapping[str, str]
    """The field of a record for each role (text, source, label ...)."""

    @cached_property
    def kinds(self) -> dict[str, Kind]:
        fixed: dict[str, Kind] = {"words": "words", "tags": "tags", "label": "class", "values": "numbers"}
        if "values" in self.fields:
            fixed["target"] = "numbers"
        return {role: fixed.get(role, "tokens") for role in self.roles}

    @cached_property
    def roles(self) -> tuple[str, ...]:
        """The roles in order; a triplet always has a label."""
        roles = tuple(self.fields)
        return (*roles, "label") if roles == ("a", "b", "c") else roles

    @cached_property
    def texts(self) -> list[str]:
        """Roles that a tokenizer reads."""
        return [role for role, kind in self.kinds.items() if kind in ("tokens", "words")]

    def dtypes(self, vocab: int) -> dict[str, str]:
        """Columns as they are stored, and their types."""
        tokens = "uint16" if vocab <= 2**16 else "uint32"
        types = {"tokens": tokens, "words": tokens, "tags": "int32", "class": "int32", "numbers": "float32"}
        return {STORED.get(role, role): types[kind] for role, kind in self.kinds.items()}

    def values(self, record: Record) -> dict[str, Any]:
        """The values of a record by role, checked: texts, lists of words, names of classes, flat lists of numbers."""
        values: dict[str, Any] = {}
        for role, name in self.fields.items():
            if name not in record.fields:
                known = nearest(name, record.fields)
                raise DataError(f"{record.where}: has no field {name!r}, which column {role!r} is read from{known}")
            try:
                values[role] = READ[self.kinds[role]](record.fields[name])
            except ValueError as error:
                raise DataError(f"{record.where}: field {name!r}: {error}") from error
        words, tags = (len(values.get(role, ())) for role in ("words", "tags"))
        if words != tags:
            raise DataError(f"{record.where}: has {words} words and {tags} tags; every word needs one")
        if "label" in self.roles:
            values.setdefault("label", TRIPLET)
        return values

    def text(self, values: Mapping[str, Any], role: str) -> str:
        """What a tokenizer reads of the values of a record."""
        return values[role] if self.kinds[role] == "tokens" else " ".join(values[role])

    def characters(self, values: Mapping[str, Any]) -> int:
        return sum(len(self.text(values, role)) for role in self.texts)


def find_layout(available: Iterable[str], asked: Mapping[str, str]) -> Layout:
    """The layout that was asked for, or the largest whose roles are all names of fields."""
    available = list(available)
    if asked:
        for roles in LAYOUTS:
            if set(roles) == set(asked):
                return Layout(fields={role: asked[role] for role in roles})
        known = "; ".join(" ".join(roles) for roles in LAYOUTS)
        raise InputError(f"no example is made of {' '.join(asked)}; columns go together in these ways: {known}")
    # Fields of a table without names: two of them are what pairs look like.
    if available == ["1", "2"]:
        return Layout(fields={"source": "1", "target": "2"})
    for roles in sorted(LAYOUTS, key=len, reverse=True):
        if set(roles) <= set(available):
            return Layout(fields={role: role for role in roles})
    if not available:
        raise InputError("the first record has no fields")
    listed = ", ".join(available)
    raise InputError(f"which fields are to be read? A record has {listed}; say e.g. --column text={available[0]}")


def class_names(names: set[str]) -> list[str]:
    """Names of classes in a fixed order: numbers by size, others by spelling."""
    whole = all(name.removeprefix("-").isdecimal() and name.isascii() for name in names)
    return sorted(names, key=int if whole else None)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{type(value).__name__} is given, and a text is needed")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"character {error.start} is half of a UTF-16 pair and no character") from error
    return value


def _words(value: Any) -> list[str]:
    if not isinstance(value, list):
        raise ValueError(f"{type(value).__name__} is given, and a list of texts is needed")
    return [_text(word) for word in value]


def _class(value: Any) -> str:
    if isinstance(value, int):
        return str(value).lower() if isinstance(value, bool) else str(value)
    if not isinstance(value, str) or not value:
        raise ValueError(f"{value!r} is given, and the name or number of a class is needed")
    return _text(value)


def _numbers(value: Any) -> list[float]:
    """Numbers of any depth of lists, flat: steps, and channels within each."""
    if isinstance(value, str):
        # A field of a table: numbers with blanks or commas between them.
        value = [float(number) for number in value.replace(",", " ").split()]
    if isinstance(value, list):
        return [number for inner in value for number in _numbers(inner)]
    # Numbers are stored in 32 bits, where a larger one would be infinite; and what is no number is below none.
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= LARGEST:
        raise ValueError(f"{value!r} is given, and a finite number is needed, of at most {LARGEST:.2g}")
    return [float(value)]


READ = {"tokens": _text, "words": _words, "tags": _words, "class": _class, "numbers": _numbers}


Way = Literal["last", "drawn"]


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """The last characters of one text, the last documents of several, or examples drawn by a hash of what they hold."""

    layout: Layout
    share: Fraction
    key: str | None = None
    """The role whose value is hashed, so that equal values are on one side; unless given, the whole example."""
    cut: int | None = None
    """The character at which one long text is cut."""
    first: int | None = None
    """The first document that is held out."""

    def choose(self, records: Iterable[Record], *, held: bool) -> Iterator[Record]:
        """The records of one side."""
        if self.cut is not None:
            yield from _divided(records, self.layout.fields["text"], self.cut, held=held)
            return
        number, begins, inside = -1, True, False
        for record in records:
            if begins:
                number += 1
                inside = number >= self.first if self.first is not None else self._drawn(record)
            begins = not record.more
            if inside == held:
                yield record

    def _drawn(self, record: Record) -> bool:
        values = self.layout.values(record)
        hashed = json.dumps(values if self.key is None else values[self.key], sort_keys=True)
        return int.from_bytes(hashlib.sha256(hashed.encode()).digest()[:8], "big") < int(self.share * 2**64)


def _divided(records: Iterable[Record], field: str, cut: int, *, held: bool) -> Iterator[Record]:
    """One side of a long text that is cut at a character."""
    for record in records:
        text, at = record.fields[field], max(cut, 0)
        if held and at < len(text):
            yield replace(record, fields={**record.fields, field: text[at:]}, where=record.after(text[:at]))
        elif not held and at > len(text):
            yield record
        elif not held:
            if at:
                yield replace(record, fields={**record.fields, field: text[:at]}, more=False)
            return
        cut -= len(text)


SHARD = 2**24
"""Values that fill a shard unless told otherwise."""
Report = Callable[[int, int], None]
Progress = Callable[[str], AbstractContextManager[Report]]


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
        source = self.source_training is not None and self.source_tokenizer is not None
        if source or (self.training is not None and self.tokenizer is not None):
            which = "a tokenizer of the source" if source else "a tokenizer"
            raise InputError(f"{which} is trained or given, not both; leave out one of them")
        if self.two and self.training is None and self.tokenizer is None:
            raise InputError("the source has a tokenizer of its own, and the target has none; train one, or give one")
        if self.hold_out and "valid" in self.files:
            raise InputError("examples for validation are given or held out, not both; leave out one of them")
        if self.key is not None and not self.hold_out:
            two = f"to keep each {self.key} on one side there must be two"
            raise InputError(f"{two}; hold out a share, e.g. --hold-out 0.1")
        if self.key is not None and self.way == "last":
            raise InputError(f"each {self.key} is kept on one side by drawing; the last examples can't be taken")

    @property
    def two(self) -> bool:
        """Whether source and target have a tokenizer each."""
        return self.source_training is not None or self.source_tokenizer is not None

    @property
    def parts(self) -> list[str]:
        return [part for part in PARTS if part in self.files or (part == "valid" and self.hold_out)]

    def records(self, part: str) -> Iterator[Record]:
        return chain.from_iterable(map(self.read, self.files[part]))

    def read(self, file: RawFile) -> Iterator[Record]:
        """The records of one file."""
        for record in self.format.read(file.lines(), file.name):
            yield record if file.label is None else replace(record, fields={**record.fields, "label": file.label})

    @property
    def labels(self) -> list[str]:
        """Classes that files stand for, in the order in which they were given."""
        labels = dict.fromkeys(file.label for part in self.files.values() for file in part)
        return [label for label in labels if label is not None]


@dataclass(frozen=True, kw_only=True)
class Survey:
    """What is known once everything was read once: nothing is written before."""

    fields: dict[str, str]
    """The field of a record for each role."""
    names: dict[str, list[str]]
    """Names of the classes of each role that has some."""
    documents: dict[str, int]
    characters: dict[str, int]

    @cached_property
    def layout(self) -> Layout:
        return Layout(fields=self.fields)


def take_survey(plan: Plan, report: Report = lambda done, total: None) -> Survey:
    """Read everything once: find the columns, check every record, collect names of classes and count."""
    layout: Layout | None = None
    seen: dict[str, set[str]] = {}
    documents, characters = dict.fromkeys(plan.files, 0), dict.fromkeys(plan.files, 0)
    total, done = sum(map(len, plan.files.values())), 0
    for part, some in plan.files.items():
        for file in some:
            for record in plan.read(file):
                if layout is None:
                    layout = find_layout(record.fields, plan.columns)
                values = layout.values(record)
                characters[part] += layout.characters(values)
                documents[part] += not record.more
                for role in (role for role, kind in layout.kinds.items() if kind in ("class", "tags")):
                    names = seen.setdefault(role, set())
                    names.update(values[role] if isinstance(values[role], list) else [values[role]])
                    if len(names) > CLASSES:
                        found = f"column {role!r} has more than {CLASSES:,} different values"
                        raise DataError(f"{record.where}: {found}; is it a class?")
            done += 1
            report(done, total)
    if layout is None:
        some = ", ".join(str(file.path) for file in plan.files["train"][:3])
        raise DataError(f"{some}: there is no example in it; give a file that has some")
    known = {role: class_names(some) for role, some in seen.items()}
    if "label" in known and plan.labels:
        known["label"] = plan.labels
    if layout.roles[:3] == ("a", "b", "c") and known["label"] == ["b"]:
        known["label"] = ["b", "c"]
    return Survey(fields=dict(layout.fields), names=known, documents=documents, characters=characters)


def find_held_out(plan: Plan, survey: Survey) -> HeldOut | None:
    """The rule by which a share of the training examples is held out; None if none are."""
    if not plan.hold_out:
        return None
    layout, share, key = survey.layout, plan.hold_out, plan.key
    documents, characters = survey.documents["train"], survey.characters["train"]
    if key is not None and key not in layout.fields:
        raise InputError(f"there is no column {key!r} to keep on one side; columns are {', '.join(layout.fields)}")
    way = plan.way or ("last" if plan.format.ordered and not plan.labels and key is None else "drawn")
    if way == "drawn":
        return HeldOut(layout=layout, share=share, key=key)
    if documents == 1 and "text" in layout.fields:
        return HeldOut(layout=layout, share=share, cut=int(characters * (1 - share)))
    # From the end, documents are held out until they are the share; the first one is always learned from. Series of
    # numbers have no characters: each counts as much as any other.
    first, number, seen, total = 1, 0, 0, characters or documents
    for record in plan.records("train"):
        seen += layout.characters(layout.values(record)) if characters else 1
        if not record.more:
            if number and total - seen < share * total:
                first = number
                break
            number += 1
    return HeldOut(layout=layout, share=share, first=first)
