"""Patterns: who may attend to whom, as one predicate on places inside a document.

The dense mask, the number of allowed pairs, the cache horizon and the picture are all derived from it.
Patterns combine with `&` and `|` and are written the same way in a spec: `"causal & chunked(8192)"`.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

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

    def __and__(self, other: Pattern) -> Pattern:
        return Both(first=self, second=other)

    def __or__(self, other: Pattern) -> Pattern:
        return Either(first=self, second=other)

    def __str__(self) -> str:
        fields = [getattr(self, f.name) for f in dataclasses.fields(self)]  # type: ignore[arg-type]
        return f"{self.kind}({', '.join(map(repr, fields))})" if fields else self.kind


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pair(Pattern):
    """Two patterns joined by an operator."""

    first: Pattern
    second: Pattern

    @property
    def shift_invariant(self) -> bool:  # type: ignore[override]
        return self.first.shift_invariant and self.second.shift_invariant

    @property
    def needs_length(self) -> bool:  # type: ignore[override]
        return self.first.needs_length or self.second.needs_length

    def problems(self) -> Iterator[Problem]:
        yield from self.first.problems()
        yield from self.second.problems()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Both(Pair):
    """Allowed by the first and by the second."""

    @property
    def causal(self) -> bool:  # type: ignore[override]
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

    def __str__(self) -> str:
        return f"{_term(self.first)} & {_term(self.second, right=True)}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Either(Pair):
    """Allowed by the first or by the second."""

    @property
    def causal(self) -> bool:  # type: ignore[override]
        return self.first.causal and self.second.causal

    def allows(self, q: Tokens, k: Tokens) -> Any:
        return self.first.allows(q, k) | self.second.allows(q, k)

    def horizon(self) -> int | None:
        known = [self.first.horizon(), self.second.horizon()]
        return None if None in known else max(h for h in known if h is not None)

    def __str__(self) -> str:
        second = f"({self.second})" if isinstance(self.second, Either) else str(self.second)
        return f"{self.first} | {second}"


def _term(pattern: Pattern, *, right: bool = False) -> str:
    # "&" binds tighter than "|" and both group to the left, as in Python, which parses them.
    wrap = isinstance(pattern, Either) or (right and isinstance(pattern, Both))
    return f"({pattern})" if wrap else str(pattern)


class PatternTextError(ValueError):
    """A pattern expression that can't be read."""


def parse(text: str) -> Pattern:
    """Read `causal & (window(128) | chunked(64))`."""
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except SyntaxError as error:
        raise PatternTextError(f"{text!r} is not a pattern; write kinds joined by & and |") from error
    return _read(tree.body, text)


def _read(node: ast.expr, text: str) -> Pattern:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd | ast.BitOr):
        first, second = _read(node.left, text), _read(node.right, text)
        return first & second if isinstance(node.op, ast.BitAnd) else first | second
    if isinstance(node, ast.Name):
        return _leaf(node.id, [], {})
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        try:
            values = [ast.literal_eval(a) for a in node.args]
            named = {str(k.arg): ast.literal_eval(k.value) for k in node.keywords}
        except ValueError as error:
            raise PatternTextError(f"{text!r}: arguments must be plain numbers or strings") from error
        return _leaf(node.func.id, values, named)
    raise PatternTextError(f"{text!r} is not a pattern; write kinds joined by & and |, such as 'causal & chunked(64)'")


def _leaf(kind: str, values: list[Any], named: dict[str, Any]) -> Pattern:
    leaf = Pattern.named(kind)
    if leaf is None:
        raise PatternTextError(f"{kind!r} is unknown{nearest(kind, Pattern.kinds())}")
    fields = [f.name for f in dataclasses.fields(leaf)]  # type: ignore[arg-type]
    given = dict(zip(fields, values, strict=False)) | named
    unknown = [n for n in named if n not in fields]
    missing = [f.name for f in dataclasses.fields(leaf) if f.name not in given and f.default is dataclasses.MISSING]  # type: ignore[arg-type]
    if unknown or missing or len(values) > len(fields):
        raise PatternTextError(f"{kind} takes ({', '.join(fields)}), got {len(values)} values and {sorted(named)}")
    return leaf(**given)
