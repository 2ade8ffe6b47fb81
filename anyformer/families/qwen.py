"""Qwen (Bai et al. 2023), the first: LLaMA with biases on queries, keys and values."""

from anyformer.families.family import Family, series
from anyformer.families.qwen2 import QWEN

NOTE = (
    "the released config states {}, both branches of the feed-forward; beyond 8192 tokens the released code multiplies "
    "queries by a logarithm of their position and stretches the frequencies, which this spec does not"
)


class Qwen(Family, kind="qwen"):
    """Qwen 1. Its class was never part of the public library; that of Qwen2, without grouped heads, computes the same."""

    base = QWEN
    presets = series("qwen-{}", "Qwen {SIZE} (2023)",
        ("7b", {"width": 4096, "depth": 32, "attention.heads": 32, "ffn.width": 11008, "vocab": 151936}, 7_721_324_544,
         "7,721,324,544 in released files", NOTE.format(22016), "configs in code of two other projects, and the "
         "publisher's memo; the context as on its page, where the config has 32768"),
        ("14b", {"width": 5120, "depth": 40, "attention.heads": 40, "ffn.width": 13696, "vocab": 152064},
         14_167_290_880, "14,167,290,880 in released files of Qwen1.5 14B, of the same shapes", NOTE.format(27392),
         "configs in code of one other project; the context as in the 7B"),
        changes={"context": 8192, "norm.eps": 1e-6},
    )  # fmt: skip
