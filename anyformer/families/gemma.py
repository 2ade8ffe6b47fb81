"""Gemma (2024): LLaMA's design with gains stored as their distance from 1, scaled embeddings, GEGLU and wide heads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyformer.families import llama_like as like
from anyformer.families.config_keys import Values, flag, ids, must, text, whole
from anyformer.families.family import Family, Preset
from anyformer.families.llama import BASE as LLAMA
from anyformer.families.llama import sizes
from anyformer.families.rope_keys import read_rope, write_rope
from anyformer.families.statemap import StateMap
from anyformer.specs.model import ModelSpec

# A stored gain of 0 means 1, and it is multiplied in fp32.
NORM: dict[str, Any] = {"kind": "rmsnorm", "eps": 1e-6, "gain": "one_plus", "gain_at": "before_cast"}
BASE: dict[str, Any] = LLAMA | {
    "norm": NORM,
    "ffn": {"kind": "geglu", "form": "tanh"},
    "embed": {"kind": "tokens", "scale": "sqrt(width)", "round_scale": True},
    "head": {"kind": "lm", "tied": True},
}
"""What the first three generations share."""
IDS: dict[str, Any] = {"ids.pad": 0, "ids.eos": [1], "ids.bos": 2}
KEYS = {
    "head_dim": whole(256),
    "attention_bias": flag(False),
    "tie_word_embeddings": flag(True),
    "use_bidirectional_attention": must(None, False),
    "pad_token_id": ids(0),
    "eos_token_id": ids(1),
    "bos_token_id": ids(2),
}


class Gemma(Family, kind="gemma"):
    """The first Gemma."""

    base = BASE
    presets = (
        Preset(
            name="gemma-2b", title="Gemma 2B (2024)",
            hub=("google/gemma-2b",),
            changes=sizes(2048, 18, 8, 1, 16384, 256000, 8192) | IDS | {"attention.head_dim": 256},
            params=2_506_172_416,
            published="2,506,172,416 in released files",
            evidence="the publisher's code and two other projects",
            note="2.5B, with one head of keys and values; another project lists an eps of 1e-5 for every Gemma",
        ),
        Preset(
            name="gemma-7b", title="Gemma 7B (2024)",
            hub=("google/gemma-7b",),
            changes=sizes(3072, 28, 16, 16, 24576, 256000, 8192) | IDS | {"attention.head_dim": 256},
            params=8_537_680_896,
            published="8,537,680,896 in released files",
            evidence="the publisher's code and two other projects",
            note="8.5B, not 7B; 16 heads of 256 are wider than the model",
        ),
    )  # fmt: skip
    architectures = ("GemmaForCausalLM",)
    model_type = "gemma"
    keys = (
        like.keys(vocab=256000, width=3072, ffn=24576, depth=28, heads=16, kv_heads=16, context=8192, eps=1e-6)
        | KEYS
        | {
            "hidden_act": text("gelu_pytorch_tanh"),
            # Some released files have it beside the other one; the public class does not read it.
            "hidden_activation": must(None, "gelu_pytorch_tanh"),
        }
    )

    @classmethod
    def read(cls, c: Values) -> Mapping[str, Any]:
        own = {"attention.bias": "qkvo" if c["attention_bias"] else ""}
        if c["hidden_act"] == "gelu":
            # The first files say GELU and mean that by tanh, with which the models were trained.
            own |= {"ffn.form": "tanh"}
        return like.read(c, head_dim=c["head_dim"]) | read_rope(c, context=c["max_position_embeddings"]) | own

    @classmethod
    def write(cls, spec: ModelSpec) -> Mapping[str, Any]:
        stack = spec.stacks[-1]
        layer = stack.layers[0]
        own = {"head_dim": spec.dims(layer, stack).head_dim, "attention_bias": bool(layer.attention.bias)}
        return like.write(spec) | write_rope(layer.position) | own

    @classmethod
    def weights(cls, spec: ModelSpec) -> StateMap:
        return like.state_map(*like.ATTENTION, *like.FFN, *like.PRE_NORMS)

    @classmethod
    def tiny(cls) -> dict[str, Any]:
        return like.tiny(head_dim=12, rope_theta=500.0)
