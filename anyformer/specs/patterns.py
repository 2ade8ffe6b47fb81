"""Patterns: who may attend to whom, as one predicate on places inside a document.

The dense mask, the number of allowed pairs, the cache horizon and the picture are all derived from it.
Patterns combine with `&` and `|` and are written the same way in a spec: `"causal & chunked(8192)"`.
"""

from __future__ import annotations

import ast
import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple, cast

from anyformer.errors import nearest
from anyformer.specs.axes import Leaf, Problem
from anyformer.specs.cache_policy import Keep
from anyformer.specs.locality import Reach


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

    def evaluated(self) -> Pattern:
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

    def keeps(self) -> Keep:
        """Which keys a cache must keep for later queries."""
        return Keep(recent=self.horizon())

    def check(self, heads: int, context: int) -> Iterator[Problem]:
        """What is wrong with it in a layer of so many heads, for documents of up to `context` tokens."""
        yield from ()

    def in_head(self, head: int) -> Pattern | bool:
        """The pattern of one head where that is a simpler one; True if it sees every key, False if it sees none."""
        return self

    def spelled(self) -> Pattern:
        """The same pattern as simpler ones joined by & and |, if that makes it easier to count."""
        return self

    def grains(self) -> tuple[int, int]:
        """The predicate changes only where a query (a key) passes a multiple of so many positions; 0: nowhere."""
        return 1, 1

    def chosen(self, q: Tokens) -> list[Any] | None:
        """The key grains that each query sees, if they are few and can be listed. -1 means none."""
        return None

    def sizes(self) -> tuple[int, ...]:
        """How many tokens the parts of the pattern span."""
        return tuple(value for value in self._whole().values())

    def shrunk(self, by: float) -> Pattern:
        """The same pattern with its sizes divided, to be drawn on few tokens."""
        return dataclasses.replace(
            cast("Any", self), **{n: max(1, round(v / by)) for n, v in self._whole().items() if v}
        )

    def _whole(self) -> dict[str, int]:
        names = field_names(type(self)) if self.counted is None else self.counted
        return {name: value for name in names if type(value := getattr(self, name)) is int}

    def __and__(self, other: Pattern) -> Pattern:
        return Both(first=self, second=other)

    def __or__(self, other: Pattern) -> Pattern:
        return Either(first=self, second=other)

    def __str__(self) -> str:
        # What has its default is left out, and what comes after a gap is named.
        values: list[str] = []
        gap = False
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

    first: Pattern
    second: Pattern

    def __post_init__(self) -> None:
        self._flag(
            causal=self.joined_causal(), shift_invariant=self.first.shift_invariant and self.second.shift_invariant
        )
        for name in ("needs_length", "per_head", "per_layer", "reads_marks", "repeats"):
            self._flag(**{name: getattr(self.first, name) or getattr(self.second, name)})

    def is_global(self, q: Tokens) -> Any:
        first, second = self.first.is_global(q), self.second.is_global(q)
        if first is None or second is None:
            return second if first is None else first
        return first | second

    def extra(self, q: Tokens) -> Any:
        return (self.first if self.first.repeats else self.second).extra(q)

    def is_repeated(self, k: Tokens) -> Any:
        return (self.first if self.first.repeats else self.second).is_repeated(k)

    def evaluated(self) -> Pattern:
        first, second = self.first.evaluated(), self.second.evaluated()
        return self if (first, second) == (self.first, self.second) else type(self)(first=first, second=second)

    def joined_causal(self) -> bool:
        """Whether the pair is causal."""
        raise TypeError(f"{type(self).__name__} defines no joined_causal()")

    def in_head(self, head: int) -> Pattern | bool:
        first, second = self.first.in_head(head), self.second.in_head(head)
        # What a half that sees all (or nothing) leaves of the other: "&" with all and "|" with nothing leave it whole.
        whole = isinstance(self, Both)
        if isinstance(first, bool):
            return second if first is whole else first
        if isinstance(second, bool):
            return first if second is whole else second
        return self if (first, second) == (self.first, self.second) else type(self)(first=first, second=second)

    def grains(self) -> tuple[int, int]:
        first, second = self.first.grains(), self.second.grains()
        return math.gcd(first[0], second[0]), math.gcd(first[1], second[1])

    def sizes(self) -> tuple[int, ...]:
        return self.first.sizes() + self.second.sizes()

    def shrunk(self, by: float) -> Pattern:
        return type(self)(first=self.first.shrunk(by), second=self.second.shrunk(by))

    def problems(self) -> Iterator[Problem]:
        yield from self._of_halves(lambda part: part.problems())
        if self.first.repeats and self.second.repeats:
            yield (
                "",
                f"'{self.first}' and '{self.second}' both count keys several times; only one part of a pattern can",
            )

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

    def joined_causal(self) -> bool:
        return self.first.causal or self.second.causal

    def allows(self, q: Tokens, k: Tokens) -> Any:
        return self.first.allows(q, k) & self.second.allows(q, k)

    def interval(self, pos: Any, length: int) -> tuple[Any, Any] | None:
        import numpy as np

        a, b = self.first.interval(pos, length), self.second.interval(pos, length)
        return None if a is None or b is None else (np.maximum(a[0], b[0]), np.minimum(a[1], b[1]))

    def horizon(self) -> int | None:
        known = [h for h in (self.first.horizon(), self.second.horizon()) if h is not None]
        return min(known, default=None)

    def ahead(self) -> int | None:
        known = [n for n in (self.first.ahead(), self.second.ahead()) if n is not None]
        return min(known, default=None)

    def prefix(self) -> int | None:
        known = [n for n in (self.first.prefix(), self.second.prefix()) if n is not None]
        return min(known, default=None)

    def reach(self) -> Reach:
        return self.first.reach().meet(self.second.reach())

    def keeps(self) -> Keep:
        return self.first.keeps().meet(self.second.keeps())

    def equation(self) -> str:
        return " and ".join(f"({part.equation() or part})" for part in (self.first, self.second))

    def __str__(self) -> str:
        return f"{_term(self.first)} & {_term(self.second, right=True)}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Either(Pair):
    """Allowed by the first or by the second."""

    def joined_causal(self) -> bool:
        return self.first.causal and self.second.causal

    def allows(self, q: Tokens, k: Tokens) -> Any:
        return self.first.allows(q, k) | self.second.allows(q, k)

    def horizon(self) -> int | None:
        known = [self.first.horizon(), self.second.horizon()]
        return None if None in known else max(h for h in known if h is not None)

    def ahead(self) -> int | None:
        known = [self.first.ahead(), self.second.ahead()]
        return None if None in known else max(n for n in known if n is not None)

    def prefix(self) -> int | None:
        known = [self.first.prefix(), self.second.prefix()]
        return None if None in known else max(n for n in known if n is not None)

    def reach(self) -> Reach:
        return self.first.reach().join(self.second.reach())

    def keeps(self) -> Keep:
        return self.first.keeps().join(self.second.keeps())

    def equation(self) -> str:
        return " or ".join(f"({part.equation() or part})" for part in (self.first, self.second))

    def __str__(self) -> str:
        second = f"({self.second})" if isinstance(self.second, Either) else str(self.second)
        return f"{self.first} | {second}"


def _term(pattern: Pattern, *, right: bool = False) -> str:
    # "&" binds tighter than "|" and both group to the left, as in Python, which parses them.
    wrap = isinstance(pattern, Either) or (right and isinstance(pattern, Both))
    return f"({pattern})" if wrap else str(pattern)


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
