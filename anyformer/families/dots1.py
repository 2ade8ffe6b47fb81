"""dots.llm1 (2025): DeepSeek-V3's router beside shared experts, with norms of each head and plain attention."""

from anyformer.families import llama_like as like
from anyformer.families import moe_like as moe
from anyformer.families.config_keys import number, whole
from anyformer.families.key_groups import RopeKeys, WindowKeys


class Dots1(moe.MoeLike, kind="dots1"):
    """dots.llm1."""

    base = moe.DEEPSEEK | {"attention": {"heads": 1, "qk_norm": moe.HEAD_NORM}}
    architectures = ("Dots1ForCausalLM",)
    keys = {
        **like.keys(
            4608, 62, 32, 32, 10944, 152064, 2048, qk_norm=True, head_dim=None, attention_bias=False,
        ),
        **moe.expert_keys(None, None, count="n_routed_experts", width=1408, dense=10944, normalise=False),
        **moe.no_groups(),
        "n_shared_experts": moe.shared_width(None, each="moe_intermediate_size"),
        "routed_scaling_factor": number(1.0, "ffn.scale"),
        "max_window_layers": whole(62, null=True),
    }  # fmt: skip
    groups = (
        RopeKeys(),
        WindowKeys(
            window=4096, is_local=lambda c, i: c["sliding_window"] is not None and i >= (c["max_window_layers"] or 0)
        ),
        moe.first_dense(0),
    )
    tensors = moe.tensors(like.LLAMA | like.HEAD_NORMS)
    small = moe.small(
        count="n_routed_experts", first_k_dense_replace=1, n_shared_experts=2, norm_topk_prob=True, sliding_window=5,
        max_window_layers=2, routed_scaling_factor=2.5,
    )  # fmt: skip
