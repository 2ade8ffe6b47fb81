"""Hunyuan-A13B (Tencent 2025): experts beside a shared one, and norms of each head after RoPE."""

from dataclasses import replace
from typing import Any

from anyformer.families import llama_like as like
from anyformer.families import moe_like as moe
from anyformer.families.config_keys import Key, are_whole, usual, whole
from anyformer.families.config_values import Values
from anyformer.families.hunyuan_v1_dense import HEAD_NORMS
from anyformer.families.key_groups import STRETCHED, RopeKeys


def _listed(key: Key, what: str) -> Key:
    """A number that files may say for every layer, where all must be the same."""

    def read(c: Values, name: str) -> dict[str, Any]:
        value = c[name]
        if isinstance(value, list):
            if len({*value}) != 1:
                c.refuse(name, f"lists different numbers {what}, which this family does not read")
            value = value[0] if value else None
        return {key.sets[0]: value}

    return replace(key, what="a whole number or a list of them", fits=are_whole, read=read)


class HunyuanMoe(moe.MoeLike, kind="hunyuan_v1_moe"):
    """Hunyuan-A13B."""

    base = moe.BASE | {"attention": {"heads": 1, "qk_norm": moe.HEAD_NORM | {"when": "after"}}}
    architectures = ("HunYuanMoEV1ForCausalLM",)
    keys = {
        **like.keys(
            4096, 32, 32, None, 11008, 290943, 2048, eps=1e-5, qk_norm=True, head_dim=None, attention_bias=False,
        ),
        **usual(pad_token_id=0, bos_token_id=1, eos_token_id=2, eod_token_id=3),
        **moe.expert_keys(1, 1, chosen="moe_topk"),
        "num_experts": _listed(whole(1, "ffn.experts"), "of experts"),
        "moe_topk": _listed(whole(1, "ffn.top_k"), "of chosen experts"),
        # The expert that all tokens go through is as wide as the others.
        "intermediate_size": whole(11008, ("ffn.width", "ffn.shared_width")),
    }  # fmt: skip
    groups = (RopeKeys(more=STRETCHED),)
    tensors = moe.tensors(
        like.ATTENTION | like.PRE_NORMS | HEAD_NORMS,
        router="gate.wg",
        shared="shared_mlp",
    )
    small = like.small(
        num_experts=5, moe_topk=[3, 3, 3], head_dim=12,
        rope_scaling={"type": "dynamic", "alpha": 7.0, "factor": 1.0, "beta_fast": 32, "beta_slow": 1},
    )  # fmt: skip
