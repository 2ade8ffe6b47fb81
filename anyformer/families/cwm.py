"""CWM (Meta 2025), a model of how code runs: LLaMA 3 with a window in three of four layers, the first of which sees all."""

from anyformer.families import llama_like as like
from anyformer.families.config_keys import must, whole
from anyformer.families.key_groups import RopeKeys, WindowKeys
from anyformer.families.llama import Llama

TABLE = {
    "rope_type": "llama3", "rope_theta": 1e6, "factor": 16.0, "original_max_position_embeddings": 8192,
    "low_freq_factor": 1.0, "high_freq_factor": 4.0,
}  # fmt: skip


class Cwm(Llama, kind="cwm"):
    """Code World Model."""

    architectures = ("CwmForCausalLM",)
    keys = {
        **like.keys(6144, 64, 48, 8, 21504, 128256, 131072, eps=1e-5, mlp_bias=False),
        **like.ids(128000, [128001, 128008, 128009]),
        "head_dim": whole(128, "attention.head_dim", null=True, derived=True),
        "attention_bias": must(False),
    }
    groups = (RopeKeys(theta=1e6, table=TABLE), WindowKeys(window=8192, needed=True, is_local=lambda c, i: i % 4))
    small = like.small(head_dim=12, sliding_window=5, rope_parameters=TABLE | {"original_max_position_embeddings": 16})
