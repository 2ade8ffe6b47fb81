"""RoPE in a published config: `rope_theta` and `rope_scaling` as they were, or `rope_parameters` as they are now."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from anyformer.families.config_keys import Key, Values, flag, number, numbers, table, text, whole
from anyformer.parts.positions.rope import Rope
from anyformer.parts.positions.rope_scaling import DynamicNtk, Linear, Llama3, LongRope, RopeScaling, Yarn
from anyformer.specs.axes import Position
from anyformer.specs.codec import Problems

ROPE_KEYS: dict[str, Key] = {
    "rope_theta": number(None),
    "rope_scaling": table(),
    "rope_parameters": table(),
    "partial_rotary_factor": number(None),
}

SHARED: dict[str, Key] = {
    "rope_type": text("default"),
    "type": text("default"),
    "rope_theta": number(None),
    "partial_rotary_factor": number(None),
}
TRAINED: dict[str, Key] = {"original_max_position_embeddings": whole(None)}
GAIN: dict[str, Key] = {"attention_factor": number(None)}
TYPES: dict[str, dict[str, Key]] = {
    "default": {},
    "linear": {"factor": number(None)},
    "dynamic": TRAINED | {"factor": number(None)},
    "llama3": TRAINED | {"factor": number(None), "low_freq_factor": number(None), "high_freq_factor": number(None)},
    "yarn": TRAINED
    | GAIN
    | {
        "factor": number(None),
        "beta_fast": number(None),
        "beta_slow": number(None),
        "mscale": number(None),
        "mscale_all_dim": number(None),
        "truncate": flag(True),
    },
    "longrope": TRAINED | GAIN | {"factor": number(None), "short_factor": numbers(), "long_factor": numbers()},
}
"""Published type of a scaling -> the keys that it reads."""


def read_rope(
    c: Values,
    *,
    context: int,
    theta: float = 10000.0,
    fraction: float | None = None,
    original: int | None = None,
    kinds: Sequence[str] = tuple(TYPES),
) -> dict[str, Any]:
    """RoPE as changes of a spec.

    `theta` and `fraction` are what absent keys mean; a `fraction` of None says that the family always turns whole
    heads. `original` is the trained length where a family states it outside of the table, `kinds` the scalings that
    its public class has.
    """
    forms = {name: c[name] for name in ("rope_parameters", "rope_scaling") if c[name]} or {"rope_theta": {}}
    found: list[dict[str, Any]] = []
    for name, given in forms.items():
        kind = given.get("rope_type", given.get("type", "default"))
        kind = "longrope" if kind == "su" else kind
        if any(isinstance(value, Mapping) for value in given.values()):
            c.refuse(name, "has a table for each kind of layer, which this family does not read")
        elif kind not in kinds:
            c.refuse(name, f"{kind!r} is a scaling that we don't have here (known: {', '.join(kinds)})")
        else:
            found.append(_read(c, name, kind, given, context, theta, fraction or 1.0, original))
    if found and found[0] != found[-1]:
        c.refuse("rope_scaling", "says something else than rope_parameters; keep one of them")
    if fraction is None and found and found[0].get("position.fraction", 1.0) != 1.0:
        c.refuse("partial_rotary_factor", "is not 1, but this family turns whole heads")
    return found[0] if found else {}


def read_ropes(c: Values, *, context: int, thetas: Mapping[str, tuple[str, float]]) -> dict[str, dict[str, Any]]:
    """RoPE of each kind of layer, as changes of a spec, where a family has a table for each in `rope_parameters`.

    `thetas` gives for each kind the key that stood for its theta when there were no tables, and what an absent one
    means. `rope_scaling` of that time belongs to the first kind.
    """
    given = c["rope_parameters"] or {}
    odd = [name for name, value in given.items() if name not in thetas or not isinstance(value, Mapping | None)]
    if odd:
        c.refuse("rope_parameters", f"{odd[0]!r} is no table of a kind of layer (known: {', '.join(thetas)})")
        return {}
    found: dict[str, dict[str, Any]] = {}
    for i, (layer, (key, theta)) in enumerate(thetas.items()):
        table = dict(given.get(layer) or {})
        old = dict(c["rope_scaling"] or {}) if i == 0 else {}
        forms = {f"rope_parameters.{layer}": table} if table or not old else {}
        forms |= {"rope_scaling": old} if old else {}
        read = []
        for name, form in forms.items():
            kind = form.get("rope_type", form.get("type", "default"))
            if kind not in TYPES:
                c.refuse(name, f"{kind!r} is a scaling that we don't have here (known: {', '.join(TYPES)})")
            else:
                read.append(_read(c, name, kind, form, context, theta, 1.0, None, key=key))
        if read and read[0].get("position.scaling") != read[-1].get("position.scaling"):
            c.refuse("rope_scaling", "says something else than rope_parameters; keep one of them")
        if read and read[0].get("position.fraction", 1.0) != 1.0:
            c.refuse("partial_rotary_factor", "is not 1, but this family turns whole heads")
        found[layer] = read[0] if read else {}
    return found


def _read(
    c: Values,
    where: str,
    kind: str,
    given: Mapping[str, Any],
    context: int,
    theta: float,
    fraction: float,
    original: int | None,
    *,
    key: str = "rope_theta",
) -> dict[str, Any]:
    values = Values(given, SHARED | TYPES[kind], Problems(), c.reads)
    made = (
        {}
        if values.problems.found
        else {
            "position.kind": "rope",
            "position.theta": float(_one_of(c, key, values, "rope_theta", theta)),
            "position.fraction": float(_one_of(c, "partial_rotary_factor", values, "partial_rotary_factor", fraction)),
            "position.scaling": _scaling(values, kind, context, original),
        }
    )
    c.take(where, values)
    return made


def _one_of(c: Values, name: str, inside: Values, inner: str, default: float) -> float:
    """A number that may stand in the table, beside it, or nowhere."""
    found = [value for value in (inside[inner], c[name]) if value is not None]
    if found and found[0] != found[-1]:
        c.refuse(name, f"is {c[name]} beside the table and {inside[inner]} in it; keep one of them")
    return found[0] if found else default


def _scaling(v: Values, kind: str, context: int, original: int | None) -> dict[str, Any] | None:
    def needed(name: str) -> Any:
        if v[name] is None:
            v.problems.add(name, f"is missing; {kind!r} scaling needs it")
        return 1.0 if v[name] is None else v[name]

    if kind == "default":
        return None
    if kind == "linear":
        return {"kind": kind, "factor": needed("factor")}
    trained = original or v["original_max_position_embeddings"] or context
    if trained < 1 or context < 1:
        v.problems.add("original_max_position_embeddings", f"{trained} is not at least 1")
        return None
    made: dict[str, Any] = {"kind": kind, "original": trained}
    if kind == "dynamic":
        if trained != context:
            v.refuse("original_max_position_embeddings", f"{trained} is not max_position_embeddings={context}")
        return made | {"factor": needed("factor")}
    if kind == "llama3":
        low, high = needed("low_freq_factor"), needed("high_freq_factor")
        return made | {"factor": needed("factor"), "low": low, "high": high}
    factor, gain = v["factor"], v["attention_factor"]
    if kind == "longrope":
        factor = max(context / trained, 1.0) if factor is None else factor
        made |= {"short": needed("short_factor"), "long": needed("long_factor")}
    else:
        factor = context / trained if factor is None else factor
        if gain is None and v["mscale"] and v["mscale_all_dim"]:
            gain = _mscale(factor, v["mscale"]) / _mscale(factor, v["mscale_all_dim"])
        made |= {"beta_fast": v["beta_fast"] or 32.0, "beta_slow": v["beta_slow"] or 1.0, "truncate": v["truncate"]}
    return made | {"factor": factor, "attention_factor": gain}


def _mscale(factor: float, strength: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * strength * math.log(factor) + 1.0


def share_of(position: Position, head_dim: int) -> float:
    """The share of a head that turns; all of it where the position is no RoPE, which reading back will then name."""
    if not isinstance(position, Rope):
        return 1.0
    return position.fraction if position.dims is None else position.dims / head_dim


def write_rope(position: Position, *, fraction: float | None = None) -> dict[str, Any]:
    """The keys of a RoPE, in both forms; none for another position, which reading back will then name.

    `fraction` is the share of a head that turns, where the family can say one.
    """
    if not isinstance(position, Rope):
        return {}
    share = {} if fraction is None else {"partial_rotary_factor": fraction}
    scaling = _written(position.scaling)
    parameters = {"rope_type": "default"} | scaling | {"rope_theta": position.theta} | share
    old = scaling | {"type": scaling["rope_type"]} if scaling else None
    return {"rope_theta": position.theta, "rope_scaling": old, "rope_parameters": parameters} | share


def write_ropes(positions: Mapping[str, Position], keys: Sequence[str]) -> dict[str, Any]:
    """The keys of the RoPE of each kind of layer, in both forms; `keys` are the old ones of their thetas."""
    written = {layer: write_rope(position) for layer, position in positions.items()}
    tables = {layer: given.get("rope_parameters") for layer, given in written.items()}
    old = {key: given.get("rope_theta") for key, given in zip(keys, written.values(), strict=False)}
    return {"rope_parameters": tables, "rope_scaling": next(iter(written.values())).get("rope_scaling")} | old


def _written(scaling: RopeScaling | None) -> dict[str, Any]:
    match scaling:
        case Linear(factor=factor):
            return {"rope_type": "linear", "factor": factor}
        case DynamicNtk(factor=factor):
            return {"rope_type": "dynamic", "factor": factor}
        case Llama3() as s:
            return {
                "rope_type": "llama3", "factor": s.factor, "original_max_position_embeddings": s.original,
                "low_freq_factor": s.low, "high_freq_factor": s.high,
            }  # fmt: skip
        case Yarn() as s:
            gain = {} if s.attention_factor is None else {"attention_factor": s.attention_factor}
            return {
                "rope_type": "yarn", "factor": s.factor, "original_max_position_embeddings": s.original,
                "beta_fast": s.beta_fast, "beta_slow": s.beta_slow, "truncate": s.truncate,
            } | gain  # fmt: skip
        case LongRope() as s:
            gain = {} if s.attention_factor is None else {"attention_factor": s.attention_factor}
            return {
                "rope_type": "longrope", "factor": s.factor, "original_max_position_embeddings": s.original,
                "short_factor": list(s.short), "long_factor": list(s.long),
            } | gain  # fmt: skip
        case _:
            return {}
