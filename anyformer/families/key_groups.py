"""Keys of a published config that mean something together: those of RoPE, and of layers that differ.

RoPE stands there as `rope_theta` and `rope_scaling`, as it was, or as `rope_parameters`, as it is now. Layers differ by
sliding windows, and by whatever else goes with a kind of layer.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Protocol

from anyformer.families.config_keys import NUMBERS, TABLE, TEXTS, Key, SpecView, flag, number, text, whole
from anyformer.families.config_values import Values, without
from anyformer.parts.positions.rope import Rope
from anyformer.specs.axes import Position
from anyformer.specs.codec import Problems
from anyformer.specs.model import ModelSpec
from anyformer.specs.stacks import DEEPEST, pattern_of

ROPE_KEYS: dict[str, Key] = {
    "rope_theta": number(None),
    "rope_scaling": TABLE,
    "rope_parameters": TABLE,
    "partial_rotary_factor": number(None),
}

ORIGINAL = "original_max_position_embeddings"
OURS = {
    ORIGINAL: "original", "low_freq_factor": "low", "high_freq_factor": "high", "short_factor": "short",
    "long_factor": "long",
}  # fmt: skip
NAMES: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", ORIGINAL, "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor", ORIGINAL, "beta_fast", "beta_slow", "truncate", "attention_factor"),
    "longrope": ("factor", ORIGINAL, "short_factor", "long_factor", "attention_factor"),
}
SCALINGS = {kind: {name: OURS.get(name, name) for name in names} for kind, names in NAMES.items()}
"""Type of a scaling, published and ours -> its keys, and our fields."""
STRETCHED = {name: number(None) for name in ("alpha", "beta_fast", "beta_slow", "mscale", "mscale_all_dim")}
"""Keys of a dynamic table whose `alpha` stretches theta; the others change nothing there (Hunyuan)."""
READ_ONLY = {"dynamic": (ORIGINAL,), "yarn": ("mscale", "mscale_all_dim")}
"""Keys that say in other words what is written."""
SHARED: dict[str, Key] = {name: text("default") for name in ("rope_type", "type")} | {
    name: number(None) for name in ("rope_theta", "partial_rotary_factor")
}
OTHER_TYPES = {ORIGINAL: whole(None), "truncate": flag(True), "short_factor": NUMBERS, "long_factor": NUMBERS}
"""Keys of a scaling that hold something else than a number."""


NOPE = {"position.kind": "none"}
"""What a layer without any position has."""


def read_ropes(
    c: Values, thetas: Mapping[str, tuple[str, float]], more: Mapping[str, Key] | None = None, *, nope: bool = False
) -> dict[str, dict[str, Any]]:
    """RoPE of each kind of layer, as changes of a spec, where a family has a table for each in `rope_parameters`.

    `thetas` gives for each kind the key that stood for its theta when there were no tables, and what an absent one
    means. `rope_scaling` of that time belongs to the first kind. `more` are keys of a table that change nothing;
    with `nope`, null instead of a table means that such layers have no position.
    """
    given = c["rope_parameters"] or {}
    odd = [name for name, value in given.items() if name not in thetas or not isinstance(value, Mapping | None)]
    if odd:
        c.refuse("rope_parameters", f"{odd[0]!r} is no table of a kind of layer (known: {', '.join(thetas)})")
        return {}
    found: dict[str, dict[str, Any]] = {}
    for i, (layer, (key, theta)) in enumerate(thetas.items()):
        if nope and given.get(layer, {}) is None:
            found[layer] = dict(NOPE)
            continue
        own, old = given.get(layer) or {}, (c["rope_scaling"] or {}) if i == 0 else {}
        forms = {f"rope_parameters.{layer}": own} if own or not old else {}
        forms |= {"rope_scaling": old} if old else {}
        read = [_read(c, name, form, theta, key=key, more=more) for name, form in forms.items()]
        found[layer] = _agreed(c, [made for made in read if made], only="position.scaling")
    return found


def _agreed(
    c: Values, found: Sequence[dict[str, Any]], *, whole_heads: bool = True, only: str | None = None
) -> dict[str, Any]:
    """What both forms say; of one field only, or of all."""
    first, last = ({}, {}) if not found else (found[0], found[-1])
    if first != last if only is None else first.get(only) != last.get(only):
        c.refuse("rope_scaling", "says something else than rope_parameters; keep one of them")
    if whole_heads and first.get("position.fraction", 1.0) != 1.0:
        c.refuse("partial_rotary_factor", "is not 1, but this family rotates whole heads")
    return first


def _read(
    c: Values, where: str, given: Mapping[str, Any], theta: float, fraction: float = 1.0, original: int | None = None,
    kinds: Sequence[str] = tuple(SCALINGS), key: str = "rope_theta", more: Mapping[str, Key] | None = None,
) -> dict[str, Any]:  # fmt: skip
    kind = given.get("rope_type", given.get("type", "default"))
    kind = "longrope" if kind == "su" else kind
    if kind not in kinds:
        c.refuse(where, f"{kind!r} is a scaling that we don't have here (known: {', '.join(kinds)})")
        return {}
    names = (*SCALINGS[kind], *READ_ONLY.get(kind, ()))
    known = {**SHARED, **(more or {}), **{name: OTHER_TYPES.get(name, number(None)) for name in names}}
    values = Values(given, known, Problems(), c.reads)
    made: dict[str, Any] = {}
    if not values.problems.found:
        base = float(_one_of(c, key, values, "rope_theta", theta))
        if kind == "dynamic" and values.get("alpha"):
            kind, base = "default", base * _stretch(c, values)
        made = {
            "position.kind": "rope",
            "position.theta": base,
            "position.fraction": float(_one_of(c, "partial_rotary_factor", values, "partial_rotary_factor", fraction)),
            "position.scaling": _scaling(values, kind, c["max_position_embeddings"], original),
        }
    c.take(where, values)
    return made


def _stretch(c: Values, table: Values) -> float:
    """What `alpha` of a table multiplies theta by, for good, though such tables call themselves dynamic."""
    head_dim = c["head_dim"] or c["hidden_size"] // max(c["num_attention_heads"], 1)
    if head_dim < 3 or table["alpha"] < 0:
        table.problems.add("alpha", f"{table['alpha']} can't stretch the frequencies of heads of {head_dim}")
        return 1.0
    return table["alpha"] ** (head_dim / (head_dim - 2))


def _one_of(c: Values, name: str, inside: Values, inner: str, default: float) -> float:
    """A number that may stand in the table, beside it, or nowhere."""
    found = [value for value in (inside[inner], c[name]) if value is not None]
    if found and found[0] != found[-1]:
        c.refuse(name, f"is {c[name]} beside the table and {inside[inner]} in it; keep one of them")
    return found[0] if found else default


def _scaling(v: Values, kind: str, context: int, original: int | None) -> dict[str, Any] | None:
    if kind == "default":
        return None
    made = {ours: v[theirs] for theirs, ours in SCALINGS[kind].items()}
    if kind != "linear":
        made["original"] = trained = original or v[ORIGINAL] or context
        if trained < 1 or context < 1:
            v.problems.add(ORIGINAL, f"{trained} is not at least 1")
            return None
        if kind == "dynamic" and trained != context:
            v.refuse(ORIGINAL, f"{trained} is not max_position_embeddings={context}")
        if kind == "longrope":
            made["factor"] = max(context / trained, 1.0) if v["factor"] is None else v["factor"]
        if kind == "yarn":
            factor = made["factor"] = context / trained if v["factor"] is None else v["factor"]
            if v["attention_factor"] is None and v["mscale"] and v["mscale_all_dim"]:
                made["attention_factor"] = _mscale(factor, v["mscale"]) / _mscale(factor, v["mscale_all_dim"])
            made |= {"beta_fast": v["beta_fast"] or 32.0, "beta_slow": v["beta_slow"] or 1.0}
    for theirs, ours in SCALINGS[kind].items():
        if made[ours] is None and ours != "attention_factor":
            v.problems.add(theirs, f"is missing; {kind!r} scaling needs it")
            made[ours] = 1.0
    return {"kind": kind} | made


def _mscale(factor: float, strength: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * strength * math.log(factor) + 1.0


def write_rope(position: Position) -> dict[str, Any]:
    """The keys of a RoPE, in both forms; none for another position, which reading back will then name."""
    if not isinstance(position, Rope):
        return {}
    scaling: dict[str, Any] = {}
    if position.scaling is not None and position.scaling.kind in SCALINGS:
        found = {theirs: getattr(position.scaling, ours) for theirs, ours in SCALINGS[position.scaling.kind].items()}
        listed = {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}
        scaling = {"rope_type": position.scaling.kind} | {n: value for n, value in listed.items() if value is not None}
    return {
        "rope_theta": position.theta,
        "rope_scaling": scaling | {"type": scaling["rope_type"]} if scaling else None,
        "rope_parameters": {"rope_type": "default"} | scaling | {"rope_theta": position.theta},
    }


@dataclass(frozen=True, kw_only=True)
class RopeKeys:
    """RoPE of a family with the same in all layers, but for those that have none."""

    theta: float = 10000.0
    """What an absent key means."""
    fraction: float | None = None
    """The same of the share of a head that is rotated; None: the family always rotates whole heads."""
    layout: str | None = None
    original: str | None = None
    """The key of the trained length, if the family has one outside of the table."""
    kinds: Sequence[str] = tuple(SCALINGS)
    """The scalings that the public class has."""
    spelled: Mapping[str, str] = field(default_factory=dict)
    """Keys of theta and of the share that the family has spelled in its own way."""
    flat: bool = True
    """Whether the public class reads usual keys beside the table where it has its own spelling of them."""
    table: Mapping[str, Any] = field(default_factory=dict)
    """What a file without a table means, if that is more than a theta."""
    more: Mapping[str, Key] = field(default_factory=dict)
    """Keys of a table that the family reads by itself, or that change nothing."""

    def given(self, c: Values) -> dict[str, Any]:
        """The tables of a file by their names, or what a file without one means."""
        return {name: c[name] for name in ("rope_parameters", "rope_scaling") if c[name]} or {"rope_theta": self.table}

    @property
    def keys(self) -> Mapping[str, Key]:
        return ROPE_KEYS | {name: number(None) for name in self.spelled.values()}

    def read(self, c: Values) -> Mapping[str, Any]:
        usual = {"rope_theta": self.theta, "partial_rotary_factor": self.fraction}
        usual |= {name: c[own] for name, own in self.spelled.items() if c[own] is not None}
        found: list[dict[str, Any]] = []
        for name, given in self.given(c).items():
            if any(isinstance(value, Mapping) for value in given.values()):
                c.refuse(name, "has a table for each kind of layer, which this family does not read")
            else:
                theta, share = usual["rope_theta"], usual["partial_rotary_factor"]
                share = 1.0 if share is None else share
                self._check_flat(c, given, usual)
                original = None if self.original is None else c[self.original]
                found.append(_read(c, name, given, theta, share, original, self.kinds, more=self.more))
        made = _agreed(c, [read for read in found if read], whole_heads=self.fraction is None)
        return made | ({} if self.layout is None else {"position.layout": self.layout})

    def _check_flat(self, c: Values, table: Mapping[str, Any], usual: Mapping[str, Any]) -> None:
        """Refuse a key beside the table that the public class does not read, unless it says what is read."""
        for name, own in () if self.flat else self.spelled.items():
            if c[name] is not None and table.get(name) is None and c[name] != usual[name]:
                c.refuse(name, f"is {c[name]}, but this family's class reads {own} only, which is {usual[name]}")

    def write(self, spec: ModelSpec) -> Mapping[str, Any]:
        view = SpecView.of(spec)
        rotary = (layer.position for layer in view.stack.layers if isinstance(layer.position, Rope))
        position = next(rotary, view.layer.position)
        written = write_rope(position)
        if self.original is not None:
            scaling = getattr(position, "scaling", None)
            written[self.original] = getattr(scaling, "original", spec.context)
        if self.fraction is not None and isinstance(position, Rope):
            share = position.fraction if position.dims is None else position.dims / view.dims.head_dim
            written |= {"partial_rotary_factor": share}
            written["rope_parameters"] |= {"partial_rotary_factor": share}
        return written | {own: written[name] for name, own in self.spelled.items() if name in written}


FULL, LOCAL = "full_attention", "sliding_attention"
LAYERS = "layers"
"""Under this name a group of keys says how layers are arranged; all groups together make one arrangement of them."""


def each_layer(c: Values, kind: Callable[[int], str]) -> list[str]:
    """The type of every layer by its number. A depth beyond reason is left to the spec's rules to refuse."""
    return [kind(i) for i in range(min(c["num_hidden_layers"], DEEPEST))]


