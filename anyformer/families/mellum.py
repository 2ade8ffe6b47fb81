"""Mellum 2 (JetBrains 2026): Qwen3-MoE's design, with a theta for each kind of layer."""

from typing import Any

from anyformer.families import llama_like as like
from anyformer.families import moe_like as moe
from anyformer.families.config_keys import TEXTS, must, usual, whole
from anyformer.families.config_values import without
from anyformer.families.key_groups import FULL, LOCAL, WindowKeys
from anyformer.specs.model import ModelSpec

THETAS = {FULL: ("rope_theta", 5e5), LOCAL: ("rope_theta", 1e4)}


class Mellum(moe.MoeLike, kind="mellum"):
    """Mellum 2."""

    base = moe.BASE | {"attention": {"heads": 1, "qk_norm": moe.HEAD_NORM}, "norm": moe.HEAD_NORM}
    architectures = ("MellumForCausalLM",)
    keys = {
        **like.keys(2304, 28, 32, 4, 7168, 98304, 131072, qk_norm=True, head_dim=128),
        **usual(attention_bias=False),
        **moe.expert_keys(64, 8, width=896, dense=7168, normalise=True),
        # The public class reads a table for each kind of layer only.
        **dict.fromkeys(("rope_theta", "rope_scaling"), must(None)),
        # Extra layers, which predict further tokens, are not read.
        **dict.fromkeys(("num_mtp_layers", "num_nextn_predict_layers"), whole(None)),
        **dict.fromkeys(("mtp_layer_types", "mtp_mlp_layer_types"), TEXTS),
    }
    groups = (WindowKeys(window=1024, is_local=lambda c, i: False, thetas=THETAS), moe.typed_dense())
    tensors = moe.tensors(like.LLAMA | like.HEAD_NORMS, ignored=(r"mtp\..*",))
    small = {name: value for name, value in moe.small().items() if name != "rope_theta"} | {
        "head_dim": 12, "sliding_window": 5, "layer_types": [LOCAL, FULL, LOCAL], "num_hidden_layers": 3,
        "mlp_layer_types": ["dense", "sparse", "sparse"],
        "rope_parameters": {
            FULL: {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "rope_theta": 900.0},
            LOCAL: {"rope_type": "default", "rope_theta": 50.0},
        },
    }  # fmt: skip

    @classmethod
    def write(cls, spec: ModelSpec) -> dict[str, Any]:
        return without(super().write(spec), ["rope_scaling"])
