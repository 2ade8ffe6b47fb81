"""What differs between two specs, and what that does to their costs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from anyformer.errors import InputError, SpecError
from anyformer.explain.axes import Axis, axes_of
from anyformer.explain.costs import DTYPE, STORED, check_contexts, decodes, usual_contexts
from anyformer.explain.words import some
from anyformer.specs.codec import listed, write
from anyformer.specs.count import Count, dtype_bytes
from anyformer.specs.model import ModelSpec


@dataclass(frozen=True, kw_only=True)
class Change:
    """A number of both models."""

    name: str
    unit: str
    """parameters, FLOP or bytes."""
    before: float
    after: float
    part: bool = False
    """Whether it is a part of the number above it."""

    @property
    def ratio(self) -> float | None:
        """Second over first; None if the first is 0."""
        return self.after / self.before if self.before else None


@dataclass(frozen=True, kw_only=True)
class Field:
    """A field of a spec as both have it, by its dotted name; None where one has no such field."""

    name: str
    before: Any
    after: Any

    @property
    def same(self) -> bool:
        return self.before == self.after


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Two specs side by side."""

    names: tuple[str, str]
    axes: tuple[tuple[Axis, Axis], ...]
    """The axes that differ."""
    same: tuple[tuple[Axis, Axis], ...]
    """Those that mean the same in both, however they are written."""
    fields: tuple[Field, ...]
    """Every field of either, with defaults."""
    contexts: tuple[int, int]
    """At how many tokens each is counted."""
    changes: tuple[Change, ...]

    @property
    def headline(self) -> str:
        if not self.axes:
            return "no axis differs"
        return f"{some(len(self.axes), 'axis', 'axes')} {'differs' if len(self.axes) == 1 else 'differ'}"

    def data(self) -> dict[str, Any]:
        return {
            "names": list(self.names),
            "differ": len(self.axes),
            "axes": [{"axis": a.name, "values": [a.value, b.value]} for a, b in self.axes],
            "same": [{"axis": a.name, "values": [a.value, b.value]} for a, b in self.same],
            "fields": [{"field": f.name, "values": [f.before, f.after], "same": f.same} for f in self.fields],
            "contexts": list(self.contexts),
            "costs": [
                {"name": c.name, "unit": c.unit, "part": c.part, "values": [c.before, c.after], "ratio": c.ratio}
                for c in self.changes
            ],
        }


def difference(first: ModelSpec, second: ModelSpec, names: tuple[str, str], context: int | None = None) -> Difference:
    """Compare two specs, at a context of both (default: the shorter of their own)."""
    pairs = [(a, b, a.same(b)) for a, b in zip(axes_of(first), axes_of(second), strict=True)]
    given, shortest = context is not None, min(first.context, second.context) if context is None else context
    contexts = _context(first, shortest, given=given), _context(second, shortest, given=given)
    return Difference(
        names=names,
        axes=tuple((a, b) for a, b, same in pairs if not same),
        same=tuple((a, b) for a, b, same in pairs if same),
        fields=_fields(first, second),
        contexts=contexts,
        changes=tuple(_changes(first.count(), second.count(), contexts)),
    )


def without_effect(spec: ModelSpec, changes: Mapping[str, Any]) -> list[str]:
    """The changes that leave a spec as it is, each for itself: it has that value already, written or by default."""
    idle: list[str] = []
    for name, value in changes.items():
        try:
            varied = spec.vary({name: value})
        except SpecError:
            # It is possible only together with another.
            continue
        if all(a.same(b) for a, b in zip(axes_of(spec), axes_of(varied), strict=True)):
            idle.append(name)
    return idle


def _fields(first: ModelSpec, second: ModelSpec) -> tuple[Field, ...]:
    """All fields of two specs; a size that is unset, and so derived, says none."""
    before, after = ({".".join(path): value for path, value in listed(write(s, whole=True))} for s in (first, second))
    names = sorted(dict.fromkeys([*before, *after]), key=lambda name: ("." in name, name.split(".")[0]))
    return tuple(Field(name=name, before=before.get(name), after=after.get(name)) for name in names)


def _context(spec: ModelSpec, wanted: int, *, given: bool) -> int:
    """Texts are compared at the same length; an image is as long as it is, unless a length was given for both."""
    try:
        return check_contexts(spec, [wanted])[0]
    except InputError:
        if given:
            raise
        return usual_contexts(spec)[-1]


def _changes(first: Count, second: Count, contexts: tuple[int, int]) -> list[Change]:
    def both(name: str, unit: str, measure: Callable[[Count, int], float], *, part: bool = False) -> Change:
        before, after = (measure(count, n) for count, n in zip((first, second), contexts, strict=True))
        return Change(name=name, unit=unit, before=before, after=after, part=part)

    found = [both("parameters", "parameters", lambda count, _: count.params)]
    for part in dict.fromkeys([*first.params_by_part, *second.params_by_part]):
        found.append(both(part, "parameters", lambda count, _, part=part: count.params_by_part.get(part, 0), part=True))
    found.append(both("FLOPs per token", "FLOP", lambda count, n: count.flops_per_token(n)))
    for part in ("projections", "scores", "ffn", "embed", "head"):
        change = both(part, "FLOP", lambda count, n, part=part: getattr(count.flops(n), part) / n, part=True)
        found += [change] if change.before or change.after else []
    if decodes(first.spec) or decodes(second.spec):
        name = f"KV cache ({DTYPE})"
        found.append(both(name, "bytes", lambda count, n: count.kv_bytes(n, DTYPE) if decodes(count.spec) else 0))
    for dtype in STORED:
        size = dtype_bytes(dtype)
        found.append(both(f"weights ({dtype})", "bytes", lambda count, _, size=size: count.params * size))
    return found
