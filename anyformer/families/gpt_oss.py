"""gpt-oss (OpenAI 2025): experts with biases and a clamped gate, sinks, and a window in every second layer."""

from dataclasses import replace
from typing import Any

from anyformer.families import llama_like as like
from anyformer.families import moe_like as moe
from anyformer.families.config_keys import flag, must, number, text, whole
from anyformer.families.family import series, sizes
from anyformer.families.key_groups import RopeKeys, WindowKeys

YARN: dict[str, Any] = {
    "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
    "original_max_position_embeddings": 4096,
}  # fmt: skip
TRAITS: dict[str, Any] = {
    "attention.head_dim": 64, "attention.bias": "qkvo", "ffn.top_k": 4, "position.theta": 150000.0,
    "position.scaling": {
        "kind": "yarn", "factor": 32.0, "original": 4096, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
    },
    "layers": {"order": "local, global", "local": {"attention.pattern": "window(128)"}, "global": {}},
}  # fmt: skip
LIMIT = replace(
    number(7.0),
    read=lambda c, name: {"ffn.expert": {"kind": "geglu", "form": "quick", "clamp": float(c[name]), "offset": 1.0}},
    write=lambda view: getattr(view.get("ffn.expert"), "clamp", None) or 7.0,
)


class GptOss(moe.MoeLike, kind="gpt_oss"):
    """gpt-oss."""

    base = moe.BASE | {
        "attention": {"heads": 1, "mixer": {"kind": "softmax", "sinks": True}},
        "ffn": {
            "kind": "moe", "bias": True, "router_bias": True,
            "expert": {"kind": "geglu", "form": "quick", "clamp": 7.0, "offset": 1.0},
        },
        "norm": {"kind": "rmsnorm", "eps": 1e-5, "gain_at": "before_cast"},
    }  # fmt: skip
    presets = series("gpt-oss-{}", "gpt-oss {SIZE} (2025)",
        ("20b", sizes(2880, 24, 64, 8, 2880, 201088, 131072) | {"ffn.experts": 32}, 20_914_757_184, "", "",
         "configs in code of two other projects"),
        ("120b", sizes(2880, 36, 64, 8, 2880, 201088, 131072) | {"ffn.experts": 128}, 116_829_156_672, "", "",
         "the publisher's code and one other project"),
        changes=TRAITS, hub=("openai/gpt-oss-{}",), published="{params:,} in released files in bf16",
        note="released files hold the experts in four bits",
    )  # fmt: skip
    architectures = ("GptOssForCausalLM",)
    keys = {
        **like.keys(2880, 36, 64, 8, 2880, 201088, 131072, eps=1e-5, head_dim=64),
        **moe.expert_keys(128, 4, count="num_local_experts"),
        "attention_bias": flag(True, "attention.bias"),
        "swiglu_limit": LIMIT,
        "swiglu_alpha": must(1.702),
        # The activation is fixed.
        "hidden_act": text("silu"),
        # What released files say once more, and the public class does not read.
        "experts_per_token": whole(None),
        "initial_context_length": whole(None),
    }
    groups = (RopeKeys(theta=150000.0, table=YARN), WindowKeys(window=128, is_local=lambda c, i: (i + 1) % 2))
    tensors = moe.tensors(
        like.ATTENTION | like.PRE_NORMS,
        moe.fused(transposed=True, interleaved=True),
        router="router",
        more=(moe.SINKS,),
    )
    small = like.small(
        num_local_experts=5, num_experts_per_tok=3, head_dim=12, sliding_window=5, swiglu_limit=0.4, rope_theta=900.0,
        rope_scaling=YARN | {"factor": 4.0, "original_max_position_embeddings": 16},
    )  # fmt: skip
