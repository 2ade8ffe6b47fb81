"""LLaMA and its many relatives (Touvron et al. 2023): RMSNorm first, RoPE in halves, SwiGLU, no biases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyformer.families import llama_like as like
from anyformer.families.family import Family, Preset
from anyformer.families.keys import Values, flag, ids, must, whole
from anyformer.families.rope_keys import read_rope, write_rope
from anyformer.families.statemap import StateMap
from anyformer.specs.model import ModelSpec


def sizes(width: int, depth: int, heads: int, kv_heads: int, ffn: int, vocab: int, context: int) -> dict[str, int]:
    """The seven numbers in which these models differ most."""
    return {
        "width": width, "depth": depth, "attention.heads": heads, "attention.kv_heads": kv_heads, "ffn.width": ffn,
        "vocab": vocab, "context": context,
    }  # fmt: skip


BASE: dict[str, Any] = {
    "attention": {"heads": 1},
    "norm": {"kind": "rmsnorm", "eps": 1e-5},
    "position": {"kind": "rope", "theta": 1e4},
    "ffn": {"kind": "swiglu"},
    "head": {"kind": "lm"},
    "init": {"kind": "normal", "std": 0.02},
}
"""The design that most later families start from."""


class Llama(Family, kind="llama"):
    """LLaMA 1 to 3 and models released in its format."""

    base = BASE
    presets = (
        Preset(
            name="llama-7b", title="LLaMA 7B (2023)",
            changes=sizes(4096, 32, 32, 32, 11008, 32000, 2048) | {"norm.eps": 1e-6, "ids.bos": 1, "ids.eos": [2]},
            params=6_738_415_616,
            published="6,738,415,616 in released files; the paper rounds to 6.7B",
            evidence="configs in training and analysis code of three other projects, which agree",
            note="a widespread copy holds 2,048 numbers more: 32 stored tables of rotation frequencies",
        ),
        Preset(
            name="llama-2-70b", title="Llama 2 70B (2023)",
            changes=sizes(8192, 80, 64, 8, 28672, 32000, 4096) | {"ids.bos": 1, "ids.eos": [2]},
            params=68_976_648_192,
            published="68,976,648,192 in released copies",
            evidence="configs in training and serving code of three other projects, which agree",
            note="69.0B, not 70B; the smaller Llama 2 models have no grouped heads",
        ),
        Preset(
            name="llama-3-8b", title="Llama 3 8B (2024)",
            changes=sizes(4096, 32, 32, 8, 14336, 128256, 8192)
            | {"position.theta": 5e5, "ids.bos": 128000, "ids.eos": [128001]},
            params=8_030_261_248,
            published="8,030,261,248 in released files",
            evidence="configs in training and serving code of three other projects, which agree",
        ),
        Preset(
            name="smollm2-1.7b", title="SmolLM2 1.7B (2024)",
            changes=sizes(2048, 24, 32, 32, 8192, 49152, 8192) | {"position.theta": 130000.0, "head.tied": True},
            params=1_711_376_384,
            published="1,711,376,384 in released files",
            evidence="the publisher's training file and one other project; that the head is tied follows from the count",
            note="trained with RoPE in pairs, released in halves",
        ),
    )  # fmt: skip
    architectures = ("LlamaForCausalLM",)
    model_type = "llama"
    keys = like.keys(
        vocab=32000, width=4096, ffn=11008, depth=32, heads=32, kv_heads=None, context=2048, eps=1e-6
    ) | {
        "head_dim": whole(None),
        "attention_bias": flag(False),
        "mlp_bias": flag(False),
        "rope_interleaved": must(False),
        "bos_token_id": ids(1),
        "eos_token_id": ids(2),
    }  # fmt: skip

    @classmethod
    def read(cls, c: Values) -> Mapping[str, Any]:
        return (
            like.read(c, head_dim=c["head_dim"])
            | read_rope(c, context=c["max_position_embeddings"])
            | {"attention.bias": "qkvo" if c["attention_bias"] else "", "ffn.bias": c["mlp_bias"]}
        )

    @classmethod
    def write(cls, spec: ModelSpec) -> Mapping[str, Any]:
        stack = spec.stacks[-1]
        layer = stack.layers[0]
        return (
            like.write(spec)
            | write_rope(layer.position)
            | {
                "head_dim": spec.dims(layer, stack).head_dim,
                "attention_bias": bool(layer.attention.bias),
                "mlp_bias": layer.ffn.bias,
            }
        )

    @classmethod
    def weights(cls, spec: ModelSpec) -> StateMap:
        return like.state_map(*like.ATTENTION, *like.FFN, *like.PRE_NORMS)

    @classmethod
    def tiny(cls) -> dict[str, Any]:
        return like.tiny(rope_theta=500.0)
