"""Gemma 2 (2024): norms before and after each branch, capped scores and logits, every second layer with a window."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyformer.families import llama_like as like
from anyformer.families.family import Family, Preset
from anyformer.families.keys import Values, flag, ids, must, number, text, texts, whole
from anyformer.families.llama import BASE, sizes
from anyformer.families.rope_keys import read_rope, write_rope
from anyformer.families.statemap import Rule, StateMap
from anyformer.families.windows import FULL, LOCAL, each_layer, read_windows, window_of
from anyformer.specs.ends import TokenHead
from anyformer.specs.model import ModelSpec
from anyformer.specs.scale import evaluate


class Gemma2(Family, kind="gemma2"):
    """Gemma 2."""

    base = BASE | {
        # A stored gain of 0 means 1, and it is multiplied in fp32.
        "norm": {"kind": "rmsnorm", "eps": 1e-6, "gain": "one_plus", "gain_at": "before_cast", "placement": "sandwich"},
        "ffn": {"kind": "geglu", "form": "tanh"},
        "embed": {"kind": "tokens", "scale": "sqrt(width)", "round_scale": True},
        "head": {"kind": "lm", "tied": True},
    }
    presets = (
        Preset(
            name="gemma-2-27b", title="Gemma 2 27B (2024)",
            changes=sizes(4608, 46, 32, 16, 36864, 256000, 8192)
            | {
                "attention.head_dim": 128, "attention.scale": "1/sqrt(144)", "attention.softcap": 50.0,
                "head.softcap": 30.0, "ids.pad": 0, "ids.eos": [1], "ids.bos": 2,
                "layers": {"order": "local, global", "local": {"attention": {"pattern": "window(4096)"}}, "global": {}},
            },
            params=27_227_128_320,
            published="27,227,128,320 in released files",
            evidence="the publisher's code and two other projects",
            note="scores are scaled by 144 = width / heads, not by the head's own 128",
        ),
    )  # fmt: skip
    architectures = ("Gemma2ForCausalLM",)
    model_type = "gemma2"
    keys = like.keys(
        vocab=256000, width=2304, ffn=9216, depth=26, heads=8, kv_heads=4, context=8192, eps=1e-6
    ) | {
        "head_dim": whole(256),
        "hidden_activation": text("gelu_pytorch_tanh"),
        # The released files carry it too, and the public class reads the other one only.
        "hidden_act": text("gelu_pytorch_tanh"),
        "attention_bias": flag(False),
        "query_pre_attn_scalar": number(256),
        "sliding_window": whole(4096, null=True),
        "layer_types": texts(),
        "final_logit_softcapping": number(30.0, null=True),
        "attn_logit_softcapping": number(50.0, null=True),
        "use_bidirectional_attention": must(None, False),
        "tie_word_embeddings": flag(True),
        "pad_token_id": ids(0),
        "eos_token_id": ids(1),
        "bos_token_id": ids(2),
    }  # fmt: skip

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
        dims = spec.dims(layer, stack)
        window, types = window_of(spec)
        # The power undoes a root: the last digits are noise.
        scalar = float(f"{evaluate(layer.attention.scale, dims.names()) ** -2:.12g}")
        own = {
            "head_dim": dims.head_dim,
            "attention_bias": bool(layer.attention.bias),
            "query_pre_attn_scalar": int(scalar) if scalar.is_integer() else scalar,
            "sliding_window": window,
            "layer_types": types,
            "attn_logit_softcapping": layer.attention.softcap,
            "final_logit_softcapping": spec.head.softcap if isinstance(spec.head, TokenHead) else None,
        }
        return like.write(spec, activation="hidden_activation") | write_rope(layer.position) | own

    @classmethod
    def weights(cls, spec: ModelSpec) -> StateMap:
        norms = (
            Rule(f"{like.LAYER}.input_layernorm.weight", f"{like.BLOCK}.attention.inner.weight"),
            Rule(f"{like.LAYER}.post_attention_layernorm.weight", f"{like.BLOCK}.attention.outer.weight"),
            Rule(f"{like.LAYER}.pre_feedforward_layernorm.weight", f"{like.BLOCK}.ffn.inner.weight"),
            Rule(f"{like.LAYER}.post_feedforward_layernorm.weight", f"{like.BLOCK}.ffn.outer.weight"),
        )
        return like.state_map(*like.ATTENTION, *like.FFN, *norms)

    @classmethod
    def tiny(cls) -> dict[str, Any]:
        # Caps so low that they bend the numbers of a small model.
        return like.tiny(
            head_dim=12, query_pre_attn_scalar=7, sliding_window=5, attn_logit_softcapping=1.5,
            final_logit_softcapping=2.0, num_hidden_layers=4,
        )  # fmt: skip
