"""Kinds of values that a field may have: each reads one, says what is wrong with it, and describes itself as JSON Schema."""

import abc
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

SHOWN = 60
"""Characters of a value that a message repeats."""


class Wrong(Exception):
    """A value that a field can't have."""

    def __init__(self, where: str, message: str, code: str = "invalid_value") -> None:
        super().__init__(f"{where}: {message}")
        self.where, self.code = where, code


def shown(value: Any) -> str:
    """A value as a message repeats it: short, and JSON as the client wrote it."""
    if isinstance(value, str) and len(value) > SHOWN:
        return f"a text of {len(value):,} characters"
    if isinstance(value, list):
        return f"a list of {len(value):,}" if len(value) > 4 else json.dumps(value)[: SHOWN + 20]
    if isinstance(value, dict):
        return f"an object with {len(value):,} keys"
    if type(value) is int and abs(value) >= 10**20:
        return "a number of more than 20 digits"
    return json.dumps(value)


class Kind(abc.ABC):
    """What a value must be."""

    @abc.abstractmethod
    def read(self, value: Any, where: str) -> Any:
        """The value, checked; raises `Wrong`."""

    @abc.abstractmethod
    def schema(self) -> dict[str, Any]:
        """The same as JSON Schema."""

    @abc.abstractmethod
    def words(self) -> str:
        """The same in words: "a whole number from 0 to 20"."""

    def refuse(self, value: Any, where: str) -> Wrong:
        """What to raise about a value of another kind."""
        return Wrong(where, f"expected {self.words()}, got {shown(value)}", "invalid_type")


@dataclass(frozen=True)
class Whole(Kind):
    """A whole number in bounds."""

    low: int
    high: int

    def read(self, value: Any, where: str) -> int:
        if type(value) is not int:
            raise self.refuse(value, where)
        if not self.low <= value <= self.high:
            raise Wrong(where, f"{shown(value)} is not {self.words()}")
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "integer", "minimum": self.low, "maximum": self.high}

    def words(self) -> str:
        return f"a whole number from {self.low:,} to {self.high:,}"


@dataclass(frozen=True)
class Number(Kind):
    """A finite number in bounds; `above` leaves the lower one out."""

    low: float
    high: float
    above: bool = False

    def read(self, value: Any, where: str) -> float:
        if type(value) not in (int, float):
            raise self.refuse(value, where)
        # A whole number may be too large for a float, but not for a comparison with one; NaN fails both.
        if not ((self.low < value if self.above else self.low <= value) and value <= self.high):
            raise Wrong(where, f"{shown(value)} is not {self.words()}")
        return float(value)

    def schema(self) -> dict[str, Any]:
        return {"type": "number", "exclusiveMinimum" if self.above else "minimum": self.low, "maximum": self.high}

    def words(self) -> str:
        return f"a number {'above' if self.above else 'from'} {self.low:g} {'and at most' if self.above else 'to'} {self.high:g}"


@dataclass(frozen=True)
class Flag(Kind):
    """true or false."""

    def read(self, value: Any, where: str) -> bool:
        if not isinstance(value, bool):
            raise self.refuse(value, where)
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "boolean"}

    def words(self) -> str:
        return "true or false"


@dataclass(frozen=True)
class Text(Kind):
    """A text of bounded length."""

    most: int
    least: int = 0

    def read(self, value: Any, where: str) -> str:
        if not isinstance(value, str):
            raise self.refuse(value, where)
        if not self.least <= len(value) <= self.most:
            raise Wrong(where, f"{len(value):,} characters; {self.words()} is allowed")
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "maxLength": self.most} | ({"minLength": self.least} if self.least else {})

    def words(self) -> str:
        return f"a text of {self.least:,} to {self.most:,} characters" if self.least else f"a text of at most {self.most:,} characters"  # fmt: skip


@dataclass(frozen=True)
class OneOf(Kind):
    """One of some words."""

    options: tuple[str, ...]

    def read(self, value: Any, where: str) -> str:
        if not isinstance(value, str):
            raise self.refuse(value, where)
        if value not in self.options:
            raise Wrong(where, f"{shown(value)} is not {self.words()}")
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "enum": list(self.options)}

    def words(self) -> str:
        return "one of " + ", ".join(map(repr, self.options))


