"""Command R (Cohere 2024): attention and a gated feed-forward in parallel on one norm without bias, RoPE in pairs."""

from typing import Any

from anyformer.families import llama_like as like
from anyformer.families.config_keys import Key, number, usual, whole
from anyformer.families.family import Preset, sizes
from anyformer.families.key_groups import RopeKeys

BASE: dict[str, Any] = like.BASE | {
    "norm": {"kind": "layernorm", "eps": 1e-5, "bias": False},
    "position": {"kind": "rope", "theta": 1e4, "layout": "interleaved"},
    "block": {"wiring": "parallel"},
    "head": {"kind": "lm", "tied": True},
    "ids": {"pad": 0, "bos": 5, "eos": [255001]},
}
"""What Command R and Command A share."""

KEYS: dict[str, Key] = {
    **like.keys(8192, 40, 64, None, 22528, 256000, 8192, eps=1e-5, eps_key="layer_norm_eps", tied=True),
    **usual(attention_bias=False, pad_token_id=0, bos_token_id=5, eos_token_id=255001),
    "logit_scale": number(0.0625, "head.scale"),
    # The length that a card promises, beside the one that the class reads.
    "model_max_length": whole(None),
}
HEAD_NORM: dict[str, Any] = {"kind": "layernorm", "eps": 1e-5, "bias": False, "scope": "heads"}
"""Of queries and keys in each head, with a gain of its own."""
PARTS = like.ATTENTION | like.FFN | {"attention_inner": "input_layernorm"}


class Cohere(like.LlamaLike, kind="cohere"):
    """Command R and R+."""

    base = BASE
    presets = (
        Preset("command-r", "Command R (2024)",
               sizes(8192, 40, 64, 64, 22528, 256000, 131072) | {"position.theta": 8e6, "head.scale": 0.0625},
               34_980_831_232, also=("command-r-v01",), published="only rounded, to 35B, on its card",
               evidence="values in conversion and serving code of three other projects",
               note="every head has keys of its own; its file says 8192 positions, its card promises 131072"),
        Preset("command-r-08-2024", "Command R 08-2024 (2024)",
               sizes(8192, 40, 64, 8, 24576, 256000, 131072) | {"position.theta": 4e6, "head.scale": 0.0625},
               32_296_476_672, published="32,296,476,672 in released files of Aya Expanse 32B, of the same shapes",
               evidence="the config in one other project",
               note="grouped keys and a wider feed-forward than the first release"),
        Preset("command-r-plus", "Command R+ (2024)", sizes(12288, 64, 96, 8, 33792, 256000, 131072)
               | {"position.theta": 75e6, "head.scale": 0.8333333333333334, "attention.qk_norm": HEAD_NORM},
               103_810_674_688, also=("command-r+",), published="only rounded, to 104B, on its card",
               evidence="the config in one other project; the norms on queries and keys from the public class and "
               "another project",
               note="that project leaves those norms out, which is wrong"),
    )  # fmt: skip
    architectures = ("CohereForCausalLM",)
    # No released file has head_dim; the public class takes it from one that does.
    keys = {**KEYS, **usual(head_dim=None), "use_qk_norm": like.qk_norm_key(HEAD_NORM)}
    groups = (RopeKeys(theta=500000.0, layout="interleaved"),)
    tensors = like.tensors(PARTS | like.HEAD_NORMS)
    small = like.small(use_qk_norm=True, logit_scale=0.3, rope_theta=500.0)
