"""OLMo 2 (2024): norms on the output of each branch, and on the whole projected queries and keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyformer.families import llama_like as like
from anyformer.families.config_keys import Values, flag, ids
from anyformer.families.family import Family, Preset
from anyformer.families.llama import BASE, sizes
from anyformer.families.rope_keys import read_rope, write_rope
from anyformer.families.statemap import Rule, StateMap
from anyformer.specs.model import ModelSpec

# The gain is multiplied in fp32, before the cast back.
NORM = {"kind": "rmsnorm", "eps": 1e-6, "gain_at": "before_cast"}
OLMO: dict[str, Any] = BASE | {
    "attention": {"heads": 1, "qk_norm": NORM | {"scope": "whole"}},
    "norm": NORM | {"placement": "output"},
    "init": {"kind": "normal", "std": 0.02, "cut": 3.0},
    "loss": {"z": 1e-5},
}
"""What OLMo 2 and 3 share."""

OUTPUT_NORMS = (
    Rule(f"{like.LAYER}.post_attention_layernorm.weight", f"{like.BLOCK}.attention.outer.weight"),
    Rule(f"{like.LAYER}.post_feedforward_layernorm.weight", f"{like.BLOCK}.ffn.outer.weight"),
)


class Olmo2(Family, kind="olmo2"):
    """OLMo 2."""

    base = OLMO
    presets = (
        Preset(
            name="olmo-2-1b", title="OLMo 2 1B (2025)",
            changes=sizes(2048, 16, 16, 16, 8192, 100352, 4096) | {"position.theta": 5e5},
            params=1_484_916_736,
            published="1,484,916,736 in released files",
            evidence="the publisher's training file and one other project",
            note="its head is its own, unlike that of OLMo 1B",
        ),
        Preset(
            name="olmo-2-7b", title="OLMo 2 7B (2024)",
            changes=sizes(4096, 32, 32, 32, 11008, 100352, 4096) | {"position.theta": 5e5},
            params=7_298_617_344,
            published="7,298,617,344 in released files",
            evidence="the publisher's training file and two other projects",
            note="z-loss 1e-5 and draws cut at 3 sigma as in the training file; the vocabulary is padded to 100352",
        ),
        Preset(
            name="olmo-2-13b", title="OLMo 2 13B (2024)",
            changes=sizes(5120, 40, 40, 40, 13824, 100352, 4096) | {"position.theta": 5e5},
            params=13_716_198_400,
            published="13,716,198,400 in released files",
            evidence="the publisher's training file and two other projects",
        ),
        Preset(
            name="olmo-2-32b", title="OLMo 2 32B (2025)",
            changes=sizes(5120, 64, 40, 8, 27648, 100352, 4096) | {"position.theta": 5e5},
            params=32_234_279_936,
            published="32,234,279,936 in released files",
            evidence="the publisher's training code and one other project",
            note="the only OLMo 2 with grouped heads",
        ),
    )  # fmt: skip
    architectures = ("Olmo2ForCausalLM",)
    model_type = "olmo2"
    keys = like.keys(
        vocab=50304, width=4096, ffn=11008, depth=32, heads=32, kv_heads=None, context=2048, eps=1e-5
    ) | {
        "attention_bias": flag(False),
        "pad_token_id": ids(1),
        "eos_token_id": ids(50279),
    }  # fmt: skip

    @classmethod
    def read(cls, c: Values) -> Mapping[str, Any]:
        own = {
            "attention.qk_norm.eps": float(c["rms_norm_eps"]),
            "attention.bias": "qkvo" if c["attention_bias"] else "",
        }
        return like.read(c) | read_rope(c, context=c["max_position_embeddings"]) | own

    @classmethod
    def write(cls, spec: ModelSpec) -> Mapping[str, Any]:
        layer = spec.stacks[-1].layers[0]
        return like.write(spec) | write_rope(layer.position) | {"attention_bias": bool(layer.attention.bias)}

    @classmethod
    def weights(cls, spec: ModelSpec) -> StateMap:
        return like.state_map(*like.ATTENTION, *like.FFN, *like.HEAD_NORMS, *OUTPUT_NORMS)

    @classmethod
    def tiny(cls) -> dict[str, Any]:
        return like.tiny(rope_theta=500.0)