@dataclass(frozen=True)
class Items(Kind):
    """A list of values of one kind."""

    of: Kind
    most: int
    least: int = 0

    def read(self, value: Any, where: str) -> list[Any]:
        if not isinstance(value, list):
            raise self.refuse(value, where)
        if not self.least <= len(value) <= self.most:
            raise Wrong(where, f"a list of {len(value):,}; {self._bounds()} allowed")
        return self.each(value, where)

    def each(self, value: list[Any], where: str) -> list[Any]:
        """Every item, read."""
        read = self.of.read
        return [read(one, f"{where}[{i}]") for i, one in enumerate(value)]

    def schema(self) -> dict[str, Any]:
        return {"type": "array", "items": self.of.schema(), "minItems": self.least, "maxItems": self.most}

    def words(self) -> str:
        return f"a list of {self._bounds()}, each {self.of.words()}"

    def _bounds(self) -> str:
        return f"{self.least:,} to {self.most:,}"


@dataclass(frozen=True)
class TokenIds(Items):
    """Ids of a vocabulary."""

    vocab: int = 0

    def each(self, value: list[Any], where: str) -> list[int]:
        for i, one in enumerate(value):
            # Inlined, as a prompt may have thousands.
            if type(one) is not int or not 0 <= one < self.vocab:
                raise Wrong(f"{where}[{i}]", f"{shown(one)} is not a token id from 0 to {self.vocab - 1:,}")
        return value


def token_ids(vocab: int, most: int, least: int = 1) -> TokenIds:
    """A list of token ids."""
    return TokenIds(Whole(0, vocab - 1), most, least, vocab)


@dataclass(frozen=True)
class Either(Kind):
    """A value of any of some kinds: the first that is of its JSON type is asked."""

    kinds: tuple[Kind, ...]

    def read(self, value: Any, where: str) -> Any:
        wrong: list[Wrong] = []
        for kind in self.kinds:
            try:
                return kind.read(value, where)
            except Wrong as problem:
                wrong.append(problem)
        # The kind that was meant is the one that got deepest; one of the right type says more than one of another.
        best = max(wrong, key=lambda each: (each.where.count("[") + each.where.count("."), each.code != "invalid_type"))
        raise best if best.code != "invalid_type" or best.where != where else self.refuse(value, where)

    def schema(self) -> dict[str, Any]:
        return {"anyOf": [kind.schema() for kind in self.kinds]}

    def words(self) -> str:
        return ", or ".join(kind.words() for kind in self.kinds)


