"""What LLaMA and its relatives share: the names of their keys and of their tensors."""

from __future__ import annotations

from typing import Any

from anyformer.families.config_keys import Key, Values, activation_of, flag, gated_ffn, number, plain_ffn, text, whole
from anyformer.families.rope_keys import ROPE_KEYS
from anyformer.families.statemap import Rule, StateMap
from anyformer.specs.embed_head import TokenHead
from anyformer.specs.model import ModelSpec

LAYER, BLOCK = "model.layers.{i}", "decoder.blocks.{i}"

ENDS = (
    Rule("model.embed_tokens.weight", "embed.tokens.weight"),
    Rule("model.norm.{p}", "decoder.final_norm.{p}"),
    Rule("lm_head.weight", "head.weight"),
)
ATTENTION = tuple(
    Rule(f"{LAYER}.self_attn.{name}_proj.{{p}}", f"{BLOCK}.attention.body.{name}.{{p}}")
    for name in ("q", "k", "v", "o")
)
FUSED_FFN = (
    Rule(f"{LAYER}.mlp.gate_up_proj.weight", (f"{BLOCK}.ffn.body.gate.weight", f"{BLOCK}.ffn.body.up.weight")),
    Rule(f"{LAYER}.mlp.down_proj.weight", f"{BLOCK}.ffn.body.down.weight"),
)
FFN = tuple(Rule(f"{LAYER}.mlp.{name}_proj.{{p}}", f"{BLOCK}.ffn.body.{name}.{{p}}") for name in ("gate", "up", "down"))
PRE_NORMS = (
    Rule(f"{LAYER}.input_layernorm.{{p}}", f"{BLOCK}.attention.inner.{{p}}"),
    Rule(f"{LAYER}.post_attention_layernorm.{{p}}", f"{BLOCK}.ffn.inner.{{p}}"),
)
HEAD_NORMS = tuple(
    Rule(f"{LAYER}.self_attn.{name}_norm.{{p}}", f"{BLOCK}.attention.body.{name}_norm.{{p}}") for name in ("q", "k")
)


def state_map(*rules: Rule) -> StateMap:
    """A table with the usual ends."""
    return StateMap(
        rules=(*ENDS, *rules),
        copies={"lm_head.weight": "model.embed_tokens.weight"},
        ignored=(r"(model\.)?(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq",),
        prefix="model.",
    )


def keys(
    *, vocab: int, width: int, ffn: int, depth: int, heads: int, kv_heads: int | None, context: int,
    eps: float | None, eps_key: str = "rms_norm_eps",
) -> dict[str, Key]:  # fmt: skip
    """The keys that all of them have, with the defaults of one public class; `eps` is None if it has no such key."""
    return {
        "vocab_size": whole(vocab),
        "hidden_size": whole(width),
        "intermediate_size": whole(ffn),
        "num_hidden_layers": whole(depth),
        "num_attention_heads": whole(heads),
        "num_key_value_heads": whole(kv_heads, null=True),
        "hidden_act": text("silu"),
        "max_position_embeddings": whole(context),
        "initializer_range": number(0.02),
        **({} if eps is None else {eps_key: number(eps)}),
        "tie_word_embeddings": flag(False),
        "attention_dropout": number(0.0, null=True),
        **ROPE_KEYS,
    }


def read(
    c: Values, *, head_dim: int | None = None, activation: str = "hidden_act", eps_key: str = "rms_norm_eps",
    gated: bool = True,
) -> dict[str, Any]:  # fmt: skip
    """Those keys as changes of a spec."""
    width, heads = c["hidden_size"], c["num_attention_heads"]
    usual = head_dim is None or head_dim * heads == width
    ffn = gated_ffn(c, activation) if gated else {"ffn.kind": plain_ffn(c, activation)}
    eps = {"norm.eps": float(c[eps_key])} if eps_key in c else {}
    return (ffn | eps) | {
        "vocab": c["vocab_size"],
        "width": width,
        "depth": c["num_hidden_layers"],
        "context": c["max_position_embeddings"],
        "attention.heads": heads,
        "attention.kv_heads": None if c["num_key_value_heads"] == heads else c["num_key_value_heads"],
        "attention.head_dim": None if usual else head_dim,
        "attention.dropout": float(c["attention_dropout"] or 0.0),
        "ffn.width": c["intermediate_size"],
        "head.tied": c["tie_word_embeddings"],
        "init.std": float(c["initializer_range"]),
    }


def write(
    spec: ModelSpec, *, activation: str = "hidden_act", eps_key: str = "rms_norm_eps", gated: bool = True
) -> dict[str, Any]:
    """Those keys of a spec. Where layers differ, the first speaks; reading back shows what that hides."""
    stack = spec.stacks[-1]
    layer = stack.layers[0]
    dims = spec.dims(layer, stack)
    return {
        "vocab_size": spec.vocab,
        "hidden_size": spec.width,
        "intermediate_size": dims.ffn_width,
        "num_hidden_layers": stack.depth,
        "num_attention_heads": dims.heads,
        "num_key_value_heads": dims.kv_heads,
        activation: activation_of(layer.ffn, gated=gated),
        "max_position_embeddings": spec.context,
        "initializer_range": getattr(spec.init, "std", 0.02),
        eps_key: layer.norm.leaf.eps,
        "tie_word_embeddings": isinstance(spec.head, TokenHead) and spec.head.tied,
        "attention_dropout": layer.attention.dropout,
    }


def tiny(**more: Any) -> dict[str, Any]:
    """A small config with grouped heads and three layers."""
    return {
        "vocab_size": 61,
        "hidden_size": 32,
        "intermediate_size": 40,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-3,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    } | more
