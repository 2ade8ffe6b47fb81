"""Hy3 (Tencent 2026): DeepSeek-V3's router beside a shared expert, with norms of each head."""

from anyformer.families import llama_like as like
from anyformer.families import moe_like as moe
from anyformer.families.config_keys import flag, must, number
from anyformer.families.key_groups import RopeKeys


class HyV3(moe.MoeLike, kind="hy_v3"):
    """Hy3."""

    base = moe.DEEPSEEK | {"attention": {"heads": 1, "qk_norm": moe.HEAD_NORM}}
    architectures = ("HYV3ForCausalLM",)
    keys = {
        **like.keys(
            4096, 80, 64, 8, 13312, 120832, 131072, eps=1e-5, qk_norm=True, head_dim=128, std=0.006,
            attention_bias=False,
        ),
        **moe.expert_keys(192, 8, width=1536, dense=13312),
        "num_shared_experts": moe.shared_width(1, each="moe_intermediate_size"),
        "router_scaling_factor": number(2.826, "ffn.scale"),
        # The shared expert would have biases, and the others none.
        "mlp_bias": must(False),
        # Where 16-bit numbers are rounded.
        "enable_moe_fp32_combine": flag(True),
    }  # fmt: skip
    groups = (RopeKeys(theta=11158840.0), moe.typed_dense(lambda c: 1))
    tensors = moe.tensors(
        like.LLAMA | like.HEAD_NORMS,
        router="router.gate",
        bias="expert_bias",
        shared="shared_mlp",
        extra=moe.PREDICTS,
        forms={
            r"\.mlp\.gate\.weight": ".mlp.router.gate.weight",
            r"\.mlp\.e_score_correction_bias": ".mlp.expert_bias",
            r"\.mlp\.shared_experts\.": ".mlp.shared_mlp.",
        },
    )
    small = moe.small(head_dim=12, num_shared_experts=2)