@dataclass(frozen=True)
class Anything(Kind):
    """Any JSON, up to so many bytes when written down."""

    most: int
    type: str | None = None
    """"object" or "array": nothing else."""

    def read(self, value: Any, where: str) -> Any:
        types = {"object": dict, "array": list}
        if self.type is not None and not isinstance(value, types[self.type]):
            raise self.refuse(value, where)
        # What is far too large need not be written down to be refused.
        size = least_size(value, self.most)
        if size <= self.most:
            size = len(json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass"))
        if size > self.most:
            raise Wrong(where, f"more than {self.most:,} bytes, which are the most that are allowed")
        return value

    def schema(self) -> dict[str, Any]:
        return {} if self.type is None else {"type": self.type}

    def words(self) -> str:
        return f"{'any JSON' if self.type is None else f'an {self.type}'} of at most {self.most:,} bytes"


def least_size(value: Any, most: int) -> int:
    """Bytes that a value takes as JSON at least; more than `most` are not counted."""
    size, todo = 0, [value]
    while todo and size <= most:
        each = todo.pop()
        if isinstance(each, str):
            size += len(each) + 2
        elif isinstance(each, dict):
            size += 2 + sum(len(name) + 3 for name in each)
            todo += each.values()
        elif isinstance(each, list):
            size += 2 + len(each)
            todo += each
        else:
            size += 1
    return size


@dataclass(frozen=True)
class LogitBias(Kind):
    """{id: bias}, as OpenAI has it; ids are keys of an object, so they come as texts."""

    vocab: int
    most: int
    far: float = 100.0

    def read(self, value: Any, where: str) -> dict[str, float]:
        if not isinstance(value, dict):
            raise self.refuse(value, where)
        if len(value) > self.most:
            raise Wrong(where, f"{len(value):,} entries; at most {self.most:,} are allowed")
        found: dict[str, float] = {}
        for key, bias in value.items():
            token = int(key) if key.isascii() and key.isdecimal() and len(key) < 12 else -1
            if not 0 <= token < self.vocab:
                raise Wrong(f"{where}.{key[:SHOWN]}", f"is not a token id from 0 to {self.vocab - 1:,}")
            found[str(token)] = Number(-self.far, self.far).read(bias, f"{where}.{key}")
        return found

    def schema(self) -> dict[str, Any]:
        return {
            "type": "object", "additionalProperties": {"type": "number", "minimum": -self.far, "maximum": self.far},
            "maxProperties": self.most,
        }  # fmt: skip

    def words(self) -> str:
        return f"an object of token ids and numbers from {-self.far:g} to {self.far:g}"


@dataclass(frozen=True)
class Neutral(Kind):
    """A field that is known but not served: only values that change nothing are taken."""

    values: tuple[Any, ...]
    why: str

    def read(self, value: Any, where: str) -> Any:
        if not any(value == one and type(value) is type(one) for one in self.values):
            raise Wrong(where, f"{shown(value)} is not supported here: {self.why}", "unsupported_value")
        return value

    def schema(self) -> dict[str, Any]:
        return {"enum": list(self.values), "description": f"Not supported: {self.why}."}

    def words(self) -> str:
        return f"nothing, or one of {', '.join(map(json.dumps, self.values))}"


@dataclass(frozen=True)
class Ignored(Kind):
    """A field that is read and has no effect on the answer, such as who asks."""

    of: Kind

    def read(self, value: Any, where: str) -> Any:
        return self.of.read(value, where)

    def schema(self) -> dict[str, Any]:
        return self.of.schema() | {"description": "Accepted; it does not change the answer."}

    def words(self) -> str:
        return self.of.words()


@dataclass(frozen=True)
class Field:
    """A named value of a request."""

    name: str
    kind: Kind
    doc: str = ""
    default: Any = None
    """What an absent field, or null, means."""
    required: bool = False


@dataclass(frozen=True)
class Record(Kind):
    """An object with known fields; any other name is refused, with the nearest right one."""

    fields: tuple[Field, ...]
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Names that people bring from elsewhere, and what to write instead."""

    def read(self, value: Any, where: str) -> dict[str, Any]:
        found, wrong = self.collect(value, where)
        if wrong:
            raise wrong[0]
        return found

    def collect(self, value: Any, where: str) -> tuple[dict[str, Any], list[Wrong]]:
        """All fields that could be read, and all that is wrong."""
        if not isinstance(value, dict):
            return {}, [self.refuse(value, where or "body")]
        found: dict[str, Any] = {}
        wrong: list[Wrong] = []
        before = f"{where}." if where else ""
        for each in self.fields:
            given = value.get(each.name)
            if given is None:
                if each.required:
                    wrong.append(Wrong(before + each.name, f"is missing; expected {each.kind.words()}", "missing_required_parameter"))  # fmt: skip
                found[each.name] = each.default
                continue
            try:
                found[each.name] = each.kind.read(given, before + each.name)
            except Wrong as problem:
                wrong.append(problem)
                found[each.name] = each.default
        if len(value) > len(found) or not value.keys() <= found.keys():
            wrong += self._unknown([name for name in value if name not in found], before)
        return found, wrong

    def _unknown(self, names: Sequence[str], before: str) -> list[Wrong]:
        known = [each.name for each in self.fields]
        found: list[Wrong] = []
        for name in names[:8]:
            hint = self.renamed.get(name) or near(name, known)
            found.append(Wrong(before + name[:SHOWN], f"is no parameter of this request{hint}", "unknown_parameter"))
        return found

    def schema(self) -> dict[str, Any]:
        properties = {
            each.name: each.kind.schema()
            | ({"description": each.doc} if each.doc else {})
            | ({} if each.default is None else {"default": each.default})
            for each in self.fields
        }
        needed = [each.name for each in self.fields if each.required]
        return {"type": "object", "properties": properties, "additionalProperties": False} | (
            {"required": needed} if needed else {}
        )

    def words(self) -> str:
        return "an object with " + ", ".join(each.name for each in self.fields[:8])


def near(name: str, known: Sequence[str]) -> str:
    """A clause that names the nearest known word, or nothing."""
    import difflib

    match = difflib.get_close_matches(name.lower()[:SHOWN], known, n=1, cutoff=0.6)
    return f"; did you mean {match[0]!r}?" if match else ""
