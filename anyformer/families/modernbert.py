"""ModernBERT (Warner et al. 2024): an encoder with RoPE, gated feed-forwards, and a window in two of three layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyformer.families.config_keys import (
    ACTIVATIONS,
    Key,
    Values,
    activation_of,
    flag,
    gated_ffn,
    ids,
    must,
    number,
    plain_ffn,
    text,
    texts,
    whole,
)
from anyformer.families.family import Family, Preset
from anyformer.families.rope_keys import ROPE_KEYS, read_ropes, write_ropes
from anyformer.families.statemap import Rule, StateMap
from anyformer.families.window_keys import FULL, LOCAL, arranged, checked, each_layer, positions_of, window_of
from anyformer.parts.norms.layernorm import LayerNorm
from anyformer.specs.embed_head import TokenHead
from anyformer.specs.model import ModelSpec

THETAS = {FULL: ("global_rope_theta", 160000.0), LOCAL: ("local_rope_theta", 10000.0)}
FIRST = {"norm": {"attention_placement": "none"}}
"""The first layer follows the norm of the embeddings, and has none of its own before attention."""

BASE: dict[str, Any] = {
    "attention": {"heads": 1},
    "norm": {"kind": "layernorm", "eps": 1e-5, "bias": False, "embedding": True},
    "position": {"kind": "rope"},
    "ffn": {"kind": "geglu", "form": "erf"},
    "head": {"kind": "lm", "tied": True, "bias": True, "transform": True, "transform_bias": False},
    # Published with all draws cut at two standard deviations.
    "init": {"kind": "gpt2", "std": 0.02},
}
KEYS: dict[str, Key] = ROPE_KEYS | {
    "vocab_size": whole(50368),
    "hidden_size": whole(768),
    "intermediate_size": whole(1152),
    "num_hidden_layers": whole(22),
    "num_attention_heads": whole(12),
    "hidden_activation": text("gelu"),
    "max_position_embeddings": whole(8192),
    "initializer_range": number(0.02),
    "initializer_cutoff_factor": number(2.0, null=True),
    "norm_eps": number(1e-5),
    "norm_bias": flag(False),
    "attention_bias": flag(False),
    "attention_dropout": number(0.0),
    "layer_types": texts(),
    "global_attn_every_n_layers": whole(3),
    "global_rope_theta": number(None),
    "local_rope_theta": number(None),
    # It would count for both kinds of layers; the tables in rope_parameters say more.
    "rope_scaling": must(None),
    "local_attention": whole(128),
    # What local_attention says, halved.
    "sliding_window": whole(None),
    "embedding_dropout": number(0.0),
    "mlp_bias": flag(False),
    "mlp_dropout": number(0.0),
    "decoder_bias": flag(True),
    "classifier_bias": flag(False),
    "classifier_activation": text("gelu"),
    "tie_word_embeddings": flag(True),
    "pad_token_id": ids(50283),
    "eos_token_id": ids(50282),
    "bos_token_id": ids(50281),
    "cls_token_id": ids(50281),
    # No logit depends on these.
    "classifier_pooling": text("cls"),
    "deterministic_flash_attn": flag(False),
    "sparse_prediction": flag(False),
    "sparse_pred_ignore_index": whole(-100),
    "reference_compile": flag(False, null=True),
    "repad_logits_with_grad": flag(False),
    "layer_norm_eps": number(1e-5),
    "position_embedding_type": must("absolute"),
}


def layers(names: list[str], window: str, thetas: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Layers by name as changes of a spec; a window and a RoPE go with the kind of layer."""
    own = {"local": {"attention.pattern": window} | dict(thetas[LOCAL]), "global": dict(thetas[FULL])}
    found = arranged(names, own)
    return found | {"layers": dict(found.get("layers", {})) | {"0": FIRST}}


def read(c: Values, window: str) -> dict[str, Any]:
    """The keys of both classes as changes of a spec."""
    every, types = c["global_attn_every_n_layers"], c["layer_types"]
    if every < 1:
        c.refuse("global_attn_every_n_layers", f"{every} is not at least 1")
    for key, _ in THETAS.values():
        if key in c.given and c[key] is None:
            c.problems.add(key, "None is not a finite number")
    types = types or each_layer(c, lambda i: LOCAL if i % max(every, 1) else FULL)
    ropes = read_ropes(c, context=c["max_position_embeddings"], thetas=THETAS)
    names = checked(c, types, c["local_attention"])
    own = gated_ffn(c, "hidden_activation") | {
        "vocab": c["vocab_size"],
        "width": c["hidden_size"],
        "depth": c["num_hidden_layers"],
        "context": c["max_position_embeddings"],
        "embed.dropout": float(c["embedding_dropout"]),
        "attention.heads": c["num_attention_heads"],
        "attention.bias": "qkvo" if c["attention_bias"] else "",
        "attention.dropout": float(c["attention_dropout"]),
        "ffn.width": c["intermediate_size"],
        "ffn.bias": c["mlp_bias"],
        "ffn.dropout": float(c["mlp_dropout"]),
        "norm.eps": float(c["norm_eps"]),
        "norm.bias": c["norm_bias"],
        "head.activation": plain_ffn(c, "classifier_activation"),
        "head.transform_bias": c["classifier_bias"],
        "head.bias": c["decoder_bias"],
        "head.tied": c["tie_word_embeddings"],
        "init.std": float(c["initializer_range"]),
    }
    return own | (layers(names, window, ropes) if ropes else {})


