"""Flint (2026): sigmoid experts without a bias for the choice, sinks, and no positions where a layer sees all tokens."""

from anyformer.families import llama_like as like
from anyformer.families import moe_like as moe
from anyformer.families.config_keys import usual
from anyformer.families.key_groups import RopeKeys, WindowKeys
from anyformer.families.statemap import Rule

SINKS = Rule(f"{moe.LAYER}.self_attn.softmax_offset", moe.SINKS.ours)


class Flint(moe.MoeLike, kind="flint"):
    """Flint."""

    base = moe.BASE | {
        "attention": {"heads": 1, "qk_norm": moe.HEAD_NORM, "mixer": {"kind": "softmax", "sinks": True}},
        "ffn": {"kind": "moe", "score": "sigmoid", "exact_router": True},
        "norm": moe.HEAD_NORM,
    }
    architectures = ("FlintForCausalLM",)
    keys = {
        **like.keys(2048, 49, 32, 4, 6144, 150144, 262144, qk_norm=True, head_dim=128),
        **usual(attention_bias=False),
        **moe.expert_keys(256, 6, width=512, dense=6144, normalise=True),
        "shared_expert_intermediate_size": moe.shared_width(1024),
    }
    groups = (
        RopeKeys(),
        WindowKeys(
            window=513,
            is_local=lambda c, i: not (i < 2 or i % 4 == 1 or i == c["num_hidden_layers"] - 1),
            everywhere={"position.kind": "none"},
            needed=True,
        ),
        moe.listed_dense([0, 1]),
    )
    tensors = moe.tensors(
        like.LLAMA | like.HEAD_NORMS,
        shared="shared_expert",
        more=(SINKS,),
        forms={r"\.self_attn\.sinks": ".self_attn.softmax_offset"},
    )
    small = moe.small(
        num_hidden_layers=4, head_dim=12, sliding_window=5, mlp_only_layers=[0], shared_expert_intermediate_size=20
    )
