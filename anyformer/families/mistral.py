"""Mistral (Jiang et al. 2023): LLaMA with grouped heads and, in its first version, a sliding window in every layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyformer.families import llama_like as like
from anyformer.families.config_keys import Values, ids, whole
from anyformer.families.family import Family, Preset
from anyformer.families.llama import BASE, sizes
from anyformer.families.rope_keys import read_rope, write_rope
from anyformer.families.statemap import StateMap
from anyformer.families.window_keys import FULL, LOCAL, each_layer, read_windows, window_of
from anyformer.specs.model import ModelSpec


class Mistral(Family, kind="mistral"):
    """Mistral 7B and models released in its format."""

    base = BASE
    presets = (
        Preset(
            name="mistral-7b-v0.1", also=("mistral-7b",), title="Mistral 7B v0.1 (2023)",
            hub=("mistralai/Mistral-7B-v0.1",),
            changes=sizes(4096, 32, 32, 8, 14336, 32000, 32768)
            | {"attention.pattern": "window(4096)", "ids.bos": 1, "ids.eos": [2]},
            params=7_241_732_096,
            published="7,241,732,096 in released files",
            evidence="configs in training and serving code of three other projects, which agree",
            note="a window of 4096 keys, the token itself included; later versions have none",
        ),
        Preset(
            name="mistral-7b-v0.3", title="Mistral 7B v0.3 (2024)",
            hub=("mistralai/Mistral-7B-v0.3",),
            changes=sizes(4096, 32, 32, 8, 14336, 32768, 32768)
            | {"position.theta": 1e6, "ids.bos": 1, "ids.eos": [2]},
            params=7_248_023_552,
            published="7,248,023,552 in released files",
            evidence="configs in training and serving code of two other projects, which agree",
            note="no window; 768 tokens more than v0.1",
        ),
    )  # fmt: skip
    architectures = ("MistralForCausalLM",)
    model_type = "mistral"
    keys = like.keys(
        vocab=32000, width=4096, ffn=14336, depth=32, heads=32, kv_heads=8, context=131072, eps=1e-6
    ) | {
        "head_dim": whole(None),
        "sliding_window": whole(4096, null=True),
        "bos_token_id": ids(1),
        "eos_token_id": ids(2),
    }  # fmt: skip

    @classmethod
    def read(cls, c: Values) -> Mapping[str, Any]:
        types = each_layer(c, lambda i: FULL if c["sliding_window"] is None else LOCAL)
        return (
            like.read(c, head_dim=c["head_dim"])
            | read_rope(c, context=c["max_position_embeddings"])
            | read_windows(c, types, c["sliding_window"])
        )

    @classmethod
    def write(cls, spec: ModelSpec) -> Mapping[str, Any]:
        stack = spec.stacks[-1]
        layer = stack.layers[0]
        own = {"head_dim": spec.dims(layer, stack).head_dim, "sliding_window": window_of(spec)[0]}
        return like.write(spec) | write_rope(layer.position) | own

    @classmethod
    def weights(cls, spec: ModelSpec) -> StateMap:
        return like.state_map(*like.ATTENTION, *like.FFN, *like.PRE_NORMS)

    @classmethod
    def tiny(cls) -> dict[str, Any]:
        return like.tiny(sliding_window=5, head_dim=12)
