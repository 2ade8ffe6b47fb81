"""A ladder of sizes: one spec, smaller or larger, with its proportions kept; and the tokens that each size is trained on.

Width and depth grow together (Kaplan et al. 2020 found their ratio to matter little, so that it is best left alone), heads
keep their size and feed-forwards their share of the width. Loads no torch.
"""

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from anyformer.errors import InputError, SpecError
from anyformer.specs.model import ModelSpec

End = Literal["largest", "smallest"]
ENDS: tuple[End, ...] = ("largest", "smallest")
SPREAD = 3
"""How many numbers of heads, and of layers, on either side of the wanted one are tried."""
ASPECT = 0.5
"""What another ratio of width to depth counts beside another number of parameters, both as logarithms."""
REGROUPED = 0.6
"""The same for another number of query heads to a key head."""
ROUND = 64
"""A feed-forward width stays a multiple of this, or of the largest power of two below that divides the given one."""


def sizes(spec: ModelSpec, steps: int, factor: float, *, end: End = "largest") -> list[ModelSpec]:
    """So many specs from the smallest to the largest, each of about `factor` times the parameters of the one before.

    `end` says which of them the given spec is, as it is. Parameters are all of them, tables and head too.
    """
    return [spec.vary(changes) if changes else spec for changes in size_changes(spec, steps, factor, end=end)]


def size_changes(spec: ModelSpec, steps: int, factor: float, *, end: End = "largest") -> list[dict[str, Any]]:
    """The same as changes of the given spec, by dotted names; none for the spec itself."""
    if end not in ENDS:
        raise InputError(f"end: {end!r} is not one of {', '.join(ENDS)}")
    if steps < 1 or not (math.isfinite(factor) and factor > 1):
        raise InputError(
            f"a ladder of {steps} steps by a factor of {factor:g} can't be; give 1 step or more, and a factor above 1"
        )
    params = spec.count().params
    exponents = range(1 - steps, 1) if end == "largest" else range(steps)
    return [_nearest(spec, params * factor**power, factor) if power else {} for power in exponents]


def tokens_for(spec: ModelSpec, per_param: float = 20.0) -> int:
    """Tokens for a size: so many for each parameter that a token uses; of about 20, all compute is spent well (Hoffmann
    et al. 2022).
    """
    if not (math.isfinite(per_param) and per_param > 0):
        raise InputError(f"per_param: {per_param!r} is not above 0")
    return max(1, round(per_param * spec.count().active_params))


def _nearest(spec: ModelSpec, target: float, factor: float) -> dict[str, Any]:
    """The changes that lead to about so many parameters."""
    heads, aspect = spec.attention.heads, spec.width / spec.depth
    scale = _scale(spec, target)
    best: tuple[float, dict[str, Any]] | None = None
    why, valid = "", False
    for more, deep in itertools.product(_around(scale * heads), _around(scale * spec.depth)):
        if spec.width * more % heads:
            continue
        changes = resized(spec, more, deep)
        try:
            found = spec.vary(changes)
        except SpecError as error:
            why = error.problems[0]
            continue
        valid = True
        off = abs(math.log(found.count().params / target))
        if off > math.log(factor) / 2:
            continue
        score = off + ASPECT * abs(math.log(found.width / found.depth / aspect))
        if spec.attention.kv_heads != 1:
            score += REGROUPED * abs(math.log(_group(found) / _group(spec)))
        if best is None or score < best[0]:
            best = score, changes
    if best is None:
        reason = why if why and not valid else "heads and layers are whole, and keep their proportions"
        raise InputError(
            f"there is no size of about {target:,.0f} parameters of this spec (width {spec.width}, {heads} heads, "
            f"{spec.depth} layers): {reason}; take fewer steps or another factor"
        )
    return best[1]


def _group(spec: ModelSpec) -> float:
    """Query heads to a key head."""
    return spec.attention.heads / (spec.attention.kv_heads or spec.attention.heads)


def _scale(spec: ModelSpec, target: float) -> float:
    """By what width and depth are multiplied: tables and head grow with the width, all else with its square and, where
    layers have parameters of their own, with the depth.
    """
    named = spec.count().weights.values()
    ends = sum(w.size for w in named if w.role in ("embedding", "position_embedding", "head"))
    blocks = sum(w.size for w in named) - ends
    power = 2 if any(stack.shared for stack in spec.stacks) else 3
    low, high = 1e-6, 1e6
    for _ in range(100):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if ends * middle + blocks * middle**power < target else (low, middle)
    return low


def _around(wanted: float) -> range:
    """Whole numbers near one."""
    return range(max(1, math.floor(wanted) - SPREAD), math.ceil(wanted) + SPREAD + 1)


def resized(spec: ModelSpec, heads: int, depth: int) -> dict[str, Any]:
    """What makes a spec that of another size, in the spec itself and wherever layers or stacks say otherwise."""
    changes: dict[str, Any] = {"width": spec.width * heads // spec.attention.heads}
    data = spec.to_data()
    for prefix, table in (("", data), *_otherwise(data)):
        changes |= {f"{prefix}{name}": value for name, value in _sizes_in(spec, table, heads, depth)}
    return changes


def _otherwise(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Tables of overrides with their names: of stacks, and of groups of layers."""
    for name in ("encoder", "decoder"):
        if isinstance(table.get(name), Mapping):
            yield f"{prefix}{name}.", table[name]
            yield from _otherwise(table[name], f"{prefix}{name}.")
    for name, group in (table.get("layers") or {}).items():
        if isinstance(group, Mapping):
            yield f"{prefix}layers.{name}.", group


def _sizes_in(spec: ModelSpec, table: Mapping[str, Any], heads: int, depth: int) -> Iterator[tuple[str, Any]]:
    """The sizes that a table has, as those of another size."""
    share = heads / spec.attention.heads
    attention, ffn = (table[name] if isinstance(table.get(name), Mapping) else {} for name in ("attention", "ffn"))
    if "depth" in table:
        yield "depth", max(1, round(table["depth"] * depth / spec.depth))
    if "heads" in attention:
        yield "attention.heads", max(1, round(attention["heads"] * share))
    if "kv_heads" in attention:
        own = attention.get("heads", spec.attention.heads)
        yield "attention.kv_heads", _kv_heads(own, attention["kv_heads"], max(1, round(own * share)))
    for name in ("width", "shared_width"):
        if name in ffn:
            step = math.gcd(ffn[name], ROUND)
            yield f"ffn.{name}", max(1, round(ffn[name] * share / step)) * step


def _kv_heads(heads: int, kv_heads: int, more: int) -> int:
    """Key heads for another number of query heads: the same group size if it divides them, else the nearest that does."""
    wanted = 1 if kv_heads == 1 else more * kv_heads / heads
    divisors = (n for n in range(1, more + 1) if more % n == 0)
    return min(divisors, key=lambda n: abs(math.log(n / wanted)))
