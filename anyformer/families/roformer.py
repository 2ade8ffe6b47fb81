"""RoFormer (Su et al. 2021): BERT with rotated queries and keys (RoPE) instead of a table of positions."""

from __future__ import annotations

import dataclasses
from typing import Any

from anyformer.families import bert_like as like
from anyformer.families.config_keys import Key, SpecView, flag, whole
from anyformer.families.config_values import Values
from anyformer.families.family import Family, Preset
from anyformer.families.statemap import Rule, Sines, StateMap
from anyformer.specs.model import ModelSpec

BASE = like.BASE | {"vocab": 50000, "context": 1536, "position": {"kind": "rope", "layout": "interleaved"}}
KEYS: dict[str, Key] = like.keys(vocab=50000, context=1536) | {
    "embedding_size": whole(None),
    "rotary_value": flag(False, "position.on_values"),
}


class RoFormerLike(Family):
    """What its encoder and its decoder share."""

    model_type = "roformer"

    @classmethod
    def read(cls, c: Values) -> dict[str, Any]:
        narrow = None if c["embedding_size"] == c["hidden_size"] else c["embedding_size"]
        if narrow is not None and not c["tie_word_embeddings"]:
            c.refuse("tie_word_embeddings", "false goes with a table as wide as the model only")
        return super().read(c) | {
            "embed.width": narrow,
            # Token types and the norm stand before the projection.
            "embed.project": "first" if narrow is None else "last",
            "embed.project_bias": narrow is not None,
        }

    @classmethod
    def write(cls, spec: ModelSpec) -> dict[str, Any]:
        return super().write(spec) | {"embedding_size": spec.embed_width}

    @classmethod
    def weights(cls, spec: ModelSpec) -> StateMap:
        view, table = SpecView.of(spec), r"(roformer\.)?encoder\.embed_positions\.weight"
        project = Rule("roformer.embeddings_project.{p}", f"{view.stack.name}.project.{{p}}")
        # The angles of its rotation, which the public class reads from the file.
        frequency = view.layer.position.constants(view.dims).get("frequency", ())
        found = like.weights(spec, "roformer", project, ignored=(table,))
        return dataclasses.replace(found, computed={table: Sines(tuple(frequency))})


def _preset(name: str, title: str, vocab: int, context: int, params: int, evidence: str, note: str = "") -> Preset:
    return Preset(
        name=name, title=f"{title} (2021)",
        changes={"width": 768, "depth": 12, "attention.heads": 12, "vocab": vocab, "context": context},
        params=params, published="no count was found", evidence=evidence, note=note,
    )  # fmt: skip


class RoFormer(RoFormerLike, kind="roformer"):
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
    keys = KEYS
    # A table that is narrower than the model.
    small = like.small(embedding_size=20)
