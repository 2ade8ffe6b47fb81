"""Helium (Kyutai 2025): LLaMA with RoPE in pairs, and gains that are multiplied in fp32."""

from anyformer.families import llama_like as like
from anyformer.families.config_keys import flag
from anyformer.families.key_groups import RopeKeys


class Helium(like.LlamaLike, kind="helium"):
    """Helium 1."""

    base = like.BASE | {"norm": {"kind": "rmsnorm", "eps": 1e-8, "gain_at": "before_cast"}}
    architectures = ("HeliumForCausalLM",)
    second = True
    keys = {
        **like.keys(2560, 24, 20, 20, 7040, 48000, 4096, eps=1e-8, mlp_bias=False),
        **like.ids(1, 2, 3),
        "head_dim": like.whole_heads(128),
        "attention_bias": flag(False, "attention.bias", on="qkv"),
    }
    groups = (RopeKeys(theta=1e5, layout="interleaved"),)
    small = like.small(head_dim=8, rope_theta=500.0)
