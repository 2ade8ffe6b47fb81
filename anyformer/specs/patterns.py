"""Patterns: who may attend to whom, as one predicate on places inside a document.

The dense mask, the number of allowed pairs, the cache horizon and the picture are all derived from it.
Patterns combine with `&` and `|` and are written the same way in a spec: `"causal & chunked(8192)"`.
"""

import ast
import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple, cast

from anyformer.errors import nearest
from anyformer.specs.axes import Leaf, Problem
from anyformer.specs.cache_policy import CachePolicy

Limit = Callable[[int | None, int | None], int | None]
"""What two limits (None: none) leave together."""


def _least(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else min(a, b)


def _most(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else max(a, b)


class Reach(NamedTuple):
    """How far from a query its keys can be: every allowed pair lies within `back` and `ahead`, or its query or its key
    is one of a few tokens apart, which see or are seen everywhere.
    """

    back: int | None
    """Positions back, the query's own included; None: no limit."""
    ahead: int | None
    """Positions after the query; None: no limit."""
    first: int = 0
    """So many of a document's first tokens are apart."""
    marks: bool = False
    """So are the marked ones."""

    @property
    def bounded(self) -> bool:
        """Whether there is a limit on both sides."""
        return self.back is not None and self.ahead is not None

    @property
    def apart(self) -> bool:
        """Whether any tokens are apart."""
        return self.first > 0 or self.marks

    def meet(self, other: "Reach") -> "Reach":
        """Of pairs that two patterns allow both."""
        for one, rest in ((self, other), (other, self)):
            if one.bounded and not one.apart and rest.apart:
                # What the other allows beyond, this one does not.
                return one
        return self.join(other, _least)

    def join(self, other: "Reach", limit: Limit = _most) -> "Reach":
        """Of pairs that one of two patterns allows."""
        back, ahead = limit(self.back, other.back), limit(self.ahead, other.ahead)
        return Reach(back, ahead, max(self.first, other.first), self.marks or other.marks)


class Tokens(NamedTuple):
    """Where tokens are: numbers or arrays that broadcast, queries against keys."""

    pos: Any
    document: Any = 0
    length: Any = None
    """Real tokens of the document, if a pattern reads it."""
    head: Any = 0
    layer: int = 0
    marked: Any = False
    """Whether the token was marked with `global_mask`."""


class Pattern(Leaf, axis="pattern", leaves="anyformer.parts.patterns"):
    """A predicate on the places of a query and a key. Written with operators only, so that it serves
    plain numbers, numpy arrays and tensors alike.
    """

    causal: ClassVar[bool] = False
    """True if no key after the query is ever allowed."""
    shift_invariant: ClassVar[bool] = True
    """True if only the distance of query and key matters."""
    needs_length: ClassVar[bool] = False
    """True if the predicate reads the document's length."""
    per_head: ClassVar[bool] = False
    """True if heads differ."""
    per_layer: ClassVar[bool] = False
    """True if layers differ though their specs are equal (a random pattern)."""
    reads_marks: ClassVar[bool] = False
    """True if the predicate reads which tokens were marked with `global_mask`."""
    repeats: ClassVar[bool] = False
    """True if some keys count several times in the softmax (see `extra`)."""
    counted: ClassVar[tuple[str, ...] | None] = None
    """Fields that count tokens; None: every whole number does."""
    blocks: ClassVar[str] = ""
    """The field with the tokens of a block, if only the block of a query and of a key matters."""

    def _flag(self, **flags: bool) -> None:
        """Sets flags of this pattern alone, where they follow from its fields."""
        for name, value in flags.items():
            object.__setattr__(self, name, value)

    def allows(self, q: Tokens, k: Tokens) -> Any:
        """Whether each query may see each key."""
        raise TypeError(f"{type(self).__name__} defines no allows()")

    def extra(self, q: Tokens) -> Any:
        """How many more times than once each query counts the keys that are repeated."""
        return 0 * q.pos

    def is_repeated(self, k: Tokens) -> Any:
        """Which keys those are."""
        return k.pos < 0

    def evaluated(self) -> "Pattern":
        """The pattern of a model in eval mode, where that is another one than in training."""
        return self

    def interval(self, pos: Any, length: int) -> tuple[Any, Any] | None:
        """First and last key position that a query at `pos` sees in a document, if they form an interval."""
        return None

    def horizon(self) -> int | None:
        """How many positions back (itself included) a later query can still see; None if all."""
        return None

    def ahead(self) -> int | None:
        """How many positions after itself a query can see; None if there is no limit."""
        return 0 if self.causal else None

    def prefix(self) -> int | None:
        """How many of a document's first tokens may see later ones, all of them among these: 0 if it is causal, None
        if there is no such number.
        """
        return 0 if self.causal else None

    def is_global(self, q: Tokens) -> Any:
        """Which queries are global tokens; None if the pattern knows none."""
        return None

    def reach(self) -> Reach:
        """Where a query's keys can be; tokens that see or are seen everywhere are apart."""
        return Reach(self.horizon(), self.ahead())

    def keeps(self) -> CachePolicy:
        """Which keys a cache must keep for later queries."""
        return CachePolicy(recent=self.horizon())

    def check(self, heads: int, context: int) -> Iterator[Problem]:
        """What is wrong with it in a layer of so many heads, for documents of up to `context` tokens."""
        yield from ()

    def in_head(self, head: int) -> "Pattern | bool":
        """The pattern of one head where that is a simpler one; True if it sees every key, False if it sees none."""
        return self

    def spelled(self) -> "Pattern":
        """The same pattern as simpler ones joined by & and |, if that makes it easier to count."""
        return self

    def grains(self) -> tuple[int, int]:
        """The predicate changes only where a query (a key) passes a multiple of so many positions; 0: nowhere."""
        size = getattr(self, self.blocks) if self.blocks else 1
        return size, size

    def chosen(self, q: Tokens) -> list[Any] | None:
        """The key grains that each query sees, if they are few and can be listed. -1 means none."""
        return None

    def sizes(self) -> tuple[int, ...]:
        """How many tokens the parts of the pattern span."""
        return (4 * self.grains()[0],) if self.blocks else tuple(self._whole().values())

    def shrunk(self, by: float) -> "Pattern":
        """The same pattern with its sizes divided, to be drawn on few tokens."""
        smaller = {name: max(1, round(value / by)) for name, value in self._whole().items() if value}
        return dataclasses.replace(cast("Any", self), **smaller)

    def _whole(self) -> dict[str, int]:
        names = field_names(type(self)) if self.counted is None else self.counted
        return {name: value for name in names if type(value := getattr(self, name)) is int}

    def __and__(self, other: "Pattern") -> "Pattern":
        return Both(first=self, second=other)

    def __or__(self, other: "Pattern") -> "Pattern":
        return Either(first=self, second=other)

    def __str__(self) -> str:
        # What has its default is left out, and what comes after a gap is named.
        values, gap = list[str](), False
        for field in dataclasses.fields(cast("Any", type(self))):
            value = getattr(self, field.name)
            if value == field.default and type(value) is type(field.default):
                gap = True
            else:
                values.append(f"{field.name}={value!r}" if gap else repr(value))
        return f"{self.kind}({', '.join(values)})" if values else self.kind


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pair(Pattern):
    """Two patterns joined by an operator."""

    word: ClassVar[str]
    limit: ClassVar[Limit]
    first: Pattern
    second: Pattern

    def __post_init__(self) -> None:
        halves, both = (self.first, self.second), isinstance(self, Both)
        causal = [half.causal for half in halves]
        self._flag(causal=any(causal) if both else all(causal), shift_invariant=all(h.shift_invariant for h in halves))
        for name in ("needs_length", "per_head", "per_layer", "reads_marks", "repeats"):
            self._flag(**{name: any(getattr(half, name) for half in halves)})

    def horizon(self) -> int | None:
        return self.limit(self.first.horizon(), self.second.horizon())

    def ahead(self) -> int | None:
        return self.limit(self.first.ahead(), self.second.ahead())

    def prefix(self) -> int | None:
        return self.limit(self.first.prefix(), self.second.prefix())

    def equation(self) -> str:
        return f" {self.word} ".join(f"({part.equation() or part})" for part in (self.first, self.second))

    def is_global(self, q: Tokens) -> Any:
        first, second = self.first.is_global(q), self.second.is_global(q)
        if first is None or second is None:
            return second if first is None else first
        return first | second

    def extra(self, q: Tokens) -> Any:
        return (self.first if self.first.repeats else self.second).extra(q)

    def is_repeated(self, k: Tokens) -> Any:
        return (self.first if self.first.repeats else self.second).is_repeated(k)

    def _with(self, first: Pattern, second: Pattern) -> Pattern:
        return self if (first, second) == (self.first, self.second) else type(self)(first=first, second=second)

    def evaluated(self) -> Pattern:
        return self._with(self.first.evaluated(), self.second.evaluated())

    def in_head(self, head: int) -> Pattern | bool:
        first, second = self.first.in_head(head), self.second.in_head(head)
        # What a half that sees all (or nothing) leaves of the other: "&" with all and "|" with nothing leave it whole.
        whole = isinstance(self, Both)
        if isinstance(first, bool):
            return second if first is whole else first
        if isinstance(second, bool):
            return first if second is whole else second
        return self._with(first, second)

    def grains(self) -> tuple[int, int]:
        first, second = self.first.grains(), self.second.grains()
        return math.gcd(first[0], second[0]), math.gcd(first[1], second[1])

    def sizes(self) -> tuple[int, ...]:
        return self.first.sizes() + self.second.sizes()

    def shrunk(self, by: float) -> Pattern:
        return self._with(self.first.shrunk(by), self.second.shrunk(by))

    def problems(self) -> Iterator[Problem]:
        yield from self._of_halves(lambda part: part.problems())
        if self.first.repeats and self.second.repeats:
            both = f"'{self.first}' and '{self.second}' both count keys several times"
            yield "", f"{both}; only one part of a pattern can"

    def check(self, heads: int, context: int) -> Iterator[Problem]:
        yield from self._of_halves(lambda part: part.check(heads, context))

    def _of_halves(self, ask: Callable[[Pattern], Iterator[Problem]]) -> Iterator[Problem]:
        # A field of one half has no dotted name of its own: the whole pattern is one text.
        for part in (self.first, self.second):
            for name, message in ask(part):
                yield "", f"{name} of '{part}': {message}" if name else message


@dataclasses.dataclass(frozen=True, kw_only=True)
class Both(Pair):
    """Allowed by the first and by the second."""

    word, limit = "and", staticmethod(_least)

    def allows(self, q: Tokens, k: Tokens) -> Any:
        return self.first.allows(q, k) & self.second.allows(q, k)

    def interval(self, pos: Any, length: int) -> tuple[Any, Any] | None:
        import numpy as np

        a, b = self.first.interval(pos, length), self.second.interval(pos, length)
        return None if a is None or b is None else (np.maximum(a[0], b[0]), np.minimum(a[1], b[1]))

    def reach(self) -> Reach:
        return self.first.reach().meet(self.second.reach())

    def keeps(self) -> CachePolicy:
        return self.first.keeps().meet(self.second.keeps())

    def __str__(self) -> str:
        # "&" binds tighter than "|" and both group to the left, as in Python, which parses them.
        first = f"({self.first})" if isinstance(self.first, Either) else str(self.first)
        return f"{first} & {f'({self.second})' if isinstance(self.second, Pair) else self.second}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Either(Pair):
    """Allowed by the first or by the second."""

    word, limit = "or", staticmethod(_most)

    def allows(self, q: Tokens, k: Tokens) -> Any:
        return self.first.allows(q, k) | self.second.allows(q, k)

    def reach(self) -> Reach:
        return self.first.reach().join(self.second.reach())

    def keeps(self) -> CachePolicy:
        return self.first.keeps().join(self.second.keeps())

    def __str__(self) -> str:
        return f"{self.first} | {f'({self.second})' if isinstance(self.second, Either) else self.second}"


def field_names(leaf: type[Pattern]) -> list[str]:
    """The names of a pattern's fields, in the order in which its text lists their values."""
    return [f.name for f in dataclasses.fields(cast("Any", leaf))]


class PatternTextError(ValueError):
    """A pattern expression that can't be read."""


Make = Callable[[type[Pattern], dict[str, Any]], Pattern]
"""A leaf from the values of its fields, which nobody has checked yet."""


def parse(text: str, make: Make) -> Pattern:
    """Read `causal & (window(128) | chunked(64))`."""
    try:
        return _read(ast.parse(text.strip(), mode="eval").body, text, make)
    except PatternTextError:
        raise
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise PatternTextError(f"{text!r} is not a pattern; write kinds joined by & and |") from error


def _read(node: ast.expr, text: str, make: Make) -> Pattern:
    match node:
        case ast.BinOp(left=left, op=ast.BitAnd(), right=right):
            return _read(left, text, make) & _read(right, text, make)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _read(left, text, make) | _read(right, text, make)
        case ast.Name(id=kind):
            return _leaf(kind, [], {}, make)
        case ast.Call(func=ast.Name(id=kind), args=args, keywords=keywords):
            try:
                values = [ast.literal_eval(a) for a in args]
                if any(k.arg is None for k in keywords):
                    raise ValueError("a table can't be spread here")
                named = {str(k.arg): ast.literal_eval(k.value) for k in keywords}
            except ValueError as error:
                raise PatternTextError(f"{text!r}: arguments must be plain numbers or texts") from error
            return _leaf(kind, values, named, make)
        case _:
            example = "such as 'causal & chunked(64)'"
            raise PatternTextError(f"{text!r} is not a pattern; write kinds joined by & and |, {example}")


def _leaf(kind: str, values: list[Any], named: dict[str, Any], make: Make) -> Pattern:
    leaf = Pattern.named(kind)
    if leaf is None:
        raise PatternTextError(f"{kind!r} is unknown{nearest(kind, Pattern.kinds())}")
    names = field_names(leaf)
    if len(values) > len(names) or set(names[: len(values)]) & named.keys():
        given = ", ".join([*map(repr, values), *(f"{name}={value!r}" for name, value in named.items())])
        raise PatternTextError(f"{kind} takes ({', '.join(names)}), got ({given})")
    return make(leaf, dict(zip(names, values, strict=False)) | named)
