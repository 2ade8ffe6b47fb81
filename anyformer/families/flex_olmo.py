"""FlexOlmo (Shi et al. 2025): OLMo 2 with experts that were trained apart, on data that their owners kept."""

from anyformer.families import llama_like as like
from anyformer.families import moe_like as moe
from anyformer.families.key_groups import RopeKeys
from anyformer.families.olmoe import WHOLE


class FlexOlmo(moe.MoeLike, kind="flex_olmo"):
    """FlexOlmo."""

    base = moe.BASE | {
        "attention": {"heads": 1, "qk_norm": WHOLE},
        "norm": {"kind": "rmsnorm", "eps": 1e-6, "placement": "output"},
    }
    architectures = ("FlexOlmoForCausalLM",)
    keys = {
        **like.keys(
            4096, 32, 32, None, 11008, 100352, 4096, qk_norm=True, attention_bias=False, pad_token_id=100277,
            eos_token_id=100257,
        ),
        **moe.expert_keys(7, 5, normalise=False),
    }  # fmt: skip
    groups = (RopeKeys(theta=5e5),)
    tensors = moe.tensors(like.ATTENTION | like.HEAD_NORMS | like.OUTPUT_NORMS)
    small = like.small(num_experts=5, num_experts_per_tok=3, rope_theta=500.0)