def arranged(names: Sequence[str], groups: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Layers of named groups as changes of a spec: one kind for all, a cycle, or a list of every layer.

    `groups` gives what the layers of each name have otherwise than the base, by dotted names.
    """
    used = sorted(set(names))
    if len(used) < 2:
        return dict(groups[used[0]]) if used else {}
    period = next(n for n in range(1, len(names) + 1) if all(names[i] == names[i % n] for i in range(len(names))))
    runs = [(name, len(list(run))) for name, run in groupby(names[:period])]
    cycle = ", ".join(name if count == 1 else f"{count} {name}" for name, count in runs)
    order = list(names) if period == len(names) else cycle
    return {"layers": {"order": order} | {name: dict(groups[name]) for name in used}}


@dataclass(frozen=True)
class Arrangement:
    """Which layers are of which named group, and what each group has otherwise than the base, by dotted names."""

    names: Sequence[str]
    groups: Mapping[str, Mapping[str, Any]]


def crossed(changes: Mapping[str, Any], arrangements: Sequence[Arrangement]) -> dict[str, Any]:
    """Changes of a spec with all arrangements in one: layers that differ in windows and in experts are up to four groups.

    What all layers have goes to the base. A kind that it sets there replaces what was read for another kind.
    """
    changes, varied = dict(changes), list[Arrangement]()
    for found in arrangements:
        if len(set(found.names)) > 1:
            varied.append(found)
            continue
        own = arranged(found.names, found.groups)
        kinds = tuple(path.removesuffix("kind") for path in own if path.endswith(".kind"))
        changes = {path: value for path, value in changes.items() if not kinds or not path.startswith(kinds)} | own
    rows = list(zip(*(found.names for found in varied), strict=False))
    groups = {
        "_".join(row): {
            path: value for found, name in zip(varied, row, strict=True) for path, value in found.groups[name].items()
        }
        for row in rows
    }
    return changes | arranged(["_".join(row) for row in rows], groups)


def without_idle_rope(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Changes less those of RoPE where no layer is left that has it."""
    idle = [path for path in changes if path.startswith("position.") and path != "position.kind"]
    return without(changes, idle if changes.get("position.kind") == "none" else ())


def checked(c: Values, types: Sequence[str], window: int | None) -> list[str]:
    """Layer types as names of groups, `local` and `global`; what can't be read is noted."""
    unknown = sorted(set(types) - {FULL, LOCAL})
    if unknown:
        c.refuse("layer_types", f"{unknown[0]!r} is a kind of layer that this family does not have")
    if len(types) != len(each_layer(c, str)):
        c.problems.add("layer_types", f"lists {len(types)} layers, but num_hidden_layers is {c['num_hidden_layers']}")
    if LOCAL in types and window is None:
        c.problems.add("sliding_window", f"is missing; layer_types has {LOCAL!r}")
    return ["local" if kind == LOCAL else "global" for kind in types]


def window_of(spec: ModelSpec) -> tuple[int | None, list[str]]:
    """The width of a spec's windows, or their radius (None: no layer has one), and its layer types."""
    stack = spec.stacks[-1]
    widths = [re.fullmatch(r"(?:symmetric_)?window\((\d+)\)", str(pattern_of(stack, layer))) for layer in stack.layers]
    found = [int(match[1]) for match in widths if match]
    return (found[0] if found else None), [LOCAL if match else FULL for match in widths]


def write_ropes(spec: ModelSpec, keys: Sequence[str]) -> dict[str, Any]:
    """The keys of the RoPE of each kind of layer, in both forms; `keys` are the old ones of their thetas.

    A kind speaks by its first layer, or by the other kind's if it has none.
    """
    layers, types = spec.stacks[-1].layers, window_of(spec)[1]
    firsts = {kind: types.index(kind) if kind in types else 0 for kind in (FULL, LOCAL)}
    written = {kind: write_rope(layers[i].position) for kind, i in firsts.items()}
    tables = {kind: given.get("rope_parameters") for kind, given in written.items()}
    old = {key: given.get("rope_theta") for key, given in zip(keys, written.values(), strict=False)}
    return {"rope_parameters": tables, "rope_scaling": written[FULL].get("rope_scaling")} | old


@dataclass(frozen=True, kw_only=True)
class WindowKeys:
    """`sliding_window`, and which layers have it: by a list of their types, and by a rule where there is none."""

    window: int | None = None
    """What an absent key means."""
    is_local: Callable[[Values, int], Any] = lambda c, i: c["sliding_window"] is not None
    """The rule, by the number of a layer."""
    listed: bool = True
    """Whether the family has the list."""
    switched: bool = False
    """Whether windows count only if `use_sliding_window` says so."""
    thetas: Mapping[str, tuple[str, float]] = field(default_factory=dict)
    """Of a family with a RoPE for each type of layer (see `read_ropes`)."""
    more: Mapping[str, Key] = field(default_factory=dict)
    """Keys of its tables that change nothing."""
    nope: bool = False
    """Whether null instead of such a table means that those layers have no position."""
    everywhere: Mapping[str, Any] = field(default_factory=dict)
    """What layers without a window have otherwise."""
    needed: bool = False
    """Whether the public class fails without a width, even if no layer has a window."""
    both_ways: str = ""
    """The key by which tokens see later ones too: the model is an encoder then, with half of a window on each side."""

    @property
    def keys(self) -> Mapping[str, Key]:
        own = {"sliding_window": whole(self.window, null=True)}
        own |= {"use_sliding_window": flag(False)} if self.switched else {}
        own |= {self.both_ways: flag(False, null=True)} if self.both_ways else {}
        return own | ({"layer_types": TEXTS} if self.listed else {}) | (ROPE_KEYS if self.thetas else {})

    def read(self, c: Values) -> Mapping[str, Any]:
        window = c["sliding_window"] if not self.switched or c["use_sliding_window"] else None
        types = c["layer_types"] if self.listed else None
        ropes = read_ropes(c, self.thetas, self.more, nope=self.nope) if self.thetas else {}
        if types is None:
            idle = self.switched and window is None
            types = each_layer(c, lambda i: LOCAL if not idle and self.is_local(c, i) else FULL)
        names = checked(c, types, window)
        both = self.both_ways and c[self.both_ways]
        pattern = f"symmetric_window({(window or 0) // 2})" if both else f"window({window})"
        own = {"attention.pattern": pattern} | ropes.get(LOCAL, {})
        ends = {"topology": "encoder"} if both else {}
        return {**ropes.get(FULL, {}), **ends, LAYERS: Arrangement(names, {"local": own, "global": self.everywhere})}

    def write(self, spec: ModelSpec) -> Mapping[str, Any]:
        window, types = window_of(spec)
        keys = [key for key, _ in self.thetas.values()]
        # One key for both types can't say two thetas.
        ropes = write_ropes(spec, keys if len({*keys}) > 1 else []) if keys else {}
        width = spec.context if self.needed and window is None else window
        both = spec.topology == "encoder"
        if self.both_ways and both and window is not None:
            width = 2 * window
        own = {"sliding_window": width} | ({"use_sliding_window": window is not None} if self.switched else {})
        own |= {self.both_ways: both} if self.both_ways else {}
        return ropes | own | ({"layer_types": types} if self.listed else {})


class KeyGroup(Protocol):
    """Keys that mean something together."""

    @property
    def keys(self) -> Mapping[str, Key]:
        """What they may hold."""
        ...

    def read(self, c: Values) -> Mapping[str, Any]:
        """What they say, as changes of a spec; LAYERS is an Arrangement."""
        ...

    def write(self, spec: ModelSpec) -> Mapping[str, Any]:
        """The keys of a spec, as near as they can say it."""
        ...
