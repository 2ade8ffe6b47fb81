"""ModelSpec: a whole architecture as one frozen value."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyformer.errors import InputError, SpecError
from anyformer.specs import rules
from anyformer.specs.axes import Dims, FeedForward, Init, Position
from anyformer.specs.codec import Problems, Table, draft, read_fields, write
from anyformer.specs.embed_head import Embed, Head, TokenEmbed
from anyformer.specs.layer import Attention, BlockWiring, Layer, Loss, NormPlacement, SpecialIds, Topology, default
from anyformer.specs.overrides import Layers, Overrides, vary
from anyformer.specs.stacks import Stack, resolve

if TYPE_CHECKING:
    from anyformer.specs.count import Count

SCHEMA = 1
"""Version of the written form. A file of another version is refused rather than guessed at."""


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """Every choice that makes an architecture. See docs/spec.md for the fields."""

    topology: Topology = "decoder"
    vocab: int = 0
    """Rows of the token table and of the output; 0 only if neither end knows tokens. Of an encoder-decoder: the target's."""
    source_vocab: int | None = None
    """Rows of the encoder's token table, where the source of an encoder-decoder has a vocabulary of its own (FSMT, Marian).
    Unset: source and target have the same; set: each stack has a table of its own (`embed.shared` is false)."""
    width: int
    depth: int
    context: int
    """The longest sequence that the model is made for."""
    attention: Attention
    position: Position = default(Position, "rope")
    ffn: FeedForward = default(FeedForward, "swiglu")
    norm: NormPlacement = field(default_factory=NormPlacement)
    block: BlockWiring = field(default_factory=BlockWiring)
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
        self._settle(write(self), Problems())

    def _settle(self, data: Mapping[str, Any], problems: Problems, source: str = "") -> None:
        """Read every field from plain data, let every rule look, and raise once if there is a problem."""
        values = read_fields(type(self), data, "", problems)
        # Fields that could not be read have stand-ins by now, so that the rules can speak about the others.
        for name, value in draft(type(self), values or {}).items():
            object.__setattr__(self, name, value)
        rules.check_model(self, problems)
        found = resolve(self, problems)
        # The rules read it too, and `stacks` would resolve once more.
        vars(self)["stacks"] = tuple(stack for stack, _ in found)
        rules.check_stacks(self, found, problems)
        if problems.found:
            raise SpecError(problems.lines, source)

    @classmethod
    def from_data(cls, data: Mapping[str, Any], source: str = "") -> ModelSpec:
        """Read plain data (parsed TOML or JSON). Every problem is named in one SpecError."""
        table = dict(data)
        problems = Problems()
        schema = table.pop("schema", SCHEMA)
        if type(schema) is not int or schema != SCHEMA:
            problems.add("schema", f"{schema!r} is not the version that this anyformer reads ({SCHEMA})")
        spec = object.__new__(cls)
        spec._settle(table, problems, source)
        return spec

    @classmethod
    def from_toml(cls, text: str, source: str = "") -> ModelSpec:
        """Read a spec file's text."""
        try:
            data = tomllib.loads(text)
        except (ValueError, RecursionError) as error:
            # Besides its own error: numbers of too many digits, dates that are none, tables too deep.
            raise SpecError([f"not TOML: {error}"], source) from error
        return cls.from_data(data, source)

    @classmethod
    def from_file(cls, path: str | Path) -> ModelSpec:
        """Read a spec file."""
        try:
            text = Path(path).read_text(encoding="utf-8-sig")
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

    def vary(self, changes: Mapping[str, Any]) -> ModelSpec:
        """A new spec with dotted overrides, e.g. `{"depth": 8, "position.kind": "alibi"}`.

        A `kind` replaces its node by that kind's defaults; the other keys apply after it. A bare path means every
        layer, `layers.3.X` or `layers.<group>.X` only those. A table stands for its keys, a node replaces a node, and
        None unsets an optional field.
        """
        return self.from_data(vary(type(self), write(self), changes))

    @functools.cached_property
    def stacks(self) -> tuple[Stack, ...]:
        """The stacks in the order in which they run, every layer resolved."""
        return tuple(stack for stack, _ in resolve(self, Problems()))

    def stack(self, name: str) -> Stack:
        """The stack of that name: `encoder` or `decoder`."""
        for stack in self.stacks:
            if stack.name == name:
                return stack
        raise InputError(f"there is no stack {name!r}; a spec with topology {self.topology!r} has only its own")

    @property
    def input_vocab(self) -> int:
        """Size of the vocabulary that `input_ids` are of: of an encoder-decoder, the source's."""
        return self.vocab if self.source_vocab is None else self.source_vocab

    @property
    def input_pad(self) -> int | None:
        """What fills rows of `input_ids`."""
        return self.ids.pad if self.ids.source_pad is None else self.ids.source_pad

    @property
    def embed_width(self) -> int:
        """Width of the token table."""
        return (self.embed.width if isinstance(self.embed, TokenEmbed) else None) or self.width

    @property
    def position_width(self) -> int:
        """Width at which positions and token types are added: before a table narrower than the model is projected, or after."""
        first = isinstance(self.embed, TokenEmbed) and self.embed.project == "first"
        return self.width if first else self.embed_width

    @property
    def out_width(self) -> int:
        """Width of what the head reads."""
        return self.stacks[-1].out_width(self.width)

    def dims(self, layer: Layer, stack: Stack) -> Dims:
        """The sizes of a layer of a stack, derived ones filled in."""
        a = layer.attention
        return Dims(
            width=self.width,
            heads=a.heads,
            kv_heads=a.kv_heads or a.heads,
            head_dim=a.head_dim or self.width // a.heads,
            ffn_width=layer.ffn.hidden(self.width),
            depth=stack.depth,
            context=self.context,
            causal=stack.causal,
            embed_width=self.position_width,
        )

    def count(self) -> Count:
        """Parameters, FLOPs and bytes, from the spec alone."""
        from anyformer.specs.count import Count

        return Count(spec=self)
