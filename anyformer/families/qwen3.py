"""Qwen3 (2025), its dense models: a norm on each head of queries and keys instead of Qwen2's biases."""

from typing import Any

from anyformer.families import llama_like as like
from anyformer.families.family import series, sizes
from anyformer.families.key_groups import RopeKeys
from anyformer.families.qwen2 import LAST, WINDOWS

NORM: dict[str, Any] = {"kind": "rmsnorm", "eps": 1e-6}
OWN = {"head.tied": False}


class Qwen3(like.LlamaLike, kind="qwen3"):
    """Qwen3, dense."""

    base = like.BASE | {"attention": {"heads": 1, "qk_norm": NORM}, "norm": NORM}
    presets = series("qwen3-{}", "Qwen3 {SIZE} (2025)",
        ("0.6b", sizes(1024, 28, 16, 8, 3072, 151936, 40960), 596_049_920, "",
         "16 heads of 128 are twice as wide as the model"),
        ("1.7b", sizes(2048, 28, 16, 8, 6144, 151936, 40960), 1_720_574_976),
        ("4b", sizes(2560, 36, 32, 8, 9728, 151936, 40960), 4_022_468_096, "",
         "32 heads of 128 are wider than the model"),
        ("8b", sizes(4096, 36, 32, 8, 12288, 151936, 40960) | OWN, 8_190_735_360),
        ("14b", sizes(5120, 40, 40, 8, 17408, 151936, 40960) | OWN, 14_768_307_200),
        ("32b", sizes(5120, 64, 64, 8, 25600, 151936, 40960) | OWN, 32_762_123_264, "",
         "64 heads of 128 are wider than the model"),
        changes={"attention.head_dim": 128, "position.theta": 1e6, "head.tied": True},
        also=("qwen-3-{}",), hub=("Qwen/Qwen3-{SIZE}",),
        evidence="configs in two training codes and one for analysis, of three other projects, which agree",
    )  # fmt: skip
    architectures = ("Qwen3ForCausalLM",)
    keys = like.keys(4096, 32, 32, 32, 22016, 151936, 32768, qk_norm=True, head_dim=128, attention_bias=False) | LAST
    groups = (RopeKeys(), WINDOWS)
    small = like.small(head_dim=12, use_sliding_window=True, sliding_window=6, max_window_layers=1)
