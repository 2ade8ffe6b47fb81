"""Qwen3 (2025), its dense models: a norm on each head of queries and keys instead of Qwen2's biases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyformer.families import llama_like as like
from anyformer.families.family import Family, Preset
from anyformer.families.llama_like import BASE, sizes
from anyformer.families.qwen2 import LateWindows
from anyformer.families.rope_keys import RopeKeys

NORM: dict[str, Any] = {"kind": "rmsnorm", "eps": 1e-6}
OWN = {"head.tied": False}
TIED = {"head.tied": True}


def _preset(size: str, changes: Mapping[str, Any], params: int, note: str = "") -> Preset:
    return Preset(
        name=f"qwen3-{size}",
        hub=(f"Qwen/Qwen3-{size.upper()}",),
        also=(f"qwen-3-{size}",),
        title=f"Qwen3 {size.upper()} (2025)",
        changes={"attention.head_dim": 128, "position.theta": 1e6} | dict(changes),
        params=params,
        evidence="configs in two training codes and one for analysis, of three other projects, which agree",
        note=note,
    )


class Qwen3(Family, kind="qwen3"):
    """Qwen3, dense."""

    base = BASE | {"attention": {"heads": 1, "qk_norm": NORM}, "norm": NORM}
    presets = (
        _preset("0.6b", sizes(1024, 28, 16, 8, 3072, 151936, 40960) | TIED, 596_049_920,
                "16 heads of 128 are twice as wide as the model"),
        _preset("1.7b", sizes(2048, 28, 16, 8, 6144, 151936, 40960) | TIED, 1_720_574_976),
        _preset("4b", sizes(2560, 36, 32, 8, 9728, 151936, 40960) | TIED, 4_022_468_096,
                "32 heads of 128 are wider than the model"),
        _preset("8b", sizes(4096, 36, 32, 8, 12288, 151936, 40960) | OWN, 8_190_735_360),
        _preset("14b", sizes(5120, 40, 40, 8, 17408, 151936, 40960) | OWN, 14_768_307_200),
        _preset("32b", sizes(5120, 64, 64, 8, 25600, 151936, 40960) | OWN, 32_762_123_264,
                "64 heads of 128 are wider than the model"),
    )  # fmt: skip
    architectures = ("Qwen3ForCausalLM",)
    model_type = "qwen3"
    keys = {
        **like.keys(4096, 32, 32, 32, 22016, 151936, 32768, qk_norm=True),
        **like.head_dim(128),
        **like.ATTENTION_BIAS,
    }
    groups = (RopeKeys(), LateWindows())
    tensors = like.tensors(like.LLAMA | like.HEAD_NORMS)
    small = like.small(head_dim=12, use_sliding_window=True, sliding_window=6, max_window_layers=1)
