"""Which fields of a record become which columns: texts to encode, words with tags, classes, series of numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from anyformer.data.sources import Record
from anyformer.errors import DataError, InputError, nearest

Kind = Literal["tokens", "words", "tags", "class", "numbers"]

LAYOUTS: tuple[tuple[str, ...], ...] = (
    ("text",),
    ("text", "label"),
    ("source", "target"),
    ("a", "b"),
    ("a", "b", "label"),
    ("a", "b", "c"),
    ("a", "b", "c", "label"),
    ("words", "tags"),
    ("values", "target"),
)
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

    @property
    def has_text(self) -> bool:
        return any(kind in ("tokens", "words") for kind in self.kinds.values())

    def dtypes(self, vocab: int) -> dict[str, str]:
        """Columns as they are stored, and their types."""
        tokens = "uint16" if vocab <= 2**16 else "uint32"
        types = {"tokens": tokens, "words": tokens, "tags": "int32", "class": "int32", "numbers": "float32"}
        return {STORED.get(role, role): types[kind] for role, kind in self.kinds.items()}

    def values(self, record: Record) -> dict[str, Any]:
        """The values of a record by role, checked: texts, lists of words, names of classes, flat lists of numbers."""
        values: dict[str, Any] = {}
        for role, field in self.fields.items():
            if field not in record.fields:
                known = nearest(field, record.fields)
                raise DataError(f"{record.where}: has no field {field!r}, which column {role!r} is read from{known}")
            try:
                values[role] = READ[self.kinds[role]](record.fields[field])
            except ValueError as error:
                raise DataError(f"{record.where}: field {field!r}: {error}") from error
        words, tags = (len(values.get(role, ())) for role in ("words", "tags"))
        if words != tags:
            raise DataError(f"{record.where}: has {words} words and {tags} tags; every word needs one")
        if "label" in self.roles:
            values.setdefault("label", TRIPLET)
        return values

    def texts(self, values: Mapping[str, Any], roles: Iterable[str] | None = None) -> Iterator[str]:
        """What a tokenizer reads of the values of a record; of some roles only, if they are given."""
        for role in self.roles if roles is None else roles:
            if self.kinds[role] == "tokens":
                yield values[role]
            elif self.kinds[role] == "words":
                yield " ".join(values[role])


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


def class_names(seen: Iterable[str]) -> tuple[str, ...]:
    """Names of classes in a fixed order: numbers by size, others by spelling."""
    names = set(seen)
    whole = all(name.removeprefix("-").isdecimal() and name.isascii() for name in names)
    return tuple(sorted(names, key=int) if whole else sorted(names))


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
