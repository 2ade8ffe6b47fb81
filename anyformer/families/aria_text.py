"""Aria (Li et al. 2024), its text model: experts beside shared ones, all experts of a layer in one tensor."""

from anyformer.families import llama_like as like
from anyformer.families import moe_like as moe
from anyformer.families.config_keys import must, usual


class Aria(moe.MoeLike, kind="aria_text"):
    """Aria, text only."""

    architectures = ("AriaTextForCausalLM",)
    keys = {
        **like.keys(4096, 32, 32, None, 4096, 32000, 2048, head_dim=None, attention_bias=False),
        **usual(pad_token_id=2, bos_token_id=1, eos_token_id=2),
        **moe.expert_keys(8, 2, count="moe_num_experts", chosen="moe_topk"),
        "moe_num_shared_experts": moe.shared_width(2, each="intermediate_size"),
        # The shared expert would have another activation than the others, or biases.
        "hidden_act": must("silu"),
        "mlp_bias": must(False),
    }
    tensors = moe.tensors(
        like.ATTENTION | like.PRE_NORMS,
        moe.fused("mlp.experts", "fc1.weight", "fc2.weight", transposed=True),
        moe.fused(transposed=True),
        router="router",
    )
    small = like.small(moe_num_experts=5, moe_topk=3, rope_theta=500.0, head_dim=12)
