"""Gemma 2 (2024): norms before and after each branch, capped scores and logits, every second layer with a window."""

from typing import Any

from anyformer.families import llama_like as like
from anyformer.families import tasks
from anyformer.families.config_keys import text
from anyformer.families.family import series, sizes
from anyformer.families.gemma import BASE, EVIDENCE, IDS, NORM, TANH, capped_keys
from anyformer.families.key_groups import RopeKeys, WindowKeys

TRAITS: dict[str, Any] = {
    "attention.softcap": 50.0,
    "attention.head_dim": 256,
    "head.softcap": 30.0,
    "layers": {"order": "local, global", "local": {"attention": {"pattern": "window(4096)"}}, "global": {}},
} | IDS
"""What all sizes have, but for the heads of the largest."""


class Gemma2(like.LlamaLike, kind="gemma2"):
    """Gemma 2."""

    base = BASE | {"norm": NORM | {"placement": "sandwich"}}
    presets = series("gemma-2-{}", "Gemma 2 {SIZE} (2024)",
        ("2b", sizes(2304, 26, 8, 4, 9216, 256000, 8192), 2_614_341_888, "",
         "256 is the head's own width, by which scores are scaled; a copy for Japanese says 224"),
        ("9b", sizes(3584, 42, 16, 8, 14336, 256000, 8192), 9_241_705_984, "",
         "scores are scaled by 256, the head's own width; one of the projects says 224 = width / heads"),
        ("27b", sizes(4608, 46, 32, 16, 36864, 256000, 8192)
         | {"attention.head_dim": 128, "attention.scale": "1/sqrt(144)"}, 27_227_128_320, "",
         "scores are scaled by 144 = width / heads, not by the head's own 128"),
        changes=TRAITS, hub=("google/gemma-2-{}",), evidence=EVIDENCE,
    )  # fmt: skip
    architectures = ("Gemma2ForCausalLM",)
    tasks = tasks.GENERIC
    # The released files carry hidden_act too, and the public class reads the other one only.
    keys = capped_keys(2304, 26, 8, 4, 9216, 256000, 8192) | {"hidden_act": text(TANH)}
    groups = (RopeKeys(), WindowKeys(window=4096, is_local=lambda c, i: i % 2 == 0))
    tensors = like.tensors(like.ATTENTION | like.FFN | like.HEAD_NORMS | like.SANDWICH_NORMS)
    # Caps so low that they bend the numbers of a small model.
    small = like.small(
        head_dim=12, query_pre_attn_scalar=7, sliding_window=5, attn_logit_softcapping=1.5,
        final_logit_softcapping=2.0, num_hidden_layers=4,
    )  # fmt: skip
