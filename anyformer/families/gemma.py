"""Gemma (2024): LLaMA's design with gains stored as their distance from 1, scaled embeddings, GEGLU and wide heads."""

from dataclasses import replace
from typing import Any

from anyformer.families import llama_like as like
from anyformer.families.config_keys import GATED, Key, SpecView, activation, must, number, usual
from anyformer.families.family import series, sizes
from anyformer.specs.formulas import evaluate

# A stored gain of 0 means 1, and it is multiplied in fp32.
NORM: dict[str, Any] = {"kind": "rmsnorm", "eps": 1e-6, "gain": "one_plus", "gain_at": "before_cast"}
BASE: dict[str, Any] = like.BASE | {
    "norm": NORM,
    "ffn": {"kind": "geglu", "form": "tanh"},
    "embed": {"kind": "tokens", "scale": "sqrt(width)", "round_scale": True},
    "head": {"kind": "lm", "tied": True},
}
"""What the first three generations share."""
IDS: dict[str, Any] = {"ids.pad": 0, "ids.eos": [1], "ids.bos": 2}
EVIDENCE = "the publisher's code and two other projects"
TANH = "gelu_pytorch_tanh"
KEYS = {
    **usual(head_dim=256, attention_bias=False, pad_token_id=0, eos_token_id=1, bos_token_id=2),
    "use_bidirectional_attention": must(None, False),
}
CAPPED = {
    "query_pre_attn_scalar": replace(
        number(256),
        sets=("attention.scale",),
        read=lambda c, name: {"attention.scale": f"1/sqrt({c[name]})"},
        write=lambda view: scalar_of(view),
    ),
    "final_logit_softcapping": number(30.0, "head.softcap", null=True),
    "attn_logit_softcapping": number(50.0, "attention.softcap", null=True),
}
"""Keys that Gemma 2 brought."""


def scalar_of(view: SpecView) -> float:
    """The number by whose root scores are divided."""
    # The power undoes a root: the last digits are noise.
    scalar = float(f"{evaluate(view.layer.attention.scale, view.dims.names()) ** -2:.12g}")
    return int(scalar) if scalar.is_integer() else scalar


def capped_keys(*sizes: int, qk_norm: bool = False) -> dict[str, Key]:
    """The keys of Gemma 2 and later, with the defaults of one public class: those of `like.keys`."""
    return {
        **KEYS,
        **CAPPED,
        **like.keys(*sizes, qk_norm=qk_norm, act=TANH, act_key="hidden_activation", tied=True),
    }


class Gemma(like.LlamaLike, kind="gemma"):
    """The first Gemma."""

    base = BASE
    presets = series("gemma-{}", "Gemma {SIZE} (2024)",
        ("2b", sizes(2048, 18, 8, 1, 16384, 256000, 8192), 2_506_172_416, "",
         "2.5B, with one head of keys and values; another project lists an eps of 1e-5 for every Gemma"),
        ("7b", sizes(3072, 28, 16, 16, 24576, 256000, 8192), 8_537_680_896, "",
         "8.5B, not 7B; 16 heads of 256 are wider than the model"),
        changes=IDS | {"attention.head_dim": 256}, hub=("google/gemma-{}",), evidence=EVIDENCE,
    )  # fmt: skip
    architectures = ("GemmaForCausalLM",)
    keys = {
        **KEYS,
        **like.keys(3072, 28, 16, 16, 24576, 256000, 8192, act=TANH, tied=True),
        # The first files say GELU and mean that by tanh, with which the models were trained.
        "hidden_act": activation(TANH, gated=True, known=GATED | {"gelu": GATED["gelu_new"]}),
        # Some released files have it beside the other one; the public class does not read it.
        "hidden_activation": must(None, TANH),
    }
    small = like.small(head_dim=12, rope_theta=500.0)
