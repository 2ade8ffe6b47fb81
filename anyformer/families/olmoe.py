"""OLMoE (Muennighoff et al. 2024): 64 small experts in every layer, and norms on whole queries and keys."""

from anyformer.families import llama_like as like
from anyformer.families import moe_like as moe
from anyformer.families.config_keys import must

WHOLE = {"kind": "rmsnorm", "scope": "whole"}


class Olmoe(moe.MoeLike, kind="olmoe"):
    """OLMoE."""

    base = moe.BASE | {"attention": {"heads": 1, "qk_norm": WHOLE}}
    architectures = ("OlmoeForCausalLM",)
    keys = {
        **like.keys(
            2048, 16, 16, None, 2048, 50304, 4096, eps=1e-5, qk_norm=True, attention_bias=False, pad_token_id=1,
            eos_token_id=50279,
        ),
        **moe.expert_keys(64, 8, normalise=False),
        # It would act after the norms, where ours acts before them.
        "clip_qkv": must(None),
    }  # fmt: skip
    tensors = moe.tensors(like.LLAMA | like.HEAD_NORMS)
    small = like.small(num_experts=5, num_experts_per_tok=3, rope_theta=500.0)
