"""Qwen2 (2024): LLaMA with grouped heads and biases on queries, keys and values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyformer.families import llama_like as like
from anyformer.families.family import Family, Preset
from anyformer.families.keys import Values, flag, texts, whole
from anyformer.families.llama import BASE, sizes
from anyformer.families.rope_keys import read_rope, write_rope
from anyformer.families.statemap import StateMap
from anyformer.families.windows import FULL, LOCAL, each_layer, read_windows, window_of
from anyformer.specs.model import ModelSpec


class Qwen2(Family, kind="qwen2"):
    """Qwen2 and Qwen2.5."""

    base = BASE | {"attention": {"heads": 1, "bias": "qkv"}}
    presets = (
        Preset(
            name="qwen2-72b", also=("qwen-2-72b",), title="Qwen2 72B (2024)",
            changes=sizes(8192, 80, 64, 8, 29568, 152064, 32768) | {"position.theta": 1e6, "norm.eps": 1e-5},
            params=72_706_203_648,
            published="72,706,203,648 in released files",
            evidence="configs in training and serving code of two other projects",
            note="eps 1e-5 is that of the base model by one of them; the instruct model has 1e-6",
        ),
    )  # fmt: skip
    architectures = ("Qwen2ForCausalLM",)
    model_type = "qwen2"
    keys = like.keys(
        vocab=151936, width=4096, ffn=22016, depth=32, heads=32, kv_heads=32, context=32768, eps=1e-6
    ) | {
        "use_sliding_window": flag(False),
        "sliding_window": whole(4096, null=True),
        "max_window_layers": whole(28),
        "layer_types": texts(),
    }  # fmt: skip

    @classmethod
    def read(cls, c: Values) -> Mapping[str, Any]:
        window = c["sliding_window"] if c["use_sliding_window"] else None
        types = c["layer_types"]
        if types is None:
            types = each_layer(c, lambda i: LOCAL if window is not None and i >= c["max_window_layers"] else FULL)
        return like.read(c) | read_rope(c, context=c["max_position_embeddings"]) | read_windows(c, types, window)

    @classmethod
    def write(cls, spec: ModelSpec) -> Mapping[str, Any]:
        window, types = window_of(spec)
        first = types.index(LOCAL) if window is not None else spec.stacks[-1].depth
        own = {
            "use_sliding_window": window is not None,
            "sliding_window": window,
            "max_window_layers": first,
            "layer_types": types,
        }
        return like.write(spec) | write_rope(spec.stacks[-1].layers[0].position) | own

    @classmethod
    def weights(cls, spec: ModelSpec) -> StateMap:
        return like.state_map(*like.ATTENTION, *like.FFN, *like.PRE_NORMS)

    @classmethod
    def tiny(cls) -> dict[str, Any]:
        return like.tiny(use_sliding_window=True, sliding_window=6, max_window_layers=1, tie_word_embeddings=True)
