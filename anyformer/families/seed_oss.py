"""Seed-OSS (ByteDance 2025): LLaMA with biases on queries, keys and values, and wide heads."""

from dataclasses import replace

from anyformer.families import llama_like as like
from anyformer.families.config_keys import flag, usual, whole
from anyformer.families.config_values import Values


def _biases(c: Values, name: str) -> dict[str, str]:
    return {"attention.bias": "qkv" * c["attention_bias"] + "o" * c["attention_out_bias"]}


class SeedOss(like.LlamaLike, kind="seed_oss"):
    """Seed-OSS 36B."""

    base = like.BASE | {"attention": {"heads": 1, "bias": "qkv"}}
    architectures = ("SeedOssForCausalLM",)
    second = True
    keys = {
        **like.keys(4096, 64, 80, 8, 27648, 155136, 524288, mlp_bias=False, residual_dropout=0.1),
        **like.ids(0, 2, 1),
        **usual(attention_dropout=0.1),
        "head_dim": whole(128, "attention.head_dim", null=True, derived=True),
        "attention_bias": replace(flag(True), read=_biases, write=lambda view: "q" in view.get("attention.bias")),
        "attention_out_bias": replace(flag(False), write=lambda view: "o" in view.get("attention.bias")),
    }
    small = like.small(head_dim=12, rope_theta=500.0)
