"""What BERT and its relatives share: the names of their keys and of their tensors."""

from __future__ import annotations

import re
from typing import Any

from anyformer.families.config_keys import (
    ACTIVATIONS,
    Key,
    Values,
    activation_of,
    flag,
    ids,
    must,
    number,
    plain_ffn,
    text,
    whole,
)
from anyformer.families.statemap import Rule, StateMap
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


def keys(*, vocab: int, context: int) -> dict[str, Key]:
    """The keys that all of them have, with the defaults of one public class."""
    return {
        "vocab_size": whole(vocab),
        "hidden_size": whole(768),
        "num_hidden_layers": whole(12),
        "num_attention_heads": whole(12),
        "intermediate_size": whole(3072),
        "hidden_act": text("gelu"),
        "hidden_dropout_prob": number(0.1),
        "attention_probs_dropout_prob": number(0.1),
        "max_position_embeddings": whole(context),
        "type_vocab_size": whole(2),
        "initializer_range": number(0.02),
        "layer_norm_eps": number(1e-12),
        "position_embedding_type": must("absolute"),
        "is_decoder": must(False),
        "tie_word_embeddings": flag(True),
        "pad_token_id": ids(0),
    }


def read(c: Values) -> dict[str, Any]:
    """Those keys as changes of a spec; one activation serves the feed-forward and the head."""
    kind = plain_ffn(c, "hidden_act")
    return {
        "vocab": c["vocab_size"],
        "width": c["hidden_size"],
        "depth": c["num_hidden_layers"],
        "context": c["max_position_embeddings"],
        "embed.token_types": c["type_vocab_size"],
        "embed.dropout": float(c["hidden_dropout_prob"]),
        "attention.heads": c["num_attention_heads"],
        "attention.dropout": float(c["attention_probs_dropout_prob"]),
        "block.dropout": float(c["hidden_dropout_prob"]),
        "ffn.kind": kind,
        "ffn.bias": True,
        "ffn.width": c["intermediate_size"],
        "norm.eps": float(c["layer_norm_eps"]),
        "head.activation": kind,
        "head.tied": c["tie_word_embeddings"],
        "init.std": float(c["initializer_range"]),
    }


def write(spec: ModelSpec) -> dict[str, Any]:
    """Those keys of a spec. If the head has another activation than the layers, reading back shows it."""
    stack = spec.stacks[-1]
    layer = stack.layers[0]
    named = activation_of(layer.ffn, gated=False)
    return {
        "vocab_size": spec.vocab,
        "hidden_size": spec.width,
        "num_hidden_layers": stack.depth,
        "num_attention_heads": layer.attention.heads,
        "intermediate_size": spec.dims(layer, stack).ffn_width,
        "hidden_act": named if named in ACTIVATIONS else "gelu",
        "hidden_dropout_prob": layer.block.dropout,
        "attention_probs_dropout_prob": layer.attention.dropout,
        "max_position_embeddings": spec.context,
        "type_vocab_size": spec.embed.token_types,
        "initializer_range": getattr(spec.init, "std", 0.02),
        "layer_norm_eps": layer.norm.leaf.eps,
        "tie_word_embeddings": isinstance(spec.head, TokenHead) and spec.head.tied,
    }


def weights(
    spec: ModelSpec,
    name: str,
    *more: Rule,
    head: str = "cls.predictions",
    transform: tuple[str, str] = ("transform.dense", "transform.LayerNorm"),
    ignored: tuple[str, ...] = (),
) -> StateMap:
    """The table of tensors of a class whose body is called `name`, with the names of its masked-LM head."""
    stack = spec.stacks[-1].name
    layer, block, table = (
        f"{name}.encoder.layer.{{i}}",
        f"{stack}.blocks.{{i}}",
        f"{name}.embeddings.word_embeddings.weight",
    )
    parts = {
        "attention.self.query": "attention.body.q",
        "attention.self.key": "attention.body.k",
        "attention.self.value": "attention.body.v",
        "attention.output.dense": "attention.body.o",
        "attention.output.LayerNorm": "attention.after",
        "intermediate.dense": "ffn.body.up",
        "output.dense": "ffn.body.down",
        "output.LayerNorm": "ffn.after",
    }
    tied = isinstance(spec.head, TokenHead) and spec.head.tied
    # The bias is stored twice. Where nothing is tied the class adds the second, and has no use for the first.
    used, other = f"{head}.bias", f"{head}.decoder.bias"
    if not tied:
        used, other = other, used
    return StateMap(
        rules=(
            Rule(table, "embed.tokens.weight"),
            Rule(f"{name}.embeddings.token_type_embeddings.weight", "embed.types.weight"),
            Rule(f"{name}.embeddings.position_embeddings.weight", f"{stack}.positions.0.table"),
            Rule(f"{name}.embeddings.LayerNorm.{{p}}", f"{stack}.embedding_norm.{{p}}"),
            *more,
            *(Rule(f"{layer}.{theirs}.{{p}}", f"{block}.{ours}.{{p}}") for theirs, ours in parts.items()),
            Rule(f"{head}.{transform[0]}.{{p}}", "head.dense.{p}"),
            Rule(f"{head}.{transform[1]}.{{p}}", "head.norm.{p}"),
            Rule(f"{head}.decoder.weight", "head.weight"),
            Rule(used, "head.bias"),
        ),
        copies={f"{head}.decoder.weight": table, other: used} if tied else {},
        ignored=(
            rf"({name}\.)?embeddings\.(position_ids|token_type_ids)",
            rf"({name}\.)?pooler\.dense\.(weight|bias)",
            *ignored,
            *(() if tied else (re.escape(other),)),
        ),
        prefix=f"{name}.",
        renamed={".LayerNorm.gamma": ".LayerNorm.weight", ".LayerNorm.beta": ".LayerNorm.bias"},
    )


def tiny(**more: Any) -> dict[str, Any]:
    """A small config with three token types."""
    return {
        "vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
        "intermediate_size": 40, "max_position_embeddings": 64, "type_vocab_size": 3, "layer_norm_eps": 1e-3,
        "pad_token_id": 0,
    } | more  # fmt: skip
