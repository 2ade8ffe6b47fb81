"""Write the reference tables of docs/spec.md from the dataclasses of the spec.

A field's meaning is the string literal under it, in its class or the nearest base that has one. Nothing here knows a
kind or a field by name, except for the few in MEANINGS that their class leaves to the reader.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from anyformer.explain.words import leaf_words, words_of
from anyformer.parts.positions.rope_scaling import RopeScaling
from anyformer.registry import OpenAxis
from anyformer.specs import (
    Attention,
    BlockWiring,
    Embed,
    FeedForward,
    Head,
    HeadNorm,
    Init,
    Layers,
    Loss,
    Mixer,
    ModelSpec,
    Norm,
    NormPlacement,
    Overrides,
    Pattern,
    Position,
    SpecialIds,
    Temperature,
)
from anyformer.specs.codec import fields_of, inline_of, optional
from anyformer.specs.formulas import Scale

PAGE = Path(__file__).resolve().parent / "spec.md"
BEGIN, END = "<!-- reference: begin (docs/make.py) -->\n", "<!-- reference: end -->\n"

SECTIONS: tuple[tuple[str, str, tuple[type[Any], ...]], ...] = (
    ("", "The top level", (ModelSpec,)),
    ("attention", "attention", (Attention,)),
    ("attention.qk_norm", "attention.qk_norm and attention.v_norm", (HeadNorm,)),
    ("attention.temperature", "attention.temperature", (Temperature,)),
    ("attention.mixer", "attention.mixer", (Mixer,)),
    ("attention.pattern", "attention.pattern", (Pattern,)),
    ("position", "position", (Position,)),
    ("position.scaling", "position.scaling (of rope)", (RopeScaling,)),
    ("ffn", "ffn", (FeedForward,)),
    ("norm", "norm", (NormPlacement, Norm)),
    ("block", "block", (BlockWiring,)),
    ("embed", "embed", (Embed,)),
    ("head", "head", (Head,)),
    ("loss", "loss", (Loss,)),
    ("init", "init", (Init,)),
    ("ids", "ids", (SpecialIds,)),
)

MEANINGS = {
    "ModelSpec.topology": "Which stacks there are. A decoder is causal, an encoder sees both ways.",
    "ModelSpec.width": "Numbers in the residual of each token.",
    "ModelSpec.depth": "Blocks of the stack, or of each stack of an encoder-decoder.",
    "ModelSpec.attention": "Heads, projections, scores and pattern.",
    "ModelSpec.position": "How the model knows where a token is.",
    "ModelSpec.ffn": "The feed-forward of each block.",
    "ModelSpec.norm": "Which norm, and where it stands.",
    "ModelSpec.block": "How the branches meet the residual.",
    "ModelSpec.layers": "What single layers or groups of them have otherwise.",
    "ModelSpec.embed": "What the model reads.",
    "ModelSpec.head": "What it answers.",
    "ModelSpec.loss": "What is added to plain cross-entropy.",
    "ModelSpec.init": "How weights start.",
    "ModelSpec.ids": "Token ids with a meaning.",
    "NormPlacement.leaf": "Which norm.",
    "HeadNorm.leaf": "Which norm; its fields are those of [norm](#norm).",
    "Temperature.kind": "Which formula.",
    "Temperature.length": "The length in the formula.",
    "Temperature.strength": "The factor in log1p.",
    "Attention.heads": "Query heads.",
    "Attention.mixer": "How scores become weights.",
    "Attention.scale": "Scores are multiplied by this.",
    "Attention.temperature": "A factor on queries that grows with their position.",
    "Attention.qk_norm": "A norm on queries and keys.",
    "Attention.v_norm": "A norm on values.",
    "Attention.dropout": "Dropout on the weights.",
    "Rope.theta": "Base of the frequencies.",
    "Rope.on_values": "Turn values too.",
    "Rope.scaling": "A change of the frequencies for longer texts.",
    "Alibi.slope_base": "Head i of P has the slope 2^(-slope_base i / P).",
    "Axial.rows": "Rows of the grid.",
    "Axial.columns": "Columns of the grid.",
    "Shaw.clip": "Distances beyond this share one vector.",
    "Shaw.vectors": "Trained vectors, or fixed sines (NEZHA).",
    "Shaw.on_values": "A second set of vectors, added to the values.",
    "Sinusoidal.theta": "Base of the frequencies.",
    "TransformerXL.theta": "Base of the frequencies.",
    "T5Bias.buckets": "Rows of the table.",
    "T5Bias.max_distance": "Distances from here on share the last bucket.",
    "Linear.factor": "How much longer texts become.",
    "DynamicNtk.factor": "How fast theta grows with the length.",
    "Yarn.factor": "How much longer texts become.",
    "Yarn.beta_fast": "Dimensions with more turns than this in the original length stay.",
    "Yarn.beta_slow": "Dimensions with fewer turns than this interpolate in full.",
    "Llama3.factor": "How much long waves are stretched.",
    "Llama3.low": "Waves with fewer turns than this in the original length are stretched in full.",
    "Llama3.high": "Waves with more turns than this stay.",
    "LongRope.short": "A divisor for each frequency, up to the original length.",
    "LongRope.long": "A divisor for each frequency, beyond it.",
    "*.original": "The length that the model was trained at.",
    "Gated.multiple_of": "What the width is rounded up to if it is unset.",
    "Gated.bias": "A bias in each projection.",
    "Plain.bias": "A bias in each projection.",
    "LayerNorm.bias": "A learned bias after the gain.",
    "*.eps": "Guards against a division by zero.",
    "TokenEmbed.project_bias": "A bias in that projection.",
    "TokenEmbed.dropout": "Dropout on the embeddings.",
    "PatchEmbed.image": "Side of the image in pixels.",
    "PatchEmbed.patch": "Side of a patch in pixels.",
    "PatchEmbed.channels": "Colours of a pixel.",
    "PatchEmbed.class_token": "A learned token before the patches.",
    "PatchEmbed.bias": "A bias in the projection.",
    "PatchEmbed.token_types": "Always 0.",
    "PatchEmbed.dropout": "Dropout on the embeddings.",
    "SeriesEmbed.channels": "Numbers for each time step.",
    "SeriesEmbed.bias": "A bias in the projection.",
    "SeriesEmbed.token_types": "Always 0.",
    "SeriesEmbed.dropout": "Dropout on the embeddings.",
    "TokenHead.bias": "A bias on the logits.",
    "TokenHead.softcap": "Logits become cap * tanh(logit / cap).",
    "RegressionHead.outputs": "Numbers in the answer.",
    "*.labels": "Number of classes.",
    "*.pool": "Which state of a row the head reads: that of the first or last real token, that of the last eos, or the mean; `late`: every one, and the mean of the answers (EuroBERT).",
    "*.dropout": "Dropout on what the classifier reads.",
    "Loss.label_smoothing": "Share of each label that is spread over all classes.",
    "GPT2.std": "Standard deviation.",
    "PlainNormal.std": "Standard deviation.",
    "T5Factors.factor": "Multiplies every standard deviation.",
    "SpecialIds.pad": "Fills rows that are shorter than others.",
    "SpecialIds.bos": "Begins a text.",
    "SpecialIds.eos": "End a text.",
    "Window.size": "How many tokens back, itself included.",
    "Chunked.size": "Tokens in a chunk.",
    "SymmetricWindow.radius": "How many tokens on each side.",
}
"""Meanings of fields that have no docstring. A docstring always wins, and an entry that nothing needs is an error."""


def field_docs(node: type[Any]) -> dict[str, str]:
    """Field -> the string literal under it, from the class itself and the bases it inherits fields from."""
    docs: dict[str, str] = {}
    for owner in reversed(node.__mro__):
        if not dataclasses.is_dataclass(owner):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]
        assert isinstance(body, ast.ClassDef)
        for line, after in zip(body.body, body.body[1:], strict=False):
            match line, after:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str() as text)),
                ):
                    docs[name] = " ".join(text.split())
                case _:
                    pass
    return docs


def meaning(node: type[Any], name: str, used: set[str], meanings: Mapping[str, str] = MEANINGS) -> str:
    """What a field means; raises if nobody says it."""
    text = field_docs(node).get(name)
    if text is not None:
        return text
    owners = [owner.__name__ for owner in node.__mro__ if name in getattr(owner, "__annotations__", {})]
    for key in (*(f"{owner}.{name}" for owner in owners), f"*.{name}"):
        if key in meanings:
            used.add(key)
            return meanings[key]
    raise LookupError(f"{node.__name__}.{name} has no docstring: write one under the field")


def type_words(hint: Any) -> str:
    """A type as a person would say it."""
    hint, may_be_none = optional(hint)
    return _plain_words(hint) + (", or unset" if may_be_none else "")


def _plain_words(hint: Any) -> str:
    simple = {int: "whole number", float: "number", bool: "true or false", str: "text"}
    if hint in simple:
        return simple[hint]
    if hint == Scale:
        return "scale"
    if get_origin(hint) is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(hint))
    if get_origin(hint) is tuple:
        return f"list of {_plain_words(get_args(hint)[0])}s"
    if get_origin(hint) in (typing.Union, types.UnionType):
        return " or ".join(_plain_words(h) for h in get_args(hint))
    if hint is Pattern:
        return "pattern"
    if isinstance(hint, type) and issubclass(hint, OpenAxis):
        return f"{hint.axis} kind"
    return "table"


def default_words(field: dataclasses.Field[Any]) -> str:
    """A default as TOML would write it."""
    value = field.default
    if field.default_factory is not dataclasses.MISSING:
        value = field.default_factory()
        if isinstance(value, OpenAxis):
            return f'`"{value.kind}"`'
        return "empty" if isinstance(value, Layers | Overrides) else "its defaults"
    if value is dataclasses.MISSING:
        return "required"
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return f"`{list(typing.cast('tuple[Any, ...]', value))}`"
    return f'`"{value}"`' if isinstance(value, str) else f"`{value}`"


def rows_of(
    node: type[Any], path: str, used: set[str], meanings: Mapping[str, str] = MEANINGS
) -> Iterator[tuple[str, str, str, str]]:
    """Path, type, default and meaning of each field of a node."""
    for name, (hint, field) in fields_of(node).items():
        words = meaning(node, name, used, meanings)
        shown = "kind" if name == inline_of(node) else name
        yield f"`{path}.{shown}`" if path else f"`{shown}`", type_words(hint), default_words(field), words


def table_of(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> Iterator[str]:
    """A Markdown table."""
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"


def kinds_of(axis: type[Any]) -> list[type[Any]]:
    """The leaves of an axis that we ship, by kind."""
    found = [axis.named(kind) for kind in axis.kinds()]
    return [leaf for leaf in found if leaf.__module__.startswith("anyformer.")]


def axis_section(
    axis: type[Any], path: str, used: set[str], meanings: Mapping[str, str] = MEANINGS, name: str = "path"
) -> Iterator[str]:
    """The kinds of an axis, then the fields of each; `name` is what their first column is called."""
    leaves = kinds_of(axis)
    kinds = [(f"`{leaf.kind}`", leaf_words(leaf)) for leaf in leaves]
    yield from table_of(("kind", "what it is"), kinds)
    yield ""
    # Fields that several kinds share are written once.
    rows: dict[tuple[str, ...], list[str]] = {}
    for leaf in leaves:
        for row in rows_of(leaf, path, used, meanings):
            rows.setdefault(row, []).append(f"`{leaf.kind}`")
    if rows:
        lines = [(row[0], ", ".join(kinds), *row[1:]) for row, kinds in rows.items()]
        yield from table_of((name, "kinds", "type", "default", "meaning"), lines)
        yield ""


def reference() -> str:
    """The whole reference as Markdown."""
    used: set[str] = set()
    lines: list[str] = []
    for path, title, nodes in SECTIONS:
        lines += [f"### {title}", ""]
        for node in nodes:
            if isinstance(node, type) and issubclass(node, OpenAxis):
                lines += axis_section(node, path, used)
                continue
            if path:
                lines += [textwrap.fill(words_of(node), 118), ""]
            lines += [*table_of(("path", "type", "default", "meaning"), list(rows_of(node, path, used))), ""]
    check_needed(MEANINGS, used)
    return "\n".join(lines)


def check_needed(meanings: Mapping[str, str], used: set[str]) -> None:
    """Refuse meanings that no field asks for."""
    if unneeded := sorted(meanings.keys() - used):
        raise LookupError(f"MEANINGS has entries that no field needs; remove {', '.join(unneeded)}")


def updated(page: str) -> str:
    """The page with the reference between its marks."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{reference()}{END}{after}"


def main() -> None:
    """Write the page."""
    PAGE.write_text(updated(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
