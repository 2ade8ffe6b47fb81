"""What BERT and its relatives share: the names of their keys and of their tensors."""

from __future__ import annotations

import re
from typing import Any

from anyformer.families.config_keys import Key, activation, flag, must, number, special_ids, whole
from anyformer.families.statemap import Rule, StateMap, block_rules
from anyformer.specs.embed_head import TokenHead
from anyformer.specs.model import ModelSpec

BASE: dict[str, Any] = {
    "topology": "encoder",
    "attention": {"heads": 1, "bias": "qkvo"},
    "norm": {"kind": "layernorm", "eps": 1e-12, "placement": "post", "embedding": True},
    "position": {"kind": "learned"},
    "ffn": {"kind": "gelu", "bias": True},
    "embed": {"kind": "tokens", "token_types": 2},
    "head": {"kind": "lm", "tied": True, "bias": True, "transform": True},
    "init": {"kind": "normal", "std": 0.02},
}


def keys(*, vocab: int, context: int, act: str = "gelu", **special: int) -> dict[str, Key]:
    """The keys that all of them have, with the defaults of one public class; one activation serves layers and head."""
    return special_ids(**{"pad": 0} | special) | {
        "vocab_size": whole(vocab, "vocab"),
        "hidden_size": whole(768, "width"),
        "num_hidden_layers": whole(12, "depth"),
        "num_attention_heads": whole(12, "attention.heads"),
        "intermediate_size": whole(3072, "ffn.width"),
        "hidden_act": activation(act, more={"ffn.bias": True}, also="head.activation"),
        "hidden_dropout_prob": number(0.1, ("block.dropout", "embed.dropout")),
        "attention_probs_dropout_prob": number(0.1, "attention.dropout"),
        "max_position_embeddings": whole(context, "context"),
        "type_vocab_size": whole(2, "embed.token_types"),
        "initializer_range": number(0.02, "init.std"),
        "layer_norm_eps": number(1e-12, "norm.eps"),
        "position_embedding_type": must("absolute"),
        "is_decoder": must(False),
        "tie_word_embeddings": flag(True, "head.tied"),
    }


PARTS = {
    "q": "attention.self.query", "k": "attention.self.key", "v": "attention.self.value",
    "o": "attention.output.dense", "attention_after": "attention.output.LayerNorm",
    "up": "intermediate.dense", "down": "output.dense", "ffn_after": "output.LayerNorm",
}  # fmt: skip


def weights(
    spec: ModelSpec,
    name: str,
    *more: Rule,
    head: str = "cls.predictions",
    transform: tuple[str, str] = ("transform.dense", "transform.LayerNorm"),
    ignored: tuple[str, ...] = (),
) -> StateMap:
    """The table of tensors of a class whose body is called `name`, with the names of its masked-LM head."""
    stack, front = spec.stacks[-1].name, f"{name}.embeddings"
    tied = isinstance(spec.head, TokenHead) and spec.head.tied
    # The bias is stored twice. Where nothing is tied the class adds the second, and has no use for the first.
    used, other = f"{head}.bias", f"{head}.decoder.bias"
    if not tied:
        used, other = other, used
    return StateMap(
        rules=(
            Rule(f"{front}.word_embeddings.weight", "embed.tokens.weight"),
            Rule(f"{front}.token_type_embeddings.weight", "embed.types.weight"),
            Rule(f"{front}.position_embeddings.weight", f"{stack}.positions.0.table"),
            Rule(f"{front}.LayerNorm.{{p}}", f"{stack}.embedding_norm.{{p}}"),
            *more,
            *block_rules(f"{name}.encoder.layer.{{i}}", PARTS, f"{stack}.blocks.{{i}}"),
            Rule(f"{head}.{transform[0]}.{{p}}", "head.dense.{p}"),
            Rule(f"{head}.{transform[1]}.{{p}}", "head.norm.{p}"),
            Rule(f"{head}.decoder.weight", "head.weight"),
            Rule(used, "head.bias"),
        ),
        copies={f"{head}.decoder.weight": f"{front}.word_embeddings.weight", other: used} if tied else {},
        ignored=(
            rf"({name}\.)?embeddings\.(position_ids|token_type_ids)",
            rf"({name}\.)?pooler\.dense\.(weight|bias)",
            *ignored,
            *(() if tied else (re.escape(other),)),
        ),
        prefix=f"{name}.",
        renamed={".LayerNorm.gamma": ".LayerNorm.weight", ".LayerNorm.beta": ".LayerNorm.bias"},
    )


def small(**more: Any) -> dict[str, Any]:
    """A small config with three token types."""
    return {
        "vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
        "intermediate_size": 40, "max_position_embeddings": 64, "type_vocab_size": 3, "layer_norm_eps": 1e-3,
        "pad_token_id": 0,
    } | more  # fmt: skip
