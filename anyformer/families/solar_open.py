"""Solar Open (Upstage 2026): DeepSeek-V3's router beside a shared expert in every layer."""

from anyformer.families import llama_like as like
from anyformer.families import moe_like as moe
from anyformer.families.config_keys import flag, number, whole
from anyformer.families.key_groups import RopeKeys


class SolarOpen(moe.MoeLike, kind="solar_open"):
    """Solar Open."""

    base = moe.DEEPSEEK
    architectures = ("SolarOpenForCausalLM",)
    keys = {
        **like.keys(4096, 48, 64, 8, 0, 196608, 131072, eps=1e-5, head_dim=128),
        **moe.expert_keys(128, 8, count="n_routed_experts", width=1280, normalise=True),
        **moe.no_groups(),
        "attention_bias": flag(False, "attention.bias", on="qkv"),
        "n_shared_experts": moe.shared_width(1, each="moe_intermediate_size"),
        "routed_scaling_factor": number(1.0, "ffn.scale"),
        # The width of dense layers, of which there are none.
        "intermediate_size": whole(None),
    }
    groups = (RopeKeys(theta=1e6),)
    tensors = moe.tensors(like.LLAMA)
    small = moe.small(count="n_routed_experts", head_dim=12, attention_bias=True, n_shared_experts=2)
