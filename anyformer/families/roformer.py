"""RoFormer (Su et al. 2021): BERT with turned queries and keys instead of a table of positions."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from anyformer.families import bert_like as like
from anyformer.families.config_keys import Key, Values, flag, whole
from anyformer.families.family import Family, Preset
from anyformer.families.statemap import Rule, Sines, StateMap
from anyformer.parts.positions.rope import Rope
from anyformer.specs.model import ModelSpec

BASE = like.BASE | {"vocab": 50000, "context": 1536, "position": {"kind": "rope", "layout": "interleaved"}}
KEYS: dict[str, Key] = like.keys(vocab=50000, context=1536) | {
    "embedding_size": whole(None),
    "rotary_value": flag(False),
}


def read(c: Values) -> dict[str, Any]:
    """The keys of both classes as changes of a spec."""
    width, narrow = c["hidden_size"], c["embedding_size"]
    other = narrow not in (None, width)
    if other and not c["tie_word_embeddings"]:
        c.refuse("tie_word_embeddings", "false goes with a table as wide as the model only")
    return like.read(c) | {
        "embed.width": narrow if other else None,
        # Token types and the norm stand before the projection.
        "embed.project": "last" if other else "first",
        "embed.project_bias": other,
        "position.on_values": c["rotary_value"],
    }


def write(spec: ModelSpec) -> dict[str, Any]:
    """Those keys of a spec."""
    position = spec.stacks[-1].layers[0].position
    return like.write(spec) | {
        "embedding_size": spec.embed_width,
        "rotary_value": isinstance(position, Rope) and position.on_values,
    }


def weights(spec: ModelSpec) -> StateMap:
    """The table of tensors of both classes."""
    project = Rule("roformer.embeddings_project.{p}", f"{spec.stacks[-1].name}.project.{{p}}")
    stack, table = spec.stacks[-1], r"(roformer\.)?encoder\.embed_positions\.weight"
    layer = stack.layers[0]
    # The angles of its rotation, which the public class reads from the file.
    frequency = layer.position.constants(spec.dims(layer, stack)).get("frequency", ())
    found = like.weights(spec, "roformer", project, ignored=(table,))
    return dataclasses.replace(found, computed={table: Sines(tuple(frequency))})


def tiny(**more: Any) -> dict[str, Any]:
    """A small config whose table is narrower than the model."""
    return like.tiny(embedding_size=20) | more


def _preset(name: str, title: str, vocab: int, context: int, params: int, evidence: str, note: str = "") -> Preset:
    return Preset(
        name=name, title=f"{title} (2021)",
        changes={"width": 768, "depth": 12, "attention.heads": 12, "vocab": vocab, "context": context},
        params=params, published="no count was found", evidence=evidence, note=note,
    )  # fmt: skip


class RoFormer(Family, kind="roformer"):
    """RoFormer as an encoder, with its masked-LM head."""

    base = BASE
    presets = (
        _preset("roformer-base-zh", "RoFormer base, Chinese words", 50000, 1536, 124_099_664,
                "another library's table of pretrained models, the authors' notes, and the public class",
                "a vocabulary of words, not characters"),
        _preset("roformer-char-base-zh", "RoFormer base, Chinese characters", 12000, 512, 94_877_664,
                "another library's table of pretrained models, and the public class"),
    )  # fmt: skip
    architectures = ("RoFormerForMaskedLM",)
    model_type = "roformer"
    keys = KEYS

    @classmethod
    def read(cls, c: Values) -> Mapping[str, Any]:
        return read(c)

    @classmethod
    def write(cls, spec: ModelSpec) -> Mapping[str, Any]:
        return write(spec)

    @classmethod
    def weights(cls, spec: ModelSpec) -> StateMap:
        return weights(spec)

    @classmethod
    def tiny(cls) -> dict[str, Any]:
        return tiny()