def write(spec: ModelSpec) -> dict[str, Any]:
    """Those keys of a spec."""
    stack = spec.stacks[-1]
    layer = stack.layers[-1]
    dims, norm, head = spec.dims(layer, stack), layer.norm.leaf, spec.head
    logits = head if isinstance(head, TokenHead) else TokenHead()
    half, types = window_of(spec)
    ropes = write_ropes(positions_of(spec), [key for key, _ in THETAS.values()])
    return (
        ropes
        | {
            "vocab_size": spec.vocab,
            "hidden_size": spec.width,
            "intermediate_size": dims.ffn_width,
            "num_hidden_layers": stack.depth,
            "num_attention_heads": dims.heads,
            "hidden_activation": activation_of(layer.ffn, gated=True),
            "max_position_embeddings": spec.context,
            "initializer_range": getattr(spec.init, "std", 0.02),
            "norm_eps": norm.eps,
            "norm_bias": isinstance(norm, LayerNorm) and norm.bias,
            "attention_bias": bool(layer.attention.bias),
            "attention_dropout": layer.attention.dropout,
            "layer_types": types,
            "local_attention": 128 if half is None else 2 * half,
            "rope_scaling": None,
            "embedding_dropout": spec.embed.dropout,
            "mlp_bias": layer.ffn.bias,
            "mlp_dropout": layer.ffn.dropout,
            "decoder_bias": logits.bias,
            "classifier_bias": logits.transform_bias,
            "classifier_activation": next((n for n, kind in ACTIVATIONS.items() if kind == logits.activation), "gelu"),
            "tie_word_embeddings": logits.tied,
        }
    )  # fmt: skip


def weights(spec: ModelSpec, head: str, *attention: Rule) -> StateMap:
    """The table of tensors of a class whose head is called `head`."""
    stack, table = spec.stacks[-1].name, "model.embeddings.tok_embeddings.weight"
    layer, block = "model.layers.{i}", f"{stack}.blocks.{{i}}"
    return StateMap(
        rules=(
            Rule(table, "embed.tokens.weight"),
            Rule("model.embeddings.norm.{p}", f"{stack}.embedding_norm.{{p}}"),
            Rule(f"{layer}.attn_norm.{{p}}", f"{block}.attention.inner.{{p}}"),
            *attention,
            Rule(f"{layer}.attn.Wo.{{p}}", f"{block}.attention.body.o.{{p}}"),
            Rule(f"{layer}.mlp_norm.{{p}}", f"{block}.ffn.inner.{{p}}"),
            Rule(f"{layer}.mlp.Wi.{{p}}", (f"{block}.ffn.body.gate.{{p}}", f"{block}.ffn.body.up.{{p}}")),
            Rule(f"{layer}.mlp.Wo.{{p}}", f"{block}.ffn.body.down.{{p}}"),
            Rule("model.final_norm.{p}", f"{stack}.final_norm.{{p}}"),
            Rule(f"{head}.dense.{{p}}", "head.dense.{p}"),
            Rule(f"{head}.norm.{{p}}", "head.norm.{p}"),
            Rule("decoder.weight", "head.weight"),
            Rule("decoder.bias", "head.bias"),
        ),
        copies={"decoder.weight": table},
        prefix="model.",
    )


def tiny(**more: Any) -> dict[str, Any]:
    """A small config in which both kinds of layers come after the first."""
    return {
        "vocab_size": 61, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 4, "num_attention_heads": 4,
        "max_position_embeddings": 64, "norm_eps": 1e-3, "local_attention": 8, "pad_token_id": 0, "eos_token_id": 2,
        "bos_token_id": 1, "cls_token_id": 1, "sep_token_id": 2,
    } | more  # fmt: skip


def _preset(
    size: str, width: int, depth: int, heads: int, ffn: int, params: int, published: str, evidence: str
) -> Preset:
    kinds = {FULL: {"position.theta": 160000.0}, LOCAL: {"position.theta": 10000.0}}
    names = ["local" if i % 3 else "global" for i in range(depth)]
    return Preset(
        name=f"modernbert-{size}", hub=(f"answerdotai/ModernBERT-{size}",), title=f"ModernBERT {size} (2024)",
        changes={
            "width": width, "depth": depth, "attention.heads": heads, "ffn.width": ffn, "vocab": 50368, "context": 8192,
            "ids.pad": 50283, "ids.eos": [50282], "ids.bos": 50281,
        } | layers(names, "symmetric_window(64)", kinds),
        params=params, published=published, evidence=evidence,
        note="with the masked-LM head; a window of 128 means 64 tokens on either side",
    )  # fmt: skip


class ModernBert(Family, kind="modernbert"):
    """ModernBERT with its masked-LM head."""

    base = {"topology": "encoder"} | BASE
    presets = (
        _preset("base", 768, 22, 12, 1152, 149_655_232,
                "149,014,272 in a copy of the body; its card rounds to 149M",
                "the defaults of the public class; the count of the body in a released copy"),
        _preset("large", 1024, 28, 16, 2624, 395_881_664,
                "its card is generally known to round to 395M, which was not read again",
                "two copies of the released config"),
    )  # fmt: skip
    architectures = ("ModernBertForMaskedLM",)
    model_type = "modernbert"
    keys = KEYS

    @classmethod
    def read(cls, c: Values) -> Mapping[str, Any]:
        return read(c, f"symmetric_window({c['local_attention'] // 2})")

    @classmethod
    def write(cls, spec: ModelSpec) -> Mapping[str, Any]:
        return write(spec)

    @classmethod
    def weights(cls, spec: ModelSpec) -> StateMap:
        names = tuple(f"encoder.blocks.{{i}}.attention.body.{name}.{{p}}" for name in "qkv")
        return weights(spec, "head", Rule("model.layers.{i}.attn.Wqkv.{p}", names))

    @classmethod
    def tiny(cls) -> dict[str, Any]:
        return tiny()
