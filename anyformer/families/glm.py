"""GLM-4 9B (2024): LLaMA's design with biases on queries, keys and values, and RoPE in pairs on half of each head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyformer.families import llama_like as like
from anyformer.families.config_keys import Values, flag, ids, whole
from anyformer.families.family import Family, Preset
from anyformer.families.llama import BASE, sizes
from anyformer.families.rope_keys import read_rope, share_of, write_rope
from anyformer.families.statemap import StateMap
from anyformer.specs.model import ModelSpec

GLM: dict[str, Any] = BASE | {
    "attention": {"heads": 1, "bias": "qkv"},
    "norm": {"kind": "rmsnorm", "eps": 1.5625e-7},
    "position": {"kind": "rope", "theta": 1e4, "layout": "interleaved", "fraction": 0.5},
}
"""What both generations share."""
STOPS = [151329, 151336, 151338]
IDS: dict[str, Any] = {"ids.pad": 151329, "ids.eos": STOPS}
KEYS = like.keys(
    vocab=151552, width=4096, ffn=13696, depth=40, heads=32, kv_heads=2, context=131072, eps=1.5625e-7
) | {
    "head_dim": whole(128),
    "attention_bias": flag(True),
    "pad_token_id": ids(151329),
    "eos_token_id": ids(STOPS),
}  # fmt: skip


def read(c: Values) -> dict[str, Any]:
    """The keys of both generations as changes of a spec."""
    return (
        like.read(c, head_dim=c["head_dim"])
        | read_rope(c, context=c["max_position_embeddings"], fraction=0.5)
        | {"position.layout": "interleaved", "attention.bias": "qkv" if c["attention_bias"] else ""}
    )


def write(spec: ModelSpec) -> dict[str, Any]:
    """Those keys of a spec."""
    stack = spec.stacks[-1]
    layer = stack.layers[0]
    head_dim = spec.dims(layer, stack).head_dim
    own = {"head_dim": head_dim, "attention_bias": bool(layer.attention.bias)}
    return like.write(spec) | write_rope(layer.position, fraction=share_of(layer.position, head_dim)) | own


class Glm(Family, kind="glm"):
    """GLM-4 9B as first released."""

    base = GLM
    presets = (
        Preset(
            name="glm-4-9b", title="GLM-4 9B (2024)",
            changes=sizes(4096, 40, 32, 2, 13696, 151552, 8192) | IDS,
            params=9_399_951_360,
            published="9,399,951,360 in released files; the first ones hold 32 more, a table of rotation frequencies",
            evidence="configs in code of two other projects, the publisher's page and the public class; ids are the "
            "defaults of that class",
            note="the base model; the chat model has a context of 131072 and, by general knowledge, a theta of 5e6",
        ),
    )  # fmt: skip
    architectures = ("GlmForCausalLM",)
    model_type = "glm"
    keys = KEYS

    @classmethod
    def read(cls, c: Values) -> Mapping[str, Any]:
        return read(c)

    @classmethod
    def write(cls, spec: ModelSpec) -> Mapping[str, Any]:
        return write(spec)

    @classmethod
    def weights(cls, spec: ModelSpec) -> StateMap:
        return like.state_map(*like.ATTENTION, *like.FUSED_FFN, *like.PRE_NORMS)

    @classmethod
    def tiny(cls) -> dict[str, Any]:
        return like.tiny(head_dim=12, rope_theta=500.0)
