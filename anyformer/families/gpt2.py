"""GPT-2 (Radford et al. 2019): learned positions, LayerNorm first, GELU by tanh, tied head, biases everywhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyformer.families.config_keys import Key, SpecView, activation, flag, number, special_ids, whole
from anyformer.families.config_values import Values
from anyformer.families.family import Family, Preset
from anyformer.families.statemap import Joined, Rule, Transposed, block_rules, decoder_map
from anyformer.specs.model import ModelSpec
from anyformer.specs.stacks import DEEPEST

BASE: dict[str, Any] = {
    "attention": {"heads": 1, "bias": "qkvo"},
    "norm": {"kind": "layernorm", "eps": 1e-5},
    "position": {"kind": "learned"},
    "ffn": {"kind": "gelu_tanh", "bias": True},
    "head": {"kind": "lm", "tied": True},
    "init": {"kind": "normal", "std": 0.02},
}
"""The design that families without LLaMA's choices start from."""
GPT2_INIT: dict[str, Any] = {"kind": "gpt2", "std": 0.02}
MATRICES = {"qkv": "attn.c_attn", "o": "attn.c_proj", "up": "mlp.c_fc", "down": "mlp.c_proj"}
"""The matrices of a block."""
NORMS = {"attention_inner": "ln_1", "ffn_inner": "ln_2"}


def conv_rules(theirs: str, parts: Mapping[str, str]) -> tuple[Rule, ...]:
    """Weights that are stored (in, out), and their biases."""
    rules = block_rules(theirs, parts)
    return tuple(
        Rule(rule.theirs.replace("{p}", p), tuple(name.replace("{p}", p) for name in rule.ours), op)
        for rule in rules
        for p, op in (("weight", Transposed()), ("bias", Joined()))
    )


CONVOLUTIONS = conv_rules("transformer.h.{i}", MATRICES)
"""The matrices of a block, in GPT as in GPT-2."""


def size_keys(
    *, vocab: int, context: int = 1024, width: int = 768, depth: int = 12, heads: int = 12, dropout: float = 0.1,
    tied: bool = True,
) -> dict[str, Key]:  # fmt: skip
    """Keys that GPT, GPT-2, GPT-BigCode and GPT-J share, with the defaults of one public class."""
    return {
        "vocab_size": whole(vocab, "vocab"),
        "n_positions": whole(context, "context"),
        "n_ctx": whole(None),
        "n_embd": whole(width, "width"),
        "n_layer": whole(depth, "depth"),
        "n_head": whole(heads, "attention.heads"),
        "resid_pdrop": number(dropout, "block.dropout"),
        "embd_pdrop": number(dropout, "embed.dropout"),
        "attn_pdrop": number(dropout, "attention.dropout"),
        "layer_norm_epsilon": number(1e-5, "norm.eps"),
        "initializer_range": number(0.02, "init.std"),
        "tie_word_embeddings": flag(tied, "head.tied"),
    }


def ffn_keys(act: str = "gelu_new") -> dict[str, Key]:
    """Those of a feed-forward with biases, four times as wide as the model unless the file says otherwise."""
    return {
        "n_inner": whole(None, "ffn.width", derived=True),
        "activation_function": activation(act, prefer=act, more={"ffn.bias": True}),
    }


def small(**more: Any) -> dict[str, Any]:
    """A small config."""
    return {
        "vocab_size": 61, "n_positions": 64, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_inner": 40,
        "layer_norm_epsilon": 1e-3, "bos_token_id": 1, "eos_token_id": 2,
    } | more  # fmt: skip


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

    base = BASE | {"vocab": 50257, "context": 1024, "init": GPT2_INIT, "ids": {"bos": 50256, "eos": [50256]}}
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
    keys = {
        **size_keys(vocab=50257),
        **ffn_keys(),
        **special_ids(bos=50256, eos=50256),
        "scale_attn_weights": flag(True),
        "scale_attn_by_inverse_layer_idx": flag(False),
        # It only says in which precision scores are computed.
        "reorder_and_upcast_attn": flag(False),
    }
    tensors = decoder_map(
        "transformer",
        "h",
        NORMS,
        *CONVOLUTIONS,
        tokens="wte",
        positions="wpe",
        final="ln_f",
        ignored=(r"(transformer\.)?h\.\d+\.attn\.(bias|masked_bias)",),
    )
    small = small()

    @classmethod
    def read(cls, c: Values) -> dict[str, Any]:
        scale = "1/sqrt(head_dim)" if c["scale_attn_weights"] else "1"
        by_layer = range(1, min(c["n_layer"], DEEPEST)) if c["scale_attn_by_inverse_layer_idx"] else ()
        return super().read(c) | {
            "attention.scale": scale if c["scale_attn_weights"] else 1.0,
            **{f"layers.{i}.attention.scale": f"{scale}/{i + 1}" for i in by_layer},
        }

    @classmethod
    def write(cls, spec: ModelSpec) -> dict[str, Any]:
        view = SpecView.of(spec)
        scales = {layer.attention.scale for layer in view.stack.layers}
        return super().write(spec) | {
            "scale_attn_weights": view.get("attention.scale") != 1.0,
            "scale_attn_by_inverse_layer_idx": len(scales) > 1,
        }
