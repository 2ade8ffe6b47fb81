"""BERT (Devlin et al. 2018): an encoder with norms after each addition, token types, and a masked-LM head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyformer.families.family import Family, Preset
from anyformer.families.keys import ACTIVATIONS, Values, activation_of, flag, ids, must, number, plain_ffn, text, whole
from anyformer.families.statemap import Rule, StateMap
from anyformer.specs.ends import TokenHead
from anyformer.specs.model import ModelSpec

LAYER, BLOCK = "bert.encoder.layer.{i}", "encoder.blocks.{i}"


def _preset(size: str, width: int, depth: int, heads: int, params: int, published: str, note: str) -> Preset:
    return Preset(
        name=f"bert-{size}", title=f"BERT {size} (2018)",
        changes={"width": width, "depth": depth, "attention.heads": heads},
        params=params, published=published,
        evidence="the publisher's notes and two other projects; the count of the body was recorded by another library",
        note=note,
    )  # fmt: skip


class Bert(Family, kind="bert"):
    """BERT with its masked-LM head. Its pooler and its next-sentence head are no part of that, and are left out."""

    base = {
        "topology": "encoder",
        "vocab": 30522,
        "context": 512,
        "attention": {"heads": 1, "bias": "qkvo"},
        "norm": {"kind": "layernorm", "eps": 1e-12, "placement": "post", "embedding": True},
        "position": {"kind": "learned"},
        "ffn": {"kind": "gelu", "bias": True},
        "embed": {"kind": "tokens", "token_types": 2},
        "head": {"kind": "lm", "tied": True, "bias": True, "transform": True},
        "init": {"kind": "normal", "std": 0.02},
        "ids": {"pad": 0},
    }
    presets = (
        _preset("base", 768, 12, 12, 109_514_298, "109,482,240 without the masked-LM head; Google rounds to 110M",
                "with the masked-LM head and without the pooler; the published count is the body with its pooler"),
        _preset("large", 1024, 24, 16, 335_174_458, "335,141,888 without the masked-LM head; Google rounds to 340M",
                "335M, not 340M; with the masked-LM head and without the pooler"),
    )  # fmt: skip
    architectures = ("BertForMaskedLM", "BertForPreTraining")
    model_type = "bert"
    keys = {
        "vocab_size": whole(30522),
        "hidden_size": whole(768),
        "num_hidden_layers": whole(12),
        "num_attention_heads": whole(12),
        "intermediate_size": whole(3072),
        "hidden_act": text("gelu"),
        "hidden_dropout_prob": number(0.1),
        "attention_probs_dropout_prob": number(0.1),
        "max_position_embeddings": whole(512),
        "type_vocab_size": whole(2),
        "initializer_range": number(0.02),
        "layer_norm_eps": number(1e-12),
        "position_embedding_type": must("absolute"),
        "is_decoder": must(False),
        "tie_word_embeddings": flag(True),
        "pad_token_id": ids(0),
        # Sizes of the pooler of the Chinese models.
        "directionality": text("bidi"),
        "pooler_fc_size": whole(768),
        "pooler_num_attention_heads": whole(12),
        "pooler_num_fc_layers": whole(3),
        "pooler_size_per_head": whole(128),
        "pooler_type": text("first_token_transform"),
    }

    @classmethod
    def read(cls, c: Values) -> Mapping[str, Any]:
        kind = plain_ffn(c, "hidden_act")
        return {
            "vocab": c["vocab_size"],
            "width": c["hidden_size"],
            "depth": c["num_hidden_layers"],
            "context": c["max_position_embeddings"],
            "embed.token_types": c["type_vocab_size"],
            "embed.dropout": float(c["hidden_dropout_prob"]),
            "attention.heads": c["num_attention_heads"],
            "attention.dropout": float(c["attention_probs_dropout_prob"]),
            "block.dropout": float(c["hidden_dropout_prob"]),
            "ffn.kind": kind,
            "ffn.bias": True,
            "ffn.width": c["intermediate_size"],
            "norm.eps": float(c["layer_norm_eps"]),
            "head.activation": kind,
            "head.tied": c["tie_word_embeddings"],
            "init.std": float(c["initializer_range"]),
        }

    @classmethod
    def write(cls, spec: ModelSpec) -> Mapping[str, Any]:
        stack = spec.stacks[-1]
        layer = stack.layers[0]
        named = activation_of(layer.ffn, gated=False)
        # One key serves the feed-forward and the head: if the head has another activation, reading back shows it.
        return {
            "vocab_size": spec.vocab,
            "hidden_size": spec.width,
            "num_hidden_layers": stack.depth,
            "num_attention_heads": layer.attention.heads,
            "intermediate_size": spec.dims(layer, stack).ffn_width,
            "hidden_act": named if named in ACTIVATIONS else "gelu",
            "hidden_dropout_prob": layer.block.dropout,
            "attention_probs_dropout_prob": layer.attention.dropout,
            "max_position_embeddings": spec.context,
            "type_vocab_size": spec.embed.token_types,
            "initializer_range": getattr(spec.init, "std", 0.02),
            "layer_norm_eps": layer.norm.leaf.eps,
            "tie_word_embeddings": isinstance(spec.head, TokenHead) and spec.head.tied,
        }

    @classmethod
    def weights(cls, spec: ModelSpec) -> StateMap:
        parts = {
            "attention.self.query": "attention.body.q",
            "attention.self.key": "attention.body.k",
            "attention.self.value": "attention.body.v",
            "attention.output.dense": "attention.body.o",
            "attention.output.LayerNorm": "attention.after",
            "intermediate.dense": "ffn.body.up",
            "output.dense": "ffn.body.down",
            "output.LayerNorm": "ffn.after",
        }
        return StateMap(
            rules=(
                Rule("bert.embeddings.word_embeddings.weight", "embed.tokens.weight"),
                Rule("bert.embeddings.position_embeddings.weight", "encoder.positions.0.table"),
                Rule("bert.embeddings.token_type_embeddings.weight", "embed.types.weight"),
                Rule("bert.embeddings.LayerNorm.{p}", "encoder.embedding_norm.{p}"),
                *(Rule(f"{LAYER}.{theirs}.{{p}}", f"{BLOCK}.{ours}.{{p}}") for theirs, ours in parts.items()),
                Rule("cls.predictions.transform.dense.{p}", "head.dense.{p}"),
                Rule("cls.predictions.transform.LayerNorm.{p}", "head.norm.{p}"),
                Rule("cls.predictions.decoder.weight", "head.weight"),
                Rule("cls.predictions.bias", "head.bias"),
            ),
            copies={
                "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
                "cls.predictions.decoder.bias": "cls.predictions.bias",
            },
            ignored=(
                r"(bert\.)?embeddings\.(position_ids|token_type_ids)",
                r"(bert\.)?pooler\.dense\.(weight|bias)",
                r"cls\.seq_relationship\.(weight|bias)",
            ),
            prefix="bert.",
            renamed={".LayerNorm.gamma": ".LayerNorm.weight", ".LayerNorm.beta": ".LayerNorm.bias"},
        )

    @classmethod
    def tiny(cls) -> dict[str, Any]:
        return {
            "vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
            "intermediate_size": 40, "max_position_embeddings": 64, "type_vocab_size": 3, "layer_norm_eps": 1e-3,
            "pad_token_id": 0,
        }  # fmt: skip
