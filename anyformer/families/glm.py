"""GLM-4 9B (2024): LLaMA's design with biases on queries, keys and values, and RoPE in pairs on half of each head."""

from typing import Any

from anyformer.families import llama_like as like
from anyformer.families.config_keys import flag, usual
from anyformer.families.family import Preset, sizes
from anyformer.families.key_groups import RopeKeys

STOPS = [151329, 151336, 151338]
IDS: dict[str, Any] = {"ids.pad": 151329, "ids.eos": STOPS}
PARTS = like.ATTENTION | like.FUSED_FFN | like.PRE_NORMS


class Glm(like.LlamaLike, kind="glm"):
    """GLM-4 9B as first released."""

    base = like.BASE | {
        "attention": {"heads": 1, "bias": "qkv"},
        "norm": {"kind": "rmsnorm", "eps": 1.5625e-7},
        "position": {"kind": "rope", "theta": 1e4, "layout": "interleaved", "fraction": 0.5},
    }
    presets = (
        Preset("glm-4-9b", "GLM-4 9B (2024)", sizes(4096, 40, 32, 2, 13696, 151552, 8192) | IDS, 9_399_951_360,
               published="9,399,951,360 in released files; the first ones hold 32 more, a table of rotation "
               "frequencies",
               evidence="configs in code of two other projects, the publisher's page and the public class; ids are the "
               "defaults of that class",
               note="the base model; the chat model has a context of 131072 and, by general knowledge, a theta of 5e6"),
    )  # fmt: skip
    architectures = ("GlmForCausalLM",)
    keys = {
        **like.keys(4096, 40, 32, 2, 13696, 151552, 131072, eps=1.5625e-7, head_dim=128),
        **usual(pad_token_id=151329, eos_token_id=STOPS),
        "attention_bias": flag(True, "attention.bias", on="qkv"),
    }
    groups = (RopeKeys(fraction=0.5, layout="interleaved"),)
    tensors = like.tensors(PARTS)
    small = like.small(head_dim=12, rope_theta=500.0)
