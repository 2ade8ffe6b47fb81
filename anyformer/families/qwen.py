"""Qwen (Bai et al. 2023), the first: LLaMA with biases on queries, keys and values."""

from __future__ import annotations

from anyformer.families.family import Family, Preset
from anyformer.families.qwen2 import QWEN


def _preset(size: str, width: int, depth: int, ffn: int, vocab: int, params: int, published: str, more: str) -> Preset:
    return Preset(
        name=f"qwen-{size}",
        title=f"Qwen {size.upper()} (2023)",
        changes={
            "width": width, "depth": depth, "attention.heads": width // 128, "ffn.width": ffn, "vocab": vocab,
            "context": 8192, "norm.eps": 1e-6,
        },
        params=params,
        published=published,
        evidence=f"configs in code of {more}",
        note=f"the released config states {2 * ffn}, both branches of the feed-forward; beyond 8192 tokens the released "
        "code multiplies queries by a logarithm of their position and stretches the frequencies, which this spec does not",
    )  # fmt: skip


class Qwen(Family, kind="qwen"):
    """Qwen 1. Its class was never part of the public library; that of Qwen2, without grouped heads, computes the same."""

    base = QWEN
    presets = (
        _preset("7b", 4096, 32, 11008, 151936, 7_721_324_544, "7,721,324,544 in released files",
                "two other projects, and the publisher's memo; the context as on its page, where the config has 32768"),
        _preset("14b", 5120, 40, 13696, 152064, 14_167_290_880,
                "14,167,290,880 in released files of Qwen1.5 14B, of the same shapes",
                "one other project; the context as in the 7B"),
    )  # fmt: skip
