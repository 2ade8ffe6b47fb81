"""K-EXAONE (LG 2026): DeepSeek-V3's router beside a shared expert; layers that see all tokens have no positions."""

from anyformer.families import llama_like as like
from anyformer.families import moe_like as moe
from anyformer.families.config_keys import number, usual, whole
from anyformer.families.key_groups import RopeKeys, WindowKeys


class ExaoneMoe(moe.MoeLike, kind="exaone_moe"):
    """K-EXAONE."""

    base = moe.DEEPSEEK | {"attention": {"heads": 1, "qk_norm": moe.HEAD_NORM}}
    architectures = ("ExaoneMoeForCausalLM",)
    keys = {
        **like.keys(4096, 32, 32, 32, 16384, 102400, 2048, eps=1e-5, qk_norm=True, head_dim=None),
        **usual(bos_token_id=1, eos_token_id=53, pad_token_id=0),
        **moe.expert_keys(64, 8, width=1024, dense=16384, normalise=True),
        **moe.no_groups(),
        "num_shared_experts": moe.shared_width(1, each="moe_intermediate_size"),
        "routed_scaling_factor": number(2.5, "ffn.scale"),
        "sliding_window_pattern": moe.at_least_one(4),
    }
    groups = (
        RopeKeys(),
        WindowKeys(
            window=4096,
            is_local=lambda c, i: (i + 1) % c["sliding_window_pattern"],
            everywhere={"position.kind": "none"},
            needed=True,
        ),
        moe.typed_dense(lambda c: c["first_k_dense_replace"], first_k_dense_replace=whole(1)),
    )
    tensors = moe.tensors(
        like.LLAMA | like.HEAD_NORMS,
        bias="e_score_correction_bias",
        ignored=(r"mtp\..*",),
        forms={r"\.mlp\.gate\.e_score_correction_bias": ".mlp.e_score_correction_bias"},
    )
    small = moe.small(sliding_window=5, sliding_window_pattern=2, num_shared_experts=2)
