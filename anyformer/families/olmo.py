"""OLMo (Groeneveld et al. 2024), the first: LLaMA with LayerNorms that learn nothing, and optional clipping."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyformer.families import llama_like as like
from anyformer.families.config_keys import Values, flag, ids, number
from anyformer.families.family import Family, Preset
from anyformer.families.llama import BASE, sizes
from anyformer.families.rope_keys import read_rope, write_rope
from anyformer.families.statemap import StateMap
from anyformer.specs.model import ModelSpec


class Olmo(Family, kind="olmo"):
    """The first OLMo."""

    base = BASE | {"norm": {"kind": "layernorm", "eps": 1e-5, "gain": "none", "bias": False}}
    presets = (
        Preset(
            name="olmo-1b", title="OLMo 1B (2024)",
            changes=sizes(2048, 16, 16, 16, 8192, 50304, 2048) | {"head.tied": True},
            params=1_176_764_416,
            published="1,176,764,416 in released files",
            evidence="the publisher's training file and two other projects",
            note="trained from an init that depends on the layer, which this spec does not repeat",
        ),
        Preset(
            name="olmo-7b", title="OLMo 7B (2024)",
            changes=sizes(4096, 32, 32, 32, 11008, 50304, 2048),
            params=6_888_095_744,
            published="6.9B by general knowledge of the paper; no exact count was found",
            evidence="the publisher's training file and two other projects",
            note="init as in OLMo 1B",
        ),
        Preset(
            name="olmo-7b-0724", title="OLMo 7B 0724 (2024)",
            changes=sizes(4096, 32, 32, 32, 11008, 50304, 4096) | {"attention.clip_qkv": 8.0},
            params=6_888_095_744,
            published="6.9B by general knowledge; no exact count was found",
            evidence="the publisher's training file",
            note="queries, keys and values clipped at 8, and twice the context of the first 7B",
        ),
    )  # fmt: skip
    architectures = ("OlmoForCausalLM",)
    model_type = "olmo"
    keys = like.keys(
        vocab=50304, width=4096, ffn=11008, depth=32, heads=32, kv_heads=None, context=2048, eps=None
    ) | {
        "attention_bias": flag(False),
        "clip_qkv": number(None),
        "pad_token_id": ids(1),
        "eos_token_id": ids(50279),
    }  # fmt: skip

    @classmethod
    def read(cls, c: Values) -> Mapping[str, Any]:
        own = {"attention.bias": "qkvo" if c["attention_bias"] else "", "attention.clip_qkv": c["clip_qkv"]}
        return like.read(c) | read_rope(c, context=c["max_position_embeddings"]) | own

    @classmethod
    def write(cls, spec: ModelSpec) -> Mapping[str, Any]:
        layer = spec.stacks[-1].layers[0]
        own = {"attention_bias": bool(layer.attention.bias), "clip_qkv": layer.attention.clip_qkv}
        written = like.write(spec) | write_rope(layer.position) | own
        # The class has a constant instead.
        del written["rms_norm_eps"]
        return written

    @classmethod
    def weights(cls, spec: ModelSpec) -> StateMap:
        return like.state_map(*like.ATTENTION, *like.FFN)

    @classmethod
    def tiny(cls) -> dict[str, Any]:
        # So low that it clips the numbers of a small model.
        return {name: value for name, value in like.tiny(clip_qkv=0.7).items() if name != "rms_norm_eps"}
