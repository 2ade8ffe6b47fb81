"""ModelSpec: a whole architecture as one frozen value."""

from __future__ import annotations

import dataclasses
import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from anyformer.errors import SpecError
from anyformer.specs import rules
from anyformer.specs.axes import Dims, FeedForward, Init, Position
from anyformer.specs.codec import (
    MISSING,
    Problems,
    Table,
    fields_of,
    is_axis,
    join,
    merge,
    optional,
    read,
    read_fields,
    write,
)
from anyformer.specs.ends import Embed, Head, TokenEmbed
from anyformer.specs.layers import Layers, Overrides, nest
from anyformer.specs.nodes import Attention, Layer, Loss, Norms, SpecialIds, Topology, Wires, default

if TYPE_CHECKING:
    from anyformer.specs.count import Count

SCHEMA = 1
"""Version of the written form. A file of another version is refused rather than guessed at."""

LAYER_NODES = ("attention", "position", "ffn", "norm", "block")
STACK_NODES = ("depth", *LAYER_NODES, "layers")


@dataclass(frozen=True, kw_only=True)
class Stack:
    """One resolved stack: its layers in order, and what all of them share."""

    name: str
    layers: tuple[Layer, ...]
    causal: bool
    """Whether an unset pattern means causal."""
    cross: bool
    """Whether each block also attends to the encoder."""
    embedding_norm: bool
    final_norm: bool
    norm: Norms
    """The norm of the embedding and final sites."""

    @property
    def depth(self) -> int:
        """Number of layers."""
        return len(self.layers)


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """Every choice that makes an architecture. See docs/spec.md for the fields."""

    topology: Topology = "decoder"
    vocab: int = 0
    """Rows of the token table and of the output; 0 only if neither end knows tokens."""
    width: int
    depth: int
    context: int
    """The longest sequence that the model is made for."""
    attention: Attention
    position: Position = default(Position, "rope")
    ffn: FeedForward = default(FeedForward, "swiglu")
    norm: Norms = field(default_factory=Norms)
    block: Wires = field(default_factory=Wires)
    layers: Layers = field(default_factory=Layers)
    encoder: Overrides = field(default_factory=Overrides)
    """What the encoder of an encoder-decoder has otherwise: depth, layers and the five nodes of a layer."""
    decoder: Overrides = field(default_factory=Overrides)
    """The same for its decoder."""
    embed: Embed = default(Embed, "tokens")
    head: Head = default(Head, "lm")
    loss: Loss = field(default_factory=Loss)
    init: Init = default(Init, "glorot")
    ids: SpecialIds = field(default_factory=SpecialIds)

    def __post_init__(self) -> None:
        problems = Problems()
        values = read_fields(type(self), write(self), "", problems) or {}
        _examine(values, problems)
        if problems.found:
            raise SpecError(problems.found)

    # --- written form ----------------------------------------------------------------------------------------

    @classmethod
    def from_data(cls, data: Mapping[str, Any], source: str = "") -> ModelSpec:
        """Read plain data (parsed TOML or JSON). Every problem is named in one SpecError."""
        table = dict(data)
        problems = Problems()
        schema = table.pop("schema", SCHEMA)
        if schema != SCHEMA:
            problems.add("schema", f"{schema!r} is not the version that this anyformer reads ({SCHEMA})")
        values = read_fields(cls, table, "", problems) or {}
        draft = _examine(values, problems)
        if problems.found:
            raise SpecError(problems.found, source)
        return draft

    @classmethod
    def from_toml(cls, text: str, source: str = "") -> ModelSpec:
        """Read a spec file's text."""
        try:
            data = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise SpecError([f"not TOML: {error}"], source) from error
        return cls.from_data(data, source)

    @classmethod
    def from_file(cls, path: str | Path) -> ModelSpec:
        """Read a spec file."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except OSError as error:
            raise SpecError([f"can't be read: {error.strerror}"], str(path)) from error
        except UnicodeDecodeError as error:
            raise SpecError([f"is not UTF-8 text (byte {error.start})"], str(path)) from error
        return cls.from_toml(text, str(path))

    def to_data(self) -> Table:
        """Plain data: what `from_data` reads back to an equal spec."""
        return {"schema": SCHEMA} | write(self)

    def to_toml(self) -> str:
        """The spec as TOML. Unset sizes stay unset."""
        import tomli_w

        return tomli_w.dumps(self.to_data())

    # --- variation -------------------------------------------------------------------------------------------

    def vary(self, changes: Mapping[str, Any]) -> ModelSpec:
        """A new spec with dotted overrides, e.g. `{"depth": 8, "position.kind": "alibi"}`.

        A `kind` replaces its node by that kind's defaults; the other keys apply after it. A bare path means every
        layer, `layers.3.X` or `layers.<group>.X` only those. None unsets an optional field.
        """
        data = write(self)
        for path in changes:
            _spread(data, path, changes[path])
        return type(self).from_data(_merge_spec(data, nest(changes)))

    # --- resolved forms --------------------------------------------------------------------------------------

    @functools.cached_property
    def stacks(self) -> tuple[Stack, ...]:
        """The stacks in the order in which they run, every layer resolved."""
        problems = Problems()
        return _stacks(self, problems)

    def stack(self, name: str) -> Stack:
        """The stack of that name: `encoder` or `decoder`."""
        return next(s for s in self.stacks if s.name == name)

    @property
    def embed_width(self) -> int:
        """Width of the token table."""
        return (self.embed.width if isinstance(self.embed, TokenEmbed) else None) or self.width

    def dims(self, layer: Layer, *, causal: bool) -> Dims:
        """The sizes of a layer, derived ones filled in."""
        a = layer.attention
        last = isinstance(self.embed, TokenEmbed) and self.embed.project == "last"
        return Dims(
            width=self.width,
            heads=a.heads,
            kv_heads=a.kv_heads or a.heads,
            head_dim=a.head_dim or self.width // a.heads,
            ffn_width=layer.ffn.hidden(self.width),
            depth=self.depth,
            context=self.context,
            causal=causal,
            embed_width=self.embed_width if last else self.width,
        )

    def count(self) -> Count:
        """Parameters, FLOPs and bytes, from the spec alone."""
        from anyformer.specs.count import Count

        return Count(self)


def _examine(values: Table, problems: Problems) -> ModelSpec:
    """A draft of the spec with defaults where a value could not be read, after every rule has looked at it."""
    draft = object.__new__(ModelSpec)
    for name, (_, spec_field) in fields_of(ModelSpec).items():
        value = values.get(name, MISSING)
        if value is MISSING and name in values:
            problems.paths.add(name)
        if value is MISSING:
            made = spec_field.default_factory
            value = made() if made is not MISSING else spec_field.default
        object.__setattr__(draft, name, value)
    rules.check_model(draft, problems)
    if not any(problems.touches(name) for name in ("width", "depth", "attention.heads", "topology", "context")):
        for stack in _stacks(draft, problems):
            rules.check_stack(draft, stack, problems)
    return draft


def _stacks(spec: ModelSpec, problems: Problems) -> tuple[Stack, ...]:
    names = {"decoder": ("decoder",), "encoder": ("encoder",), "encoder-decoder": ("encoder", "decoder")}[spec.topology]
    base = {name: write(getattr(spec, name)) for name in STACK_NODES}
    return tuple(_stack(spec, name, base, problems, both=len(names) == 2) for name in names)


def _stack(spec: ModelSpec, name: str, base: Table, problems: Problems, *, both: bool) -> Stack:
    over: Overrides = getattr(spec, name)
    path = ""
    if both and over.items:
        path = name
        base = _merge_spec(base, over.written())
        for key in base.keys() - set(STACK_NODES):
            problems.add(join(name, key), f"can't differ between the stacks; only {', '.join(STACK_NODES)} can")
    elif over.items:
        problems.add(name, f"overrides a stack of an encoder-decoder, but topology is {spec.topology!r}")
    depth = read(int, base.get("depth"), join(path, "depth"), problems)
    if depth is MISSING or depth < 1:
        if depth is not MISSING and path:
            problems.add(join(path, "depth"), f"{depth} is not at least 1")
        depth = 1
    layers: Layers = read(Layers, base.get("layers", {}), join(path, "layers"), problems)
    groups, order = layers.named(), layers.expand(depth, join(path, "layers"), problems)
    nodes = {k: base[k] for k in LAYER_NODES}
    cache: dict[tuple[str | None, str | None], Layer] = {}
    resolved: list[Layer] = []
    for i, group in enumerate(order):
        single = str(i) if str(i) in groups else None
        if (group, single) not in cache:
            data, where = nodes, path
            for part in (group, single):
                if part is not None:
                    data, where = merge(Layer, data, groups[part].written()), join(path, f"layers.{part}")
            layer = read(Layer, data, where, problems)
            if layer is MISSING:
                layer = Layer(**{k: getattr(spec, k) for k in LAYER_NODES})
            elif where != path or path:
                rules.check_overrides(groups, group, single, join(path, "layers"), problems)
            cache[group, single] = layer
        resolved.append(cache[group, single])
    norm: Norms = read(Norms, base["norm"], join(path, "norm"), Problems())
    norm = spec.norm if norm is MISSING else norm
    return Stack(
        name=name,
        layers=tuple(resolved),
        causal=name == "decoder",
        cross=both and name == "decoder",
        embedding_norm=norm.embedding,
        final_norm=norm.has_final(),
        norm=norm,
    )


def _merge_spec(data: Table, changes: Table) -> Table:
    """`merge` over a whole spec (or the nodes of a stack), whose layers and overrides are tables of tables."""
    hints = {name: hint for name, (hint, _) in fields_of(ModelSpec).items()}
    table = dict(data)
    for key, value in changes.items():
        if value is None:
            table.pop(key, None)
        elif key == "layers" and isinstance(value, Mapping):
            groups = dict(table.get("layers", {}))
            for name, over in cast("Table", value).items():
                groups[name] = over if name == "order" else _merge_layer(groups.get(name, {}), over)
            table[key] = groups
        elif key in ("encoder", "decoder") and isinstance(value, Mapping):
            table[key] = _merge_spec(table.get(key, {}), cast("Table", value))
        else:
            table[key] = merge(hints.get(key, Any), table.get(key), value)
    return table


def _merge_layer(base: Any, over: Any) -> Any:
    if not isinstance(over, Mapping) or not isinstance(base, Mapping):
        return write(over)
    return merge(Layer, base, over)


def _spread(data: Table, path: str, value: Any) -> None:
    """Make a bare path mean every layer: nothing below the groups or stacks may still say otherwise."""
    head, *rest = path.split(".")
    if head not in LAYER_NODES and head not in ("depth",):
        return
    for stack in ("encoder", "decoder"):
        if stack in data:
            _clear(data[stack], [head, *rest], value)
            for group in _groups(data[stack]):
                _clear(group, [head, *rest], value)
    for group in _groups(data):
        _clear(group, [head, *rest], value)


def _groups(data: Table) -> list[Table]:
    return [over for name, over in data.get("layers", {}).items() if name != "order"]


def _clear(table: Table, path: list[str], value: Any) -> None:
    head, *rest = path
    if head not in table:
        return
    if not rest or rest == ["kind"] or not isinstance(table[head], Mapping):
        del table[head]
        return
    node = table[head]
    if "kind" in node and len(rest) == 1:
        # This group has a kind of its own: the path means it too, where that kind has such a field.
        axis = optional(fields_of(Layer)[head][0])[0] if head in fields_of(Layer) else None
        leaf = axis.named(node["kind"]) if is_axis(axis) else None
        if leaf is not None and rest[0] in {f.name for f in dataclasses.fields(leaf)}:
            node[rest[0]] = write(value)
        return
    _clear(node, rest, value)
    if not node:
        del table[head]
