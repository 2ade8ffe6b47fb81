"""GPT (Radford et al. 2018): the first of them, with norms after each addition and no norm at the end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyformer.families.config_keys import Values, plain_ffn, text, whole
from anyformer.families.family import Family, Preset
from anyformer.families.gpt2 import BLOCK, CONVOLUTIONS, LAYER, SIZE_KEYS, read_sizes, write_sizes
from anyformer.families.statemap import Rule, StateMap
from anyformer.specs.model import ModelSpec

ACTIVATIONS = {"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"}
"""This family's 'gelu' is the one by tanh."""


class GPT(Family, kind="gpt"):
    """The first GPT."""

    base = {
        "vocab": 40478,
        "context": 512,
        "attention": {"heads": 1, "bias": "qkvo"},
        "norm": {"kind": "layernorm", "eps": 1e-5, "placement": "post"},
        "position": {"kind": "learned"},
        "ffn": {"kind": "gelu_tanh", "bias": True},
        "head": {"kind": "lm", "tied": True},
        "init": {"kind": "normal", "std": 0.02},
    }
    presets = (
        Preset(
            name="gpt", title="GPT (2018)",
            changes={"width": 768, "depth": 12, "attention.heads": 12},
            params=116_534_784,
            published="paper and release say 117M",
            evidence="defaults of the publisher's training code; the vocabulary is the public class's default",
            note="released files hold 12 causal masks beside the weights: 119,680,512 numbers",
        ),
    )  # fmt: skip
    architectures = ("OpenAIGPTLMHeadModel",)
    model_type = "openai-gpt"
    before_types = True
    keys = SIZE_KEYS | {
        "vocab_size": whole(40478),
        "n_positions": whole(512),
        "afn": text("gelu"),
        "n_special": whole(0),
    }

    @classmethod
    def read(cls, c: Values) -> Mapping[str, Any]:
        return read_sizes(c) | {"ffn.kind": plain_ffn(c, "afn", known=ACTIVATIONS), "ffn.bias": True}

    @classmethod
    def write(cls, spec: ModelSpec) -> Mapping[str, Any]:
        kind = spec.stacks[-1].layers[0].ffn.kind
        return write_sizes(spec) | {"afn": next((name for name, ours in ACTIVATIONS.items() if ours == kind), "gelu")}

    @classmethod
    def weights(cls, spec: ModelSpec) -> StateMap:
        return StateMap(
            rules=(
                Rule("transformer.tokens_embed.weight", "embed.tokens.weight"),
                Rule("transformer.positions_embed.weight", "decoder.positions.0.table"),
                *CONVOLUTIONS,
                Rule(f"{LAYER}.ln_1.{{p}}", f"{BLOCK}.attention.after.{{p}}"),
                Rule(f"{LAYER}.ln_2.{{p}}", f"{BLOCK}.ffn.after.{{p}}"),
                Rule("lm_head.weight", "head.weight"),
            ),
            copies={"lm_head.weight": "transformer.tokens_embed.weight"},
            ignored=(r"(transformer\.)?(h\.\d+\.attn\.bias|position_ids)",),
            prefix="transformer.",
        )

    @classmethod
    def tiny(cls) -> dict[str, Any]:
        return {
            "vocab_size": 61, "n_positions": 64, "n_embd": 32, "n_layer": 3, "n_head": 4, "layer_norm_epsilon": 1e-3,
        }  # fmt: skip
