"""Gemma 2 (2024): norms before and after each branch, capped scores and logits, every second layer with a window."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyformer.families import llama_like as like
from anyformer.families.config_keys import Values, number, text, texts, whole
from anyformer.families.family import Family, Preset
from anyformer.families.gemma import BASE, IDS, KEYS, NORM
from anyformer.families.llama import sizes
from anyformer.families.rope_keys import read_rope, write_rope
from anyformer.families.statemap import Rule, StateMap
from anyformer.families.window_keys import FULL, LOCAL, each_layer, read_windows, window_of
from anyformer.specs.embed_head import TokenHead
from anyformer.specs.formulas import evaluate
from anyformer.specs.model import ModelSpec

TRAITS: dict[str, Any] = {
    "attention.softcap": 50.0,
    "head.softcap": 30.0,
    "layers": {"order": "local, global", "local": {"attention": {"pattern": "window(4096)"}}, "global": {}},
} | IDS
"""What all sizes have."""

SANDWICH = (
    Rule(f"{like.LAYER}.input_layernorm.weight", f"{like.BLOCK}.attention.inner.weight"),
    Rule(f"{like.LAYER}.post_attention_layernorm.weight", f"{like.BLOCK}.attention.outer.weight"),
    Rule(f"{like.LAYER}.pre_feedforward_layernorm.weight", f"{like.BLOCK}.ffn.inner.weight"),
    Rule(f"{like.LAYER}.post_feedforward_layernorm.weight", f"{like.BLOCK}.ffn.outer.weight"),
)


def scalar_of(spec: ModelSpec) -> float:
    """The number by whose root scores are divided, in the first layer."""
    stack = spec.stacks[-1]
    layer = stack.layers[0]
    # The power undoes a root: the last digits are noise.
    scalar = float(f"{evaluate(layer.attention.scale, spec.dims(layer, stack).names()) ** -2:.12g}")
    return int(scalar) if scalar.is_integer() else scalar


class Gemma2(Family, kind="gemma2"):
    """Gemma 2."""

    base = BASE | {"norm": NORM | {"placement": "sandwich"}}
    presets = (
        Preset(
            name="gemma-2-2b", title="Gemma 2 2B (2024)",
            hub=("google/gemma-2-2b",),
            changes=sizes(2304, 26, 8, 4, 9216, 256000, 8192) | TRAITS | {"attention.head_dim": 256},
            params=2_614_341_888,
            published="2,614,341,888 in released files",
            evidence="the publisher's code and two other projects",
            note="256 is the head's own width, by which scores are scaled; a copy for Japanese says 224",
        ),
        Preset(
            name="gemma-2-9b", title="Gemma 2 9B (2024)",
            hub=("google/gemma-2-9b",),
            changes=sizes(3584, 42, 16, 8, 14336, 256000, 8192) | TRAITS | {"attention.head_dim": 256},
            params=9_241_705_984,
            published="9,241,705,984 in released files",
            evidence="the publisher's code and two other projects",
            note="scores are scaled by 256, the head's own width; one of the projects says 224 = width / heads",
        ),
        Preset(
            name="gemma-2-27b", title="Gemma 2 27B (2024)",
            hub=("google/gemma-2-27b",),
            changes=sizes(4608, 46, 32, 16, 36864, 256000, 8192)
            | TRAITS
            | {"attention.head_dim": 128, "attention.scale": "1/sqrt(144)"},
            params=27_227_128_320,
            published="27,227,128,320 in released files",
            evidence="the publisher's code and two other projects",
            note="scores are scaled by 144 = width / heads, not by the head's own 128",
        ),
    )  # fmt: skip
    architectures = ("Gemma2ForCausalLM",)
    model_type = "gemma2"
    keys = (
        like.keys(vocab=256000, width=2304, ffn=9216, depth=26, heads=8, kv_heads=4, context=8192, eps=1e-6)
        | KEYS
        | {
            "hidden_activation": text("gelu_pytorch_tanh"),
            # The released files carry it too, and the public class reads the other one only.
            "hidden_act": text("gelu_pytorch_tanh"),
            "query_pre_attn_scalar": number(256),
            "sliding_window": whole(4096, null=True),
            "layer_types": texts(),
            "final_logit_softcapping": number(30.0, null=True),
            "attn_logit_softcapping": number(50.0, null=True),
        }
    )

    @classmethod
    def read(cls, c: Values) -> Mapping[str, Any]:
        types = c["layer_types"] or each_layer(c, lambda i: FULL if i % 2 else LOCAL)
        own = {
            "attention.bias": "qkvo" if c["attention_bias"] else "",
            "attention.scale": f"1/sqrt({c['query_pre_attn_scalar']})",
            "attention.softcap": c["attn_logit_softcapping"],
            "head.softcap": c["final_logit_softcapping"],
        }
        return (
            like.read(c, head_dim=c["head_dim"], activation="hidden_activation")
            | read_rope(c, context=c["max_position_embeddings"])
            | read_windows(c, types, c["sliding_window"])
            | own
        )

    @classmethod
    def write(cls, spec: ModelSpec) -> Mapping[str, Any]:
        stack = spec.stacks[-1]
        layer = stack.layers[0]
        window, types = window_of(spec)
        own = {
            "head_dim": spec.dims(layer, stack).head_dim,
            "attention_bias": bool(layer.attention.bias),
            "query_pre_attn_scalar": scalar_of(spec),
            "sliding_window": window,
            "layer_types": types,
            "attn_logit_softcapping": layer.attention.softcap,
            "final_logit_softcapping": spec.head.softcap if isinstance(spec.head, TokenHead) else None,
        }
        return like.write(spec, activation="hidden_activation") | write_rope(layer.position) | own

    @classmethod
    def weights(cls, spec: ModelSpec) -> StateMap:
        return like.state_map(*like.ATTENTION, *like.FFN, *SANDWICH)

    @classmethod
    def tiny(cls) -> dict[str, Any]:
        # Caps so low that they bend the numbers of a small model.
        return like.tiny(
            head_dim=12, query_pre_attn_scalar=7, sliding_window=5, attn_logit_softcapping=1.5,
            final_logit_softcapping=2.0, num_hidden_layers=4,
        )  # fmt: skip
