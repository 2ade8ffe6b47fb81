"""StarCoder2 (Lozhkov et al. 2024): LayerNorm first, grouped keys, RoPE in halves, a window, biases everywhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyformer.families import llama_like as like
from anyformer.families.config_keys import Values, activation_of, flag, ids, must, number, plain_ffn, text, whole
from anyformer.families.family import Family, Preset
from anyformer.families.llama import sizes
from anyformer.families.rope_keys import ROPE_KEYS, read_rope, write_rope
from anyformer.families.statemap import Rule, StateMap
from anyformer.families.window_keys import window_of
from anyformer.specs.embed_head import TokenHead
from anyformer.specs.model import ModelSpec


def _preset(
    size: str, width: int, depth: int, heads: int, kv_heads: int, theta: float, params: int, published: str,
    evidence: str, note: str = "", tied: bool = True,
) -> Preset:  # fmt: skip
    return Preset(
        name=f"starcoder2-{size}",
        title=f"StarCoder2 {size.upper()} (2024)",
        changes=sizes(width, depth, heads, kv_heads, 4 * width, 49152, 16384)
        | {"position.theta": theta, "attention.pattern": "window(4096)", "head.tied": tied},
        params=params,
        published=published,
        evidence=evidence,
        note=note,
    )


class StarCoder2(Family, kind="starcoder2"):
    """StarCoder2."""

    base = {
        "attention": {"heads": 1, "bias": "qkvo"},
        "norm": {"kind": "layernorm", "eps": 1e-5},
        "position": {"kind": "rope", "theta": 1e4},
        "ffn": {"kind": "gelu_tanh", "bias": True},
        "head": {"kind": "lm", "tied": True},
        "init": {"kind": "normal", "std": 0.018042},
        "ids": {"bos": 0, "eos": [0]},
    }
    presets = (
        _preset("3b", 3072, 30, 24, 2, 999999.4420358813, 3_030_371_328, "3,030,371,328 in released files",
                "the config in one other project and the log of a conversion in a public issue",
                "theta is the released value to the last digit; ids as generally known"),
        _preset("7b", 4608, 32, 36, 4, 1e6, 7_173_923_840, "7,173,923,840 in released files",
                "configs in two other projects", "ids as generally known"),
        _preset("15b", 6144, 40, 48, 4, 1e5, 15_957_889_024,
                "only its name, which says 15B; lists say 15.7B, which would be a tied head: 15,655,899,136",
                "the config in one other project; that the head is its own from a public issue, in which only 3B and 7B lack one",
                "16.0B; ids as generally known", tied=False),
    )  # fmt: skip
    architectures = ("Starcoder2ForCausalLM",)
    model_type = "starcoder2"
    keys = ROPE_KEYS | {
        "vocab_size": whole(49152),
        "hidden_size": whole(3072),
        "intermediate_size": whole(12288),
        "num_hidden_layers": whole(30),
        "num_attention_heads": whole(24),
        "num_key_value_heads": whole(2),
        "hidden_act": text("gelu_pytorch_tanh"),
        "max_position_embeddings": whole(4096),
        "initializer_range": number(0.018042),
        "norm_epsilon": number(1e-5),
        "sliding_window": whole(None),
        "attention_dropout": number(0.0),
        "residual_dropout": number(0.0),
        "embedding_dropout": number(0.0),
        "use_bias": flag(True),
        "tie_word_embeddings": flag(True),
        "bos_token_id": ids(50256),
        "eos_token_id": ids(50256),
        # What released files say besides, and the public class takes for granted or does not read.
        "activation_function": text(None),
        "layer_norm_epsilon": number(None),
        "mlp_type": must("default"),
        "norm_type": must("layer_norm"),
        "scale_attn_weights": must(True),
        "attention_softmax_in_fp32": flag(True),
        "scale_attention_softmax_in_fp32": flag(True),
    }

    @classmethod
    def read(cls, c: Values) -> Mapping[str, Any]:
        heads, window = c["num_attention_heads"], c["sliding_window"]
        return read_rope(c, context=c["max_position_embeddings"]) | {
            "vocab": c["vocab_size"],
            "width": c["hidden_size"],
            "depth": c["num_hidden_layers"],
            "context": c["max_position_embeddings"],
            "embed.dropout": float(c["embedding_dropout"]),
            "attention.heads": heads,
            "attention.kv_heads": None if c["num_key_value_heads"] == heads else c["num_key_value_heads"],
            "attention.pattern": None if window is None else f"window({window})",
            "attention.bias": "qkvo" if c["use_bias"] else "",
            "attention.dropout": float(c["attention_dropout"]),
            "block.dropout": float(c["residual_dropout"]),
            "ffn.kind": plain_ffn(c, "hidden_act"),
            "ffn.bias": c["use_bias"],
            "ffn.width": c["intermediate_size"],
            "norm.eps": float(c["norm_epsilon"]),
            "head.tied": c["tie_word_embeddings"],
            "init.std": float(c["initializer_range"]),
        }

    @classmethod
    def write(cls, spec: ModelSpec) -> Mapping[str, Any]:
        stack = spec.stacks[-1]
        layer = stack.layers[0]
        dims = spec.dims(layer, stack)
        return write_rope(layer.position) | {
            "vocab_size": spec.vocab,
            "hidden_size": spec.width,
            "intermediate_size": dims.ffn_width,
            "num_hidden_layers": stack.depth,
            "num_attention_heads": dims.heads,
            "num_key_value_heads": dims.kv_heads,
            "hidden_act": activation_of(layer.ffn, gated=False),
            "max_position_embeddings": spec.context,
            "initializer_range": getattr(spec.init, "std", 0.02),
            "norm_epsilon": layer.norm.leaf.eps,
            "sliding_window": window_of(spec)[0],
            "attention_dropout": layer.attention.dropout,
            "residual_dropout": layer.block.dropout,
            "embedding_dropout": spec.embed.dropout,
            "use_bias": bool(layer.attention.bias),
            "tie_word_embeddings": isinstance(spec.head, TokenHead) and spec.head.tied,
        }

    @classmethod
    def weights(cls, spec: ModelSpec) -> StateMap:
        ffn = (
            Rule(f"{like.LAYER}.mlp.c_fc.{{p}}", f"{like.BLOCK}.ffn.body.up.{{p}}"),
            Rule(f"{like.LAYER}.mlp.c_proj.{{p}}", f"{like.BLOCK}.ffn.body.down.{{p}}"),
        )
        return like.state_map(*like.ATTENTION, *ffn, *like.PRE_NORMS)

    @classmethod
    def tiny(cls) -> dict[str, Any]:
        return {
            "vocab_size": 61, "hidden_size": 36, "intermediate_size": 40, "num_hidden_layers": 3,
            "num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 64, "rope_theta": 500.0,
            "norm_epsilon": 1e-3, "sliding_window": 5, "bos_token_id": 1, "eos_token_id": 2,
        }  # fmt: skip
