"""What T5 and its relatives share: the names of their keys and of their tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyformer.errors import nearest
from anyformer.families.config_keys import (
    ACTIVATIONS,
    GATED,
    Key,
    Values,
    activation_of,
    flag,
    ids,
    must,
    number,
    read_ids,
    text,
    whole,
)
from anyformer.families.statemap import Rule, StateMap
from anyformer.parts.positions.t5 import T5Bias
from anyformer.specs.embed_head import TokenHead
from anyformer.specs.model import ModelSpec

BASE: dict[str, Any] = {
    "topology": "encoder-decoder",
    "context": 512,
    "attention": {"heads": 1, "scale": 1.0},
    "norm": {"kind": "rmsnorm", "eps": 1e-6},
    "position": {"kind": "t5", "buckets": 32, "max_distance": 128},
    "init": {"kind": "t5"},
    "loss": {"z": 1e-4},
    "ids": {"pad": 0, "eos": [1], "start": 0},
}


def sizes(width: int, depth: int, heads: int, head_dim: int, ffn: int, vocab: int) -> dict[str, Any]:
    """Sizes of a preset as changes; both stacks are equally deep."""
    return {
        "width": width,
        "depth": depth,
        "attention.heads": heads,
        "attention.head_dim": head_dim,
        "ffn.width": ffn,
        "vocab": vocab,
    }


def keys(*, vocab: int, ffn: int, depth: int, heads: int, projection: str) -> dict[str, Key]:
    """The keys that all of them have, with the defaults of one public class."""
    return {
        "vocab_size": whole(vocab),
        "d_model": whole(512),
        "d_kv": whole(64),
        "d_ff": whole(ffn),
        "num_layers": whole(depth),
        "num_decoder_layers": whole(None),
        "num_heads": whole(heads),
        "n_positions": whole(None),
        "relative_attention_num_buckets": whole(32),
        "relative_attention_max_distance": whole(128),
        "dropout_rate": number(0.1),
        "layer_norm_epsilon": number(1e-6),
        "initializer_factor": number(1.0),
        "feed_forward_proj": text(projection),
        # What feed_forward_proj says in other words.
        "dense_act_fn": text(None),
        "is_gated_act": flag(False, null=True),
        "tie_word_embeddings": flag(True),
        "is_encoder_decoder": must(True),
        "is_decoder": must(False),
        "output_past": flag(True),
        "pad_token_id": ids(0),
        "eos_token_id": ids(1),
    }


def read_ffn(c: Values) -> dict[str, Any]:
    """`relu`, or `gated-` and the activation of the gate; the gated GELU is the one by tanh."""
    name = c["feed_forward_proj"]
    gated, _, activation = name.rpartition("-")
    known: Mapping[str, Any] = GATED if gated else ACTIVATIONS
    if gated not in ("", "gated") or activation not in known:
        names = [*ACTIVATIONS, *(f"gated-{gate}" for gate in GATED)]
        c.refuse("feed_forward_proj", f"{name!r} is a feed-forward that we don't have{nearest(name, names)}")
        return {}
    if name == "gated-gelu":
        return {"ffn.kind": "geglu", "ffn.form": "tanh"}
    return (
        {f"ffn.{field}": value for field, value in GATED[activation].items()}
        if gated
        else {"ffn.kind": ACTIVATIONS[activation]}
    )


def read(c: Values, *, scaled: bool, context: int = 512) -> dict[str, Any]:
    """Those keys as changes of a spec. `scaled` says whether logits are divided by the root of the width."""
    depth, decoder = c["num_layers"], c["num_decoder_layers"]
    found = read_ffn(c) | {
        "vocab": c["vocab_size"],
        "width": c["d_model"],
        "depth": depth,
        "context": c["n_positions"] or context,
        "attention.heads": c["num_heads"],
        "attention.head_dim": None if c["d_kv"] * c["num_heads"] == c["d_model"] else c["d_kv"],
        "attention.dropout": float(c["dropout_rate"]),
        "block.dropout": float(c["dropout_rate"]),
        "embed.dropout": float(c["dropout_rate"]),
        "ffn.width": c["d_ff"],
        "ffn.dropout": float(c["dropout_rate"]),
        "norm.eps": float(c["layer_norm_epsilon"]),
        "position.buckets": c["relative_attention_num_buckets"],
        "position.max_distance": c["relative_attention_max_distance"],
        "head.tied": c["tie_word_embeddings"],
        "head.scale": "1/sqrt(width)" if scaled else 1.0,
        "init.factor": float(c["initializer_factor"]),
    }
    if decoder not in (None, depth):
        found["decoder.depth"] = decoder
    special = read_ids(c, c["vocab_size"])
    if special["ids.start"] is None:
        # Every T5 starts with its padding.
        found["ids.start"] = special["ids.pad"]
    return found


def write(spec: ModelSpec) -> dict[str, Any]:
    """Those keys of a spec."""
    encoder, decoder = spec.stack("encoder"), spec.stack("decoder")
    layer = encoder.layers[0]
    dims, position, head = spec.dims(layer, encoder), layer.position, spec.head
    gated = len(layer.ffn.inputs) > 1
    name = activation_of(layer.ffn, gated=gated)
    if gated:
        name = "gated-gelu" if name == "gelu_pytorch_tanh" else f"gated-{name}"
    return {
        "vocab_size": spec.vocab,
        "d_model": spec.width,
        "d_kv": dims.head_dim,
        "d_ff": dims.ffn_width,
        "num_layers": encoder.depth,
        "num_decoder_layers": decoder.depth,
        "num_heads": dims.heads,
        "n_positions": spec.context,
        "relative_attention_num_buckets": position.buckets if isinstance(position, T5Bias) else 32,
        "relative_attention_max_distance": position.max_distance if isinstance(position, T5Bias) else 128,
        "dropout_rate": layer.block.dropout,
        "layer_norm_epsilon": layer.norm.leaf.eps,
        "initializer_factor": getattr(spec.init, "factor", 1.0),
        "feed_forward_proj": name,
        "tie_word_embeddings": isinstance(head, TokenHead) and head.tied,
        "is_encoder_decoder": True,
    }


def weights(spec: ModelSpec) -> StateMap:
    """The table of tensors. A bias table stands in every layer that has its own, or in the first for all."""
    rules = [Rule("shared.weight", "embed.tokens.weight"), Rule("lm_head.weight", "head.weight")]
    for stack, branches in (("encoder", ("attention", "ffn")), ("decoder", ("attention", "cross", "ffn"))):
        bias = "layer.0.SelfAttention.relative_attention_bias.weight"
        rules.append(Rule(f"{stack}.block.0.{bias}", f"{stack}.positions.0.table"))
        rules.append(Rule(f"{stack}.block.{{i}}.{bias}", f"{stack}.blocks.{{i}}.attention.body.position.table"))
        rules.append(Rule(f"{stack}.final_layer_norm.weight", f"{stack}.final_norm.weight"))
        for place, branch in enumerate(branches):
            theirs, ours = f"{stack}.block.{{i}}.layer.{place}", f"{stack}.blocks.{{i}}.{branch}"
            rules.append(Rule(f"{theirs}.layer_norm.weight", f"{ours}.inner.weight"))
            if branch == "ffn":
                gated = len(spec.stack(stack).layers[0].ffn.inputs) > 1
                names = {"wi_0": "gate", "wi_1": "up", "wo": "down"} if gated else {"wi": "up", "wo": "down"}
                body = "DenseReluDense"
            else:
                names = {name: name for name in "qkvo"}
                body = "SelfAttention" if branch == "attention" else "EncDecAttention"
            rules += [
                Rule(f"{theirs}.{body}.{name}.weight", f"{ours}.body.{own}.weight") for name, own in names.items()
            ]
    return StateMap(
        rules=tuple(rules),
        copies=dict.fromkeys(
            ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"), "shared.weight"
        ),
        # A bias of the first cross-attention that the first release stored and no class reads.
        ignored=(r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",),
    )


def tiny(**more: Any) -> dict[str, Any]:
    """A small config whose heads are narrower than the width and whose stacks differ in depth."""
    return {
        "vocab_size": 61, "d_model": 32, "d_kv": 6, "d_ff": 40, "num_layers": 2, "num_decoder_layers": 3,
        "num_heads": 4, "relative_attention_num_buckets": 8, "relative_attention_max_distance": 14,
        "layer_norm_epsilon": 1e-3, "pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0,
    } | more  # fmt: skip
