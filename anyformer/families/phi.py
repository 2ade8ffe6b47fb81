"""Phi-1 to Phi-2 (Microsoft 2023): attention and feed-forward in parallel on one norm, RoPE on part of a head, biases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyformer.families.config_keys import Values, activation_of, flag, ids, number, plain_ffn, text, whole
from anyformer.families.family import Family, Preset
from anyformer.families.rope_keys import ROPE_KEYS, read_rope, share_of, write_rope
from anyformer.families.statemap import Rule, StateMap
from anyformer.specs.embed_head import TokenHead
from anyformer.specs.model import ModelSpec

LAYER, BLOCK = "model.layers.{i}", "decoder.blocks.{i}"


class Phi(Family, kind="phi"):
    """Phi-1, Phi-1.5 and Phi-2."""

    base = {
        "vocab": 51200,
        "context": 2048,
        "attention": {"heads": 1, "bias": "qkvo"},
        "norm": {"kind": "layernorm", "eps": 1e-5},
        "position": {"kind": "rope", "theta": 1e4, "fraction": 0.5},
        "ffn": {"kind": "gelu_tanh", "bias": True},
        "block": {"wiring": "parallel"},
        "head": {"kind": "lm", "bias": True},
        "init": {"kind": "normal", "std": 0.02},
    }
    presets = (
        Preset(
            name="phi-1.5", hub=("microsoft/phi-1_5",), also=("phi-1_5",), title="Phi-1.5 (2023)",
            changes={"width": 2048, "depth": 24, "attention.heads": 32},
            params=1_418_270_720,
            published="1,418,270,720 in released files",
            evidence="configs in training and serving code of two other projects",
            note="Phi-1 has the same shapes, as generally known",
        ),
        Preset(
            name="phi-2", hub=("microsoft/phi-2",), title="Phi-2 (2023)",
            changes={
                "width": 2560, "depth": 32, "attention.heads": 32, "position.fraction": 0.4,
                "ids.bos": 50256, "ids.eos": [50256],
            },
            params=2_779_683_840,
            published="2,779,683,840 in released files",
            evidence="configs in training, serving and analysis code of three other projects",
            note="32 of a head's 80 dimensions turn; ids as generally known",
        ),
    )  # fmt: skip
    architectures = ("PhiForCausalLM",)
    model_type = "phi"
    keys = ROPE_KEYS | {
        "vocab_size": whole(51200),
        "hidden_size": whole(2048),
        "intermediate_size": whole(8192),
        "num_hidden_layers": whole(24),
        "num_attention_heads": whole(32),
        "num_key_value_heads": whole(None),
        "resid_pdrop": number(0.0),
        "embd_pdrop": number(0.0),
        "attention_dropout": number(0.0),
        "hidden_act": text("gelu_new"),
        "max_position_embeddings": whole(2048),
        "initializer_range": number(0.02),
        "layer_norm_eps": number(1e-5),
        "tie_word_embeddings": flag(False),
        "qk_layernorm": flag(False),
        "bos_token_id": ids(1),
        "eos_token_id": ids(2),
    }

    @classmethod
    def read(cls, c: Values) -> Mapping[str, Any]:
        heads, eps = c["num_attention_heads"], float(c["layer_norm_eps"])
        return read_rope(c, context=c["max_position_embeddings"], fraction=0.5) | {
            "vocab": c["vocab_size"],
            "width": c["hidden_size"],
            "depth": c["num_hidden_layers"],
            "context": c["max_position_embeddings"],
            "embed.dropout": float(c["embd_pdrop"]),
            "attention.heads": heads,
            "attention.kv_heads": None if c["num_key_value_heads"] == heads else c["num_key_value_heads"],
            "attention.qk_norm": {"kind": "layernorm", "eps": eps} if c["qk_layernorm"] else None,
            "attention.dropout": float(c["attention_dropout"]),
            "block.dropout": float(c["resid_pdrop"]),
            "ffn.kind": plain_ffn(c, "hidden_act"),
            "ffn.bias": True,
            "ffn.width": c["intermediate_size"],
            "norm.eps": eps,
            "head.tied": c["tie_word_embeddings"],
            "init.std": float(c["initializer_range"]),
        }

    @classmethod
    def write(cls, spec: ModelSpec) -> Mapping[str, Any]:
        stack = spec.stacks[-1]
        layer = stack.layers[0]
        dims, position = spec.dims(layer, stack), layer.position
        return write_rope(position, fraction=share_of(position, dims.head_dim)) | {
            "vocab_size": spec.vocab,
            "hidden_size": spec.width,
            "intermediate_size": dims.ffn_width,
            "num_hidden_layers": stack.depth,
            "num_attention_heads": dims.heads,
            "num_key_value_heads": dims.kv_heads,
            "resid_pdrop": layer.block.dropout,
            "embd_pdrop": spec.embed.dropout,
            "attention_dropout": layer.attention.dropout,
            "hidden_act": activation_of(layer.ffn, gated=False, prefer="gelu_new"),
            "max_position_embeddings": spec.context,
            "initializer_range": getattr(spec.init, "std", 0.02),
            "layer_norm_eps": layer.norm.leaf.eps,
            "tie_word_embeddings": isinstance(spec.head, TokenHead) and spec.head.tied,
            "qk_layernorm": layer.attention.qk_norm is not None,
        }

    @classmethod
    def weights(cls, spec: ModelSpec) -> StateMap:
        parts = {
            "self_attn.q_proj": "attention.body.q",
            "self_attn.k_proj": "attention.body.k",
            "self_attn.v_proj": "attention.body.v",
            "self_attn.dense": "attention.body.o",
            "self_attn.q_layernorm": "attention.body.q_norm",
            "self_attn.k_layernorm": "attention.body.k_norm",
            "mlp.fc1": "ffn.body.up",
            "mlp.fc2": "ffn.body.down",
            "input_layernorm": "attention.inner",
        }
        return StateMap(
            rules=(
                Rule("model.embed_tokens.weight", "embed.tokens.weight"),
                *(Rule(f"{LAYER}.{theirs}.{{p}}", f"{BLOCK}.{ours}.{{p}}") for theirs, ours in parts.items()),
                Rule("model.final_layernorm.{p}", "decoder.final_norm.{p}"),
                Rule("lm_head.{p}", "head.{p}"),
            ),
            copies={"lm_head.weight": "model.embed_tokens.weight"},
            ignored=(r"(model\.)?(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq",),
            prefix="model.",
        )

    @classmethod
    def tiny(cls) -> dict[str, Any]:
        return {
            "vocab_size": 61, "hidden_size": 36, "intermediate_size": 40, "num_hidden_layers": 3,
            "num_attention_heads": 3, "max_position_embeddings": 64, "rope_theta": 500.0,
            "partial_rotary_factor": 0.5, "layer_norm_eps": 1e-3, "bos_token_id": 1, "eos_token_id": 2,
        }  # fmt: skip
