"""Granite 3 (2024): LLaMA's design with a constant on the embeddings, on each branch, on scores and on logits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyformer.families import llama_like as like
from anyformer.families.config_keys import Values, flag, ids, number
from anyformer.families.family import Family, Preset
from anyformer.families.llama import BASE, sizes
from anyformer.families.rope_keys import read_rope, write_rope
from anyformer.families.statemap import StateMap
from anyformer.specs.embed_head import TokenEmbed, TokenHead
from anyformer.specs.formulas import Scale, evaluate
from anyformer.specs.model import ModelSpec


def _number(scale: Scale, spec: ModelSpec) -> float:
    # A root or a quotient leaves noise in the last digits.
    return float(f"{evaluate(scale, {'width': spec.width, 'depth': spec.depth}):.12g}")


class Granite(Family, kind="granite"):
    """Granite 3."""

    base = BASE | {
        # 0.015625 in the small model and 0.0078125 in the large: one over the head's width in both.
        "attention": {"heads": 1, "scale": "1/head_dim"},
        "block": {"branch_scale": 0.22},
        "embed": {"kind": "tokens", "scale": 12.0},
        "head": {"kind": "lm", "tied": True},
    }
    presets = (
        Preset(
            name="granite-3.0-2b", title="Granite 3.0 2B (2024)",
            changes=sizes(2048, 40, 32, 8, 8192, 49155, 4096) | {"head.scale": "1/8"},
            params=2_533_531_648,
            published="2,533,531,648 in released files of a model of the same shapes",
            evidence="another project's record of the released config, and the publisher's code",
        ),
        Preset(
            name="granite-3.0-8b", title="Granite 3.0 8B (2024)",
            changes=sizes(4096, 40, 32, 8, 12800, 49155, 4096) | {"head.scale": "1/16"},
            params=8_170_848_256,
            published="8,170,864,640 in files of Granite 3.3, which has four tokens more",
            evidence="the publisher's code, and another project's record of the released config",
            note="the publisher's code lists a context of 8192",
        ),
        Preset(
            name="granite-3.1-2b", title="Granite 3.1 2B (2024)",
            changes=sizes(2048, 40, 32, 8, 8192, 49155, 131072) | {"head.scale": "1/8", "position.theta": 5e6},
            params=2_533_531_648,
            published="2,533,531,648 in released files of a model of the same shapes",
            evidence="the config in the publisher's training code",
        ),
        Preset(
            name="granite-3.1-8b", title="Granite 3.1 8B (2024)",
            changes=sizes(4096, 40, 32, 8, 12800, 49155, 131072) | {"head.scale": "1/16", "position.theta": 1e7},
            params=8_170_848_256,
            published="8,170,864,640 in files of Granite 3.3, which has four tokens more",
            evidence="a copy of the config of Granite 3.3, and the publisher's code",
        ),
    )  # fmt: skip
    architectures = ("GraniteForCausalLM",)
    model_type = "granite"
    second = True
    keys = like.keys(
        vocab=32000, width=4096, ffn=11008, depth=32, heads=32, kv_heads=None, context=2048, eps=1e-6
    ) | {
        "attention_bias": flag(False),
        "mlp_bias": flag(False),
        "embedding_multiplier": number(1.0),
        "logits_scaling": number(1.0),
        "residual_multiplier": number(1.0),
        "attention_multiplier": number(1.0),
        "bos_token_id": ids(1),
        "eos_token_id": ids(2),
    }  # fmt: skip

    @classmethod
    def read(cls, c: Values) -> Mapping[str, Any]:
        divisor = float(c["logits_scaling"])
        own = {
            "attention.bias": "qkvo" if c["attention_bias"] else "",
            "attention.scale": float(c["attention_multiplier"]),
            "ffn.bias": c["mlp_bias"],
            "block.branch_scale": float(c["residual_multiplier"]),
            "embed.scale": float(c["embedding_multiplier"]),
            "head.scale": 1.0 if divisor == 1 else f"1/{divisor}",
        }
        return like.read(c) | read_rope(c, context=c["max_position_embeddings"]) | own

    @classmethod
    def write(cls, spec: ModelSpec) -> Mapping[str, Any]:
        stack = spec.stacks[-1]
        layer = stack.layers[0]
        embed, head = spec.embed, spec.head
        own = {
            "attention_bias": bool(layer.attention.bias),
            "mlp_bias": layer.ffn.bias,
            "attention_multiplier": evaluate(layer.attention.scale, spec.dims(layer, stack).names()),
            "residual_multiplier": layer.block.branch_scale,
            "embedding_multiplier": _number(embed.scale, spec) if isinstance(embed, TokenEmbed) else 1.0,
            "logits_scaling": float(f"{1 / _number(head.scale, spec):.10g}") if isinstance(head, TokenHead) else 1.0,
        }
        return like.write(spec) | write_rope(layer.position) | own

    @classmethod
    def weights(cls, spec: ModelSpec) -> StateMap:
        return like.state_map(*like.ATTENTION, *like.FFN, *like.PRE_NORMS)

    @classmethod
    def tiny(cls) -> dict[str, Any]:
        return like.tiny(
            embedding_multiplier=3.0, logits_scaling=7.0, residual_multiplier=0.22, attention_multiplier=0.2,
            rope_theta=500.0, tie_word_embeddings=True,
        )  # fmt: skip
