"""BLOOM (BigScience 2022): ALiBi, LayerNorm first and once more on the embeddings, GELU by tanh, tied head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyformer.families.config_keys import Values, flag, ids, must, number, whole
from anyformer.families.family import Family, Preset
from anyformer.families.statemap import PerHead, Rule, StateMap
from anyformer.specs.embed_head import TokenHead
from anyformer.specs.model import ModelSpec

LAYER, BLOCK = "transformer.h.{i}", "decoder.blocks.{i}"


def _preset(
    size: str, width: int, depth: int, heads: int, params: int, published: str = "", evidence: str = "", note: str = ""
) -> Preset:
    return Preset(
        name=f"bloom-{size}",
        hub=("bigscience/bloom" if size == "176b" else f"bigscience/bloom-{size}",),
        title=f"BLOOM {size.upper()} (2022)",
        changes={
            "width": width, "depth": depth, "attention.heads": heads, "vocab": 250880,
            "ids.bos": 1, "ids.eos": [2], "ids.pad": 3,
        },
        params=params,
        published=published or f"{params:,} in released files",
        evidence=evidence or "the publisher's training scripts and one other project",
        note=note,
    )  # fmt: skip


class Bloom(Family, kind="bloom"):
    """BLOOM. Its files state no context, as ALiBi needs none: 2048 is what it was trained with."""

    base = {
        "context": 2048,
        "attention": {"heads": 1, "bias": "qkvo"},
        "norm": {"kind": "layernorm", "eps": 1e-5, "embedding": True},
        "position": {"kind": "alibi"},
        "ffn": {"kind": "gelu_tanh", "bias": True},
        "head": {"kind": "lm", "tied": True},
        "init": {"kind": "normal", "std": 0.02},
    }
    presets = (
        _preset("560m", 1024, 24, 16, 559_214_592),
        _preset("1b1", 1536, 24, 16, 1_065_314_304),
        _preset("1b7", 2048, 24, 16, 1_722_408_960),
        _preset("3b", 2560, 30, 32, 3_002_557_440),
        _preset("7b1", 4096, 30, 32, 7_069_016_064, "only its name, which rounds to 7.1B"),
        _preset("176b", 14336, 70, 112, 176_247_271_424, evidence="the publisher's notes on the training run",
                note="176B; a '175B' with 96 layers of 12288 that circulates is another shape"),
    )  # fmt: skip
    architectures = ("BloomForCausalLM",)
    model_type = "bloom"
    keys = {
        "vocab_size": whole(250880),
        "hidden_size": whole(64),
        "n_embed": whole(None),
        "n_layer": whole(2),
        "num_hidden_layers": whole(None),
        "n_head": whole(8),
        "num_attention_heads": whole(None),
        "layer_norm_epsilon": number(1e-5),
        "initializer_range": number(0.02),
        "seq_length": whole(None),
        "n_inner": must(None),
        "apply_residual_connection_post_layernorm": must(False),
        "hidden_dropout": number(0.0),
        "attention_dropout": number(0.0),
        # These change the order of rounding in the public class, not what is computed.
        "slow_but_exact": flag(False),
        "masked_softmax_fusion": flag(True),
        "attention_softmax_in_fp32": flag(True),
        "bias_dropout_fusion": flag(True),
        "skip_bias_add": flag(True),
        "skip_bias_add_qkv": flag(False),
        "offset_alibi": whole(None),
        "unk_token_id": whole(None),
        "tie_word_embeddings": flag(True),
        "bos_token_id": ids(1),
        "eos_token_id": ids(2),
    }

    @classmethod
    def read(cls, c: Values) -> Mapping[str, Any]:
        return {
            "vocab": c["vocab_size"],
            "width": c["hidden_size"] if c["n_embed"] is None else c["n_embed"],
            "depth": c["n_layer"] if c["num_hidden_layers"] is None else c["num_hidden_layers"],
            "context": c["seq_length"] or 2048,
            "attention.heads": c["n_head"] if c["num_attention_heads"] is None else c["num_attention_heads"],
            "attention.dropout": float(c["attention_dropout"]),
            "block.dropout": float(c["hidden_dropout"]),
            "norm.eps": float(c["layer_norm_epsilon"]),
            "head.tied": c["tie_word_embeddings"],
            "init.std": float(c["initializer_range"]),
        }

    @classmethod
    def write(cls, spec: ModelSpec) -> Mapping[str, Any]:
        stack = spec.stacks[-1]
        layer = stack.layers[0]
        return {
            "vocab_size": spec.vocab,
            "hidden_size": spec.width,
            "n_layer": stack.depth,
            "n_head": layer.attention.heads,
            "layer_norm_epsilon": layer.norm.leaf.eps,
            "initializer_range": getattr(spec.init, "std", 0.02),
            "seq_length": spec.context,
            "hidden_dropout": layer.block.dropout,
            "attention_dropout": layer.attention.dropout,
            "tie_word_embeddings": isinstance(spec.head, TokenHead) and spec.head.tied,
        }

    @classmethod
    def weights(cls, spec: ModelSpec) -> StateMap:
        parts = {
            "self_attention.dense": "attention.body.o",
            "mlp.dense_h_to_4h": "ffn.body.up",
            "mlp.dense_4h_to_h": "ffn.body.down",
            "input_layernorm": "attention.inner",
            "post_attention_layernorm": "ffn.inner",
        }
        return StateMap(
            rules=(
                Rule("transformer.word_embeddings.weight", "embed.tokens.weight"),
                Rule("transformer.word_embeddings_layernorm.{p}", "decoder.embedding_norm.{p}"),
                Rule(
                    f"{LAYER}.self_attention.query_key_value.{{p}}",
                    tuple(f"{BLOCK}.attention.body.{name}.{{p}}" for name in "qkv"),
                    PerHead(spec.stacks[-1].layers[0].attention.heads),
                ),
                *(Rule(f"{LAYER}.{theirs}.{{p}}", f"{BLOCK}.{ours}.{{p}}") for theirs, ours in parts.items()),
                Rule("transformer.ln_f.{p}", "decoder.final_norm.{p}"),
                Rule("lm_head.weight", "head.weight"),
            ),
            copies={"lm_head.weight": "transformer.word_embeddings.weight"},
            prefix="transformer.",
        )

    @classmethod
    def tiny(cls) -> dict[str, Any]:
        # Six heads: not a power of two, so that slopes are taken from two sequences.
        return {
            "vocab_size": 61, "hidden_size": 24, "n_layer": 3, "n_head": 6, "layer_norm_epsilon": 1e-3,
            "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 3,
        }  # fmt: skip
