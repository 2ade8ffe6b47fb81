"""Qwen2 (2024): LLaMA with grouped heads and biases on queries, keys and values."""

from dataclasses import replace
from typing import Any

from anyformer.families import llama_like as like
from anyformer.families.config_keys import whole
from anyformer.families.family import series, sizes
from anyformer.families.key_groups import LOCAL, RopeKeys, WindowKeys, window_of

QWEN: dict[str, Any] = like.BASE | {"attention": {"heads": 1, "bias": "qkv"}}
"""What Qwen 1 and 2 share."""
TIED = {"head.tied": True}
WIDER = "eps 1e-5 is that of the base model; the instruct model has 1e-6"
WIDE = {"norm.eps": 1e-5}
SHARED: dict[str, Any] = {"position.theta": 1e6, "norm.eps": 1e-6}
# The first layer that has a window; the depth if none has.
LAST = {"max_window_layers": replace(whole(28), write=lambda view: [*window_of(view.spec)[1], LOCAL].index(LOCAL))}
WINDOWS = WindowKeys(window=4096, switched=True, is_local=lambda c, i: i >= c["max_window_layers"])
"""Windows from some layer on, if they are switched on at all."""


class Qwen2(like.LlamaLike, kind="qwen2"):
    """Qwen2 and Qwen2.5."""

    base = QWEN
    presets = (
        *series("qwen2-{}", "Qwen2 {SIZE} (2024)",
            ("0.5b", sizes(896, 24, 14, 2, 4864, 151936, 32768) | TIED, 494_032_768),
            ("1.5b", sizes(1536, 28, 12, 2, 8960, 151936, 32768) | TIED, 1_543_714_304),
            ("7b", sizes(3584, 28, 28, 4, 18944, 152064, 32768), 7_615_616_512),
            ("72b", sizes(8192, 80, 64, 8, 29568, 152064, 32768) | WIDE, 72_706_203_648, "",
             "eps 1e-5 is that of the base model by one of them; the instruct model has 1e-6",
             "configs in training and serving code of two other projects"),
            changes=SHARED, also=("qwen-2-{}",),
            evidence="configs in serving, training and analysis code of three other projects, which agree"),
        *series("qwen2.5-{}", "Qwen2.5 {SIZE} (2024)",
            ("0.5b", sizes(896, 24, 14, 2, 4864, 151936, 32768) | TIED, 494_032_768),
            ("1.5b", sizes(1536, 28, 12, 2, 8960, 151936, 131072) | TIED, 1_543_714_304, "",
             "one library lists 1,543,434,240 for the coder model of the same shapes, which is wrong"),
            ("3b", sizes(2048, 36, 16, 2, 11008, 151936, 32768) | TIED, 3_085_938_688),
            ("7b", sizes(3584, 28, 28, 4, 18944, 152064, 131072), 7_615_616_512, "",
             "one library lists 6,993,420,288, which is wrong"),
            ("14b", sizes(5120, 48, 40, 8, 13824, 152064, 131072) | WIDE, 14_770_033_664, "", WIDER),
            ("32b", sizes(5120, 64, 40, 8, 27648, 152064, 131072) | WIDE, 32_763_876_352, "", WIDER),
            ("72b", sizes(8192, 80, 64, 8, 29568, 152064, 131072) | WIDE, 72_706_203_648, "", WIDER),
            changes=SHARED, also=("qwen-2.5-{}",),
            evidence="configs in two training codes and one for analysis, of three other projects"),
    )  # fmt: skip
    architectures = ("Qwen2ForCausalLM",)
    keys = like.keys(4096, 32, 32, 32, 22016, 151936, 32768) | LAST
    groups = (RopeKeys(), WINDOWS)
    small = like.small(use_sliding_window=True, sliding_window=6, max_window_layers=1, tie_word_embeddings=True)
