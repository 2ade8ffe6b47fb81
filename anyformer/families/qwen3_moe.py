"""Qwen3-MoE (2025): Qwen3 with 128 experts in every layer, of which eight are chosen for each token."""

from typing import Any

from anyformer.families import llama_like as like
from anyformer.families import moe_like as moe
from anyformer.families.config_keys import usual, whole
from anyformer.families.family import series, sizes
from anyformer.families.key_groups import RopeKeys, WindowKeys

TRAITS: dict[str, Any] = {
    "attention.head_dim": 128, "position.theta": 1e6, "norm.eps": 1e-6, "ffn.experts": 128, "ffn.top_k": 8,
}  # fmt: skip


class Qwen3Moe(moe.MoeLike, kind="qwen3_moe"):
    """Qwen3 with experts."""

    base = moe.BASE | {"attention": {"heads": 1, "qk_norm": moe.HEAD_NORM}, "norm": moe.HEAD_NORM}
    presets = series("qwen3-{}", "Qwen3 {SIZE} (2025)",
        ("30b-a3b", sizes(2048, 48, 32, 4, 768, 151936, 40960), 30_532_122_624, "",
         "the 2507 releases have a theta of 1e7 and a context of 262144"),
        ("235b-a22b", sizes(4096, 94, 64, 4, 1536, 151936, 40960), 235_093_634_560),
        changes=TRAITS, also=("qwen-3-{}",), hub=("Qwen/Qwen3-{SIZE}",),
        evidence="configs in code of two other projects",
    )  # fmt: skip
    architectures = ("Qwen3MoeForCausalLM",)
    keys = {
        **like.keys(2048, 24, 32, 4, 6144, 151936, 32768, qk_norm=True, head_dim=None),
        **usual(attention_bias=False),
        **moe.expert_keys(128, 8, width=768, dense=6144, normalise=False),
        # Released files have it, and the public class does not.
        "max_window_layers": whole(None),
    }
    groups = (RopeKeys(), WindowKeys(window=4096, listed=False, switched=True), moe.listed_dense())
    tensors = moe.tensors(like.LLAMA | like.HEAD_NORMS)
    small = moe.small(norm_topk_prob=True, mlp_only_layers=[1], head_dim=12)
