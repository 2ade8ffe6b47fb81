"""ERNIE 4.5 (Baidu 2025), its dense models: LLaMA with RoPE in pairs and, if asked for, biases everywhere."""

from anyformer.families import llama_like as like
from anyformer.families.config_keys import flag, whole
from anyformer.families.key_groups import RopeKeys


class Ernie45(like.LlamaLike, kind="ernie4_5"):
    """ERNIE 4.5 0.3B."""

    architectures = ("Ernie4_5ForCausalLM",)
    second = True
    keys = {
        **like.keys(1024, 18, 16, 2, 3072, 103424, 131072, eps=1e-5, tied=True),
        **like.ids(1, 2, 0),
        "head_dim": whole(128, "attention.head_dim", null=True, derived=True),
        "use_bias": flag(False, ("attention.bias", "ffn.bias")),
    }
    groups = (RopeKeys(theta=5e5, layout="interleaved"),)
    small = like.small(head_dim=12, rope_theta=500.0, use_bias=True)
