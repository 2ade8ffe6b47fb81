"""GPT-2 (Radford et al. 2019): learned positions, LayerNorm first, GELU by tanh, tied head, biases everywhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyformer.families.config_keys import Values, activation_of, flag, ids, number, plain_ffn, text, whole
from anyformer.families.family import Family, Preset
from anyformer.families.statemap import Joined, Rule, StateMap, Transposed
from anyformer.specs.embed_head import TokenHead
from anyformer.specs.formulas import evaluate
from anyformer.specs.model import ModelSpec
from anyformer.specs.stacks import DEEPEST

LAYER, BLOCK = "transformer.h.{i}", "decoder.blocks.{i}"


def conv_rules(theirs: str, *ours: str) -> tuple[Rule, Rule]:
    """A weight that is stored (in, out), and its bias."""
    return (
        Rule(f"{theirs}.weight", tuple(f"{name}.weight" for name in ours), Transposed()),
        Rule(f"{theirs}.bias", tuple(f"{name}.bias" for name in ours), Joined()),
    )


CONVOLUTIONS = (
    *conv_rules(f"{LAYER}.attn.c_attn", *(f"{BLOCK}.attention.body.{name}" for name in "qkv")),
    *conv_rules(f"{LAYER}.attn.c_proj", f"{BLOCK}.attention.body.o"),
    *conv_rules(f"{LAYER}.mlp.c_fc", f"{BLOCK}.ffn.body.up"),
    *conv_rules(f"{LAYER}.mlp.c_proj", f"{BLOCK}.ffn.body.down"),
)
"""The matrices of a block, in GPT as in GPT-2."""

SIZE_KEYS = {
    "n_positions": whole(1024),
    "n_ctx": whole(None),
    "n_embd": whole(768),
    "n_layer": whole(12),
    "n_head": whole(12),
    "resid_pdrop": number(0.1),
    "embd_pdrop": number(0.1),
    "attn_pdrop": number(0.1),
    "layer_norm_epsilon": number(1e-5),
    "initializer_range": number(0.02),
    "tie_word_embeddings": flag(True),
}
"""Keys that GPT, GPT-2 and GPT-J share."""


def read_sizes(c: Values) -> dict[str, Any]:
    """Those keys as changes of a spec."""
    return {
        "vocab": c["vocab_size"],
        "width": c["n_embd"],
        "depth": c["n_layer"],
        "context": c["n_positions"],
        "attention.heads": c["n_head"],
        "attention.dropout": float(c["attn_pdrop"]),
        "block.dropout": float(c["resid_pdrop"]),
        "embed.dropout": float(c["embd_pdrop"]),
        "norm.eps": float(c["layer_norm_epsilon"]),
        "head.tied": c["tie_word_embeddings"],
        "init.std": float(c["initializer_range"]),
    }


def write_sizes(spec: ModelSpec) -> dict[str, Any]:
    """Those keys of a spec."""
    stack = spec.stacks[-1]
    layer = stack.layers[0]
    return {
        "vocab_size": spec.vocab,
        "n_positions": spec.context,
        "n_embd": spec.width,
        "n_layer": stack.depth,
        "n_head": layer.attention.heads,
        "resid_pdrop": layer.block.dropout,
        "embd_pdrop": spec.embed.dropout,
        "attn_pdrop": layer.attention.dropout,
        "layer_norm_epsilon": layer.norm.leaf.eps,
        "initializer_range": getattr(spec.init, "std", 0.02),
        "tie_word_embeddings": isinstance(spec.head, TokenHead) and spec.head.tied,
    }


def _preset(size: str, width: int, depth: int, heads: int, params: int, published: str, note: str = "") -> Preset:
    return Preset(
        name=f"gpt2-{size}",
        also=(f"gpt-2-{size}", *(("gpt2", "gpt-2") if size == "small" else ())),
        hub=(f"openai-community/gpt2{'' if size == 'small' else f'-{size}'}",),
        title=f"GPT-2 {size} (2019)",
        changes={"width": width, "depth": depth, "attention.heads": heads},
        params=params,
        published=published,
        evidence="the publisher's hyperparameter files and two other projects; the count was recorded by another library",
        note=note,
    )


class GPT2(Family, kind="gpt2"):
    """GPT-2."""

    base = {
        "vocab": 50257,
        "context": 1024,
        "attention": {"heads": 1, "bias": "qkvo"},
        "norm": {"kind": "layernorm", "eps": 1e-5},
        "position": {"kind": "learned"},
        "ffn": {"kind": "gelu_tanh", "bias": True},
        "head": {"kind": "lm", "tied": True},
        "init": {"kind": "gpt2", "std": 0.02},
        "ids": {"bos": 50256, "eos": [50256]},
    }
    presets = (
        _preset("small", 768, 12, 12, 124_439_808, "124,439,808; OpenAI says 124M, the paper's 117M was a miscount"),
        _preset("medium", 1024, 24, 16, 354_823_168, "354,823,168; OpenAI says 355M, the paper's 345M was a miscount",
                "released files hold 24 causal masks beside the weights: 379,988,992 numbers"),
        _preset("large", 1280, 36, 20, 774_030_080, "774,030,080; OpenAI says 774M",
                "released files hold 36 causal masks beside the weights: 811,778,816 numbers"),
        _preset("xl", 1600, 48, 25, 1_557_611_200, "1,557,611,200; OpenAI says 1558M, most people 1.5B",
                "released files hold 48 causal masks beside the weights: 1,607,942,848 numbers"),
    )  # fmt: skip
    architectures = ("GPT2LMHeadModel",)
    model_type = "gpt2"
    before_types = True
    keys = SIZE_KEYS | {
        "vocab_size": whole(50257),
        "n_inner": whole(None),
        "activation_function": text("gelu_new"),
        "scale_attn_weights": flag(True),
        "scale_attn_by_inverse_layer_idx": flag(False),
        # It only says in which precision scores are computed.
        "reorder_and_upcast_attn": flag(False),
        "bos_token_id": ids(50256),
        "eos_token_id": ids(50256),
    }

    @classmethod
    def read(cls, c: Values) -> Mapping[str, Any]:
        scale = "1/sqrt(head_dim)" if c["scale_attn_weights"] else "1"
        by_layer = range(1, min(c["n_layer"], DEEPEST)) if c["scale_attn_by_inverse_layer_idx"] else ()
        return read_sizes(c) | {
            "ffn.kind": plain_ffn(c, "activation_function"),
            "ffn.bias": True,
            "ffn.width": None if c["n_inner"] == 4 * c["n_embd"] else c["n_inner"],
            "attention.scale": scale if c["scale_attn_weights"] else 1.0,
            **{f"layers.{i}.attention.scale": f"{scale}/{i + 1}" for i in by_layer},
        }

    @classmethod
    def write(cls, spec: ModelSpec) -> Mapping[str, Any]:
        stack = spec.stacks[-1]
        layer = stack.layers[0]
        dims = spec.dims(layer, stack)
        return write_sizes(spec) | {
            "n_inner": dims.ffn_width,
            "activation_function": activation_of(layer.ffn, gated=False, prefer="gelu_new"),
            "scale_attn_weights": evaluate(layer.attention.scale, dims.names()) != 1.0,
            "scale_attn_by_inverse_layer_idx": any(
                other.attention.scale != layer.attention.scale for other in stack.layers
            ),
        }

    @classmethod
    def weights(cls, spec: ModelSpec) -> StateMap:
        return StateMap(
            rules=(
                Rule("transformer.wte.weight", "embed.tokens.weight"),
                Rule("transformer.wpe.weight", "decoder.positions.0.table"),
                *CONVOLUTIONS,
                Rule(f"{LAYER}.ln_1.{{p}}", f"{BLOCK}.attention.inner.{{p}}"),
                Rule(f"{LAYER}.ln_2.{{p}}", f"{BLOCK}.ffn.inner.{{p}}"),
                Rule("transformer.ln_f.{p}", "decoder.final_norm.{p}"),
                Rule("lm_head.weight", "head.weight"),
            ),
            copies={"lm_head.weight": "transformer.wte.weight"},
            ignored=(r"(transformer\.)?h\.\d+\.attn\.(bias|masked_bias)",),
            prefix="transformer.",
        )

    @classmethod
    def tiny(cls) -> dict[str, Any]:
        return {
            "vocab_size": 61, "n_positions": 64, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_inner": 40,
            "layer_norm_epsilon": 1e-3, "bos_token_id": 1, "eos_token_id": 2,
        }  # fmt: skip
