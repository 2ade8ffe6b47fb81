"""Qwen1.5-MoE and Qwen2-MoE (2024): Qwen2 with experts, and one more that all tokens go through by a gate of its own."""

from anyformer.families import llama_like as like
from anyformer.families import moe_like as moe
from anyformer.families import tasks
from anyformer.families.config_keys import flag, whole
from anyformer.families.key_groups import RopeKeys, WindowKeys


class Qwen2Moe(moe.MoeLike, kind="qwen2_moe"):
    """Qwen1.5-MoE and Qwen2-MoE."""

    base = moe.BASE | {"ffn": {"kind": "moe", "shared_gate": True}}
    architectures = ("Qwen2MoeForCausalLM",)
    tasks = tasks.GENERIC
    keys = {
        **like.keys(2048, 24, 16, 16, 5632, 151936, 32768, head_dim=None),
        **moe.expert_keys(60, 4, width=1408, dense=5632, normalise=False),
        "qkv_bias": flag(True, "attention.bias", on="qkv"),
        "shared_expert_intermediate_size": moe.shared_width(5632),
        "max_window_layers": whole(28),
    }
    groups = (
        RopeKeys(),
        WindowKeys(window=4096, switched=True, is_local=lambda c, i: (i + 1) % 2 and i < c["max_window_layers"]),
        moe.listed_dense(),
    )
    tensors = moe.tensors(like.LLAMA, shared="shared_expert")
    small = moe.small(
        shared_expert_intermediate_size=20, mlp_only_layers=[1], use_sliding_window=True, sliding_window=5
    )
