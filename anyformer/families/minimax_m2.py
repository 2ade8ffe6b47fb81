"""MiniMax-M2 (2025): DeepSeek-V3's choice of experts in Mixtral's names, norms on whole queries and keys."""

from typing import Any

from anyformer.families import llama_like as like
from anyformer.families import moe_like as moe
from anyformer.families.config_keys import NUMBERS, must, whole
from anyformer.families.config_values import Values
from anyformer.families.key_groups import RopeKeys
from anyformer.families.mixtral import EXPERTS, FORMS
from anyformer.families.olmoe import WHOLE


class MiniMaxM2(moe.MoeLike, kind="minimax_m2"):
    """MiniMax-M2."""

    base = moe.DEEPSEEK | {"attention": {"heads": 1, "qk_norm": WHOLE}}
    architectures = ("MiniMaxM2ForCausalLM",)
    keys = {
        **like.keys(
            3072, 62, 48, 8, 1536, 200064, 196608, qk_norm=True, head_dim=128, bos_token_id=200034, eos_token_id=200020,
        ),
        **moe.expert_keys(256, 8, count="num_local_experts"),
        # How released files say which share of a head is rotated.
        "rotary_dim": whole(None),
        # What they say besides, and the public class takes for granted.
        "scoring_func": must("sigmoid"),
        "use_routing_bias": must(True),
        "use_qk_norm": must(True),
        "qk_norm_type": must("per_layer"),
        "shared_intermediate_size": must(0, None),
        "attn_type_list": NUMBERS,
    }  # fmt: skip
    groups = (RopeKeys(theta=5e6, fraction=1.0),)
    tensors = moe.tensors(
        like.LLAMA | like.HEAD_NORMS, *EXPERTS, at="block_sparse_moe", bias="e_score_correction_bias", forms=FORMS
    )
    small = like.small(num_local_experts=5, num_experts_per_tok=3, rope_theta=500.0, head_dim=12, rotary_dim=6)

    @classmethod
    def read(cls, c: Values) -> dict[str, Any]:
        if c["attn_type_list"] and set(c["attn_type_list"]) != {1}:
            c.refuse("attn_type_list", "has a kind of attention other than 1, which the public class does not have")
        found = super().read(c)
        tables = [c[name] or {} for name in ("rope_parameters", "rope_scaling")]
        told = c["partial_rotary_factor"] is not None or any("partial_rotary_factor" in table for table in tables)
        if c["rotary_dim"] is not None and not told and c["head_dim"] > 0:
            found["position.fraction"] = c["rotary_dim"] / c["head_dim"]
        return found
