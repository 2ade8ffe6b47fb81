"""Patterns: who may attend to whom, as one predicate on places inside a document.

The dense mask, the number of allowed pairs, the cache horizon and the picture are all derived from it.
Patterns combine with `&` and `|` and are written the same way in a spec: `"causal & chunked(8192)"`.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple, cast

from anyformer.errors import nearest
from anyformer.specs.axes import Leaf, Problem


class Tokens(NamedTuple):
    """Where tokens are: numbers or arrays that broadcast, queries against keys."""

    pos: Any
    document: Any = 0
    length: Any = None


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

    def allows(self, q: Tokens, k: Tokens) -> Any:
        """Whether each query may see each key."""
        raise TypeError(f"{type(self).__name__} defines no allows()")

    def interval(self, pos: Any, length: int) -> tuple[Any, Any] | None:
        """First and last key position that a query at `pos` sees in a document, if they form an interval."""
        return None

    def horizon(self) -> int | None:
        """How many positions back (itself included) a later query can still see; None if all."""
        return None

    def sizes(self) -> tuple[int, ...]:
        """Its numbers that count tokens: all whole numbers, unless a leaf says otherwise."""
        return tuple(value for value in self._whole().values())

    def shrunk(self, by: float) -> Pattern:
        """The same pattern with its sizes divided, to be drawn on few tokens."""
        return dataclasses.replace(
            cast("Any", self), **{n: max(1, round(v / by)) for n, v in self._whole().items() if v}
        )

    def _whole(self) -> dict[str, int]:
        return {name: value for name in field_names(type(self)) if type(value := getattr(self, name)) is int}

    def __and__(self, other: Pattern) -> Pattern:
        return Both(first=self, second=other)

    def __or__(self, other: Pattern) -> Pattern:
        return Either(first=self, second=other)

    def __str__(self) -> str:
        values = [repr(getattr(self, name)) for name in field_names(type(self))]
        return f"{self.kind}({', '.join(values)})" if values else self.kind


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pair(Pattern):
    """Two patterns joined by an operator."""

    first: Pattern
    second: Pattern

    def __post_init__(self) -> None:
        object.__setattr__(self, "causal", self.joined_causal())
        object.__setattr__(self, "shift_invariant", self.first.shift_invariant and self.second.shift_invariant)
        object.__setattr__(self, "needs_length", self.first.needs_length or self.second.needs_length)

    def joined_causal(self) -> bool:
        """Whether the pair is causal."""
        raise TypeError(f"{type(self).__name__} defines no joined_causal()")

    def sizes(self) -> tuple[int, ...]:
        return self.first.sizes() + self.second.sizes()

    def shrunk(self, by: float) -> Pattern:
        return type(self)(first=self.first.shrunk(by), second=self.second.shrunk(by))

    def problems(self) -> Iterator[Problem]:
        # A field of one half has no dotted name of its own: the whole pattern is one text.
        for part in (self.first, self.second):
            for name, message in part.problems():
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
