"""Falcon (Almazrouei et al. 2023): attention and feed-forward in parallel, few key heads, fused projections."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyformer.families.config_keys import Values, activation_of, flag, ids, must, number, plain_ffn, text, whole
from anyformer.families.family import Family, Preset
from anyformer.families.rope_keys import ROPE_KEYS, read_rope, write_rope
from anyformer.families.statemap import PerHead, Rule, StateMap
from anyformer.parts.positions.alibi import Alibi
from anyformer.specs.embed_head import TokenHead
from anyformer.specs.model import ModelSpec

LAYER, BLOCK = "transformer.h.{i}", "decoder.blocks.{i}"

NORMS = {
    "serial": {"input_layernorm": "attention.inner", "post_attention_layernorm": "ffn.inner"},
    "parallel": {"input_layernorm": "attention.inner"},
    "parallel2": {"ln_attn": "attention.inner", "ln_mlp": "ffn.inner"},
}
"""Wiring -> their names of a block's norms."""


def _sizes(width: int, depth: int, heads: int, kv_heads: int) -> dict[str, Any]:
    return {
        "width": width, "depth": depth, "attention.heads": heads, "attention.kv_heads": kv_heads, "vocab": 65024,
        "context": 2048, "ids.bos": 11, "ids.eos": [11], "loss.z": 1e-4,
    }  # fmt: skip


def _either(c: Values, old: str, new: str) -> Any:
    """A size under its name of today, or that of the first releases."""
    return c[new] if c[old] is None else c[old]


def _is_new(c: Values) -> bool:
    """Groups of heads and two norms; of the first releases only those that have them speak of `n_head_kv`."""
    return c["new_decoder_architecture"] or (c["n_head_kv"] is not None and "new_decoder_architecture" not in c.given)


class Falcon(Family, kind="falcon"):
    """Falcon 1 and 2, and the RefinedWeb models with ALiBi.

    The public class rounds ALiBi's penalties to bf16 in every precision, which is noise that no spec says.
    """

    base = {
        "attention": {"heads": 1},
        "norm": {"kind": "layernorm", "eps": 1e-5},
        "position": {"kind": "rope", "theta": 1e4},
        "ffn": {"kind": "gelu"},
        "block": {"wiring": "parallel"},
        "head": {"kind": "lm", "tied": True},
        "init": {"kind": "normal", "std": 0.02},
    }
    presets = (
        Preset(
            name="falcon-7b", title="Falcon 7B (2023)",
            changes=_sizes(4544, 32, 71, 1),
            params=6_921_720_704,
            published="7,217,189,760 in released files, which hold the table a second time as the head",
            evidence="configs of two other projects; that the head is tied is the public class's default",
            note="71 heads, one key; both branches read one norm; the z-loss of all sizes is general knowledge",
        ),
        Preset(
            name="falcon-40b", title="Falcon 40B (2023)",
            changes=_sizes(8192, 60, 128, 8) | {"block.wiring": "parallel2"},
            params=41_303_293_952,
            published="41,835,970,560 in released files, which hold the table a second time as the head",
            evidence="the config of one other project and the public class",
            note="each branch has a norm of its own",
        ),
        Preset(
            name="falcon-180b", title="Falcon 180B (2023)",
            changes=_sizes(14848, 80, 232, 8) | {"block.wiring": "parallel2"},
            params=178_557_088_768,
            published="179,522,565,120 in released files, which hold the table a second time as the head",
            evidence="the config of one other project and the public class",
        ),
        Preset(
            name="falcon2-11b", also=("falcon-11b", "falcon-2-11b"), title="Falcon 2 11B (2024)",
            changes=_sizes(4096, 60, 32, 8) | {"context": 8192, "position.theta": 500042.0, "head.tied": False},
            params=11_102_822_400,
            published="only rounded, to 11.1B, as generally known",
            evidence="its config.json as quoted in a public issue; the depth follows from the count and general knowledge",
            note="that quotation types 71 layers, and only 60 give 11.1B; grouped keys, but one norm for both branches",
        ),
    )  # fmt: skip
    # As code beside the weights the class was called otherwise, and so were some of its keys.
    architectures = ("FalconForCausalLM", "RWForCausalLM")
    model_type = "falcon"
    also_types = ("RefinedWeb", "RefinedWebModel")
    keys = ROPE_KEYS | {
        "vocab_size": whole(65024),
        "hidden_size": whole(4544),
        "n_embed": whole(None),
        "num_hidden_layers": whole(32),
        "num_attention_heads": whole(71),
        "num_ln_in_parallel_attn": whole(None),
        "layer_norm_epsilon": number(1e-5),
        "initializer_range": number(0.02),
        "hidden_dropout": number(0.0),
        "attention_dropout": number(0.0),
        "num_kv_heads": whole(None),
        "n_layer": whole(None),
        "n_head": whole(None),
        "n_head_kv": whole(None),
        "alibi": flag(False),
        "new_decoder_architecture": flag(False),
        "multi_query": flag(True),
        "parallel_attn": flag(True),
        "bias": flag(False),
        "max_position_embeddings": whole(2048),
        "ffn_hidden_size": whole(None),
        # What ffn_hidden_size says in other words; the public class does not read it.
        "ff_factor": whole(None),
        "activation": text("gelu"),
        "apply_residual_connection_post_layernorm": must(False),
        "tie_word_embeddings": flag(True),
        "bos_token_id": ids(11),
        "eos_token_id": ids(11),
    }

    @classmethod
    def read(cls, c: Values) -> Mapping[str, Any]:
        width = c["hidden_size"] if c["n_embed"] is None else c["n_embed"]
        for old, new in (
            ("n_layer", "num_hidden_layers"),
            ("n_head", "num_attention_heads"),
            ("n_head_kv", "num_kv_heads"),
        ):
            if c[old] is not None and new in c.given:
                c.refuse(old, f"stands beside {new}; keep one of them")
        heads, kv_heads, wiring = _either(c, "n_head", "num_attention_heads"), cls._kv_heads(c), cls._wiring(c)
        place = read_rope(c, context=c["max_position_embeddings"])
        if c["alibi"]:
            place = {"position.kind": "alibi", "position.before_scale": True}
        return place | {
            "vocab": c["vocab_size"],
            "width": width,
            "depth": _either(c, "n_layer", "num_hidden_layers"),
            "context": c["max_position_embeddings"],
            "attention.heads": heads,
            "attention.kv_heads": None if kv_heads == heads else kv_heads,
            "attention.bias": "qkvo" if c["bias"] else "",
            "attention.dropout": float(c["attention_dropout"]),
            "block.wiring": wiring,
            "block.dropout": float(c["hidden_dropout"]),
            "ffn.kind": plain_ffn(c, "activation"),
            "ffn.bias": c["bias"],
            "ffn.width": None if c["ffn_hidden_size"] == 4 * width else c["ffn_hidden_size"],
            "norm.eps": float(c["layer_norm_epsilon"]),
            "head.tied": c["tie_word_embeddings"],
            "init.std": float(c["initializer_range"]),
        }

    @staticmethod
    def _kv_heads(c: Values) -> int | None:
        if _is_new(c):
            return _either(c, "n_head_kv", "num_kv_heads")
        if c["multi_query"]:
            return 1
        if c["num_kv_heads"] not in (None, c["num_attention_heads"]):
            c.refuse("num_kv_heads", "groups of heads go with new_decoder_architecture only")
        return None

    @staticmethod
    def _wiring(c: Values) -> str:
        norms = c["num_ln_in_parallel_attn"]
        if _is_new(c):
            if not c["parallel_attn"]:
                c.refuse("parallel_attn", "false does not go with new_decoder_architecture")
            if norms not in (None, 1, 2):
                c.refuse("num_ln_in_parallel_attn", f"{norms} norms are more than a block has branches", "1 or 2")
            return "parallel" if norms == 1 else "parallel2"
        if norms == 2 and c["parallel_attn"]:
            c.refuse("num_ln_in_parallel_attn", "2 goes with new_decoder_architecture only")
        return "parallel" if c["parallel_attn"] else "serial"

    @classmethod
    def write(cls, spec: ModelSpec) -> Mapping[str, Any]:
        stack = spec.stacks[-1]
        layer = stack.layers[0]
        dims, wiring = spec.dims(layer, stack), layer.block.wiring
        # Blocks in series have one key or as many as heads; reading back names what that leaves out.
        new = wiring == "parallel2" or (wiring == "parallel" and 1 < dims.kv_heads < dims.heads)
        return write_rope(layer.position) | {
            "vocab_size": spec.vocab,
            "hidden_size": spec.width,
            "num_hidden_layers": stack.depth,
            "num_attention_heads": dims.heads,
            "num_kv_heads": dims.kv_heads if new else None,
            "num_ln_in_parallel_attn": {"parallel": 1, "parallel2": 2}.get(wiring),
            "new_decoder_architecture": new,
            "multi_query": dims.kv_heads == 1,
            "parallel_attn": wiring != "serial",
            "alibi": isinstance(layer.position, Alibi),
            "layer_norm_epsilon": layer.norm.leaf.eps,
            "initializer_range": getattr(spec.init, "std", 0.02),
            "hidden_dropout": layer.block.dropout,
            "attention_dropout": layer.attention.dropout,
            "bias": bool(layer.attention.bias),
            "max_position_embeddings": spec.context,
            "ffn_hidden_size": dims.ffn_width,
            "activation": activation_of(layer.ffn, gated=False),
            "tie_word_embeddings": isinstance(spec.head, TokenHead) and spec.head.tied,
        }

    @classmethod
    def weights(cls, spec: ModelSpec) -> StateMap:
        stack = spec.stacks[-1]
        layer = stack.layers[0]
        parts = {
            "self_attention.dense": "attention.body.o",
            "mlp.dense_h_to_4h": "ffn.body.up",
            "mlp.dense_4h_to_h": "ffn.body.down",
        } | NORMS[layer.block.wiring]
        return StateMap(
            rules=(
                Rule("transformer.word_embeddings.weight", "embed.tokens.weight"),
                Rule(
                    f"{LAYER}.self_attention.query_key_value.{{p}}",
                    tuple(f"{BLOCK}.attention.body.{name}.{{p}}" for name in "qkv"),
                    PerHead(spec.dims(layer, stack).kv_heads),
                ),
                *(Rule(f"{LAYER}.{theirs}.{{p}}", f"{BLOCK}.{ours}.{{p}}") for theirs, ours in parts.items()),
                Rule("transformer.ln_f.{p}", "decoder.final_norm.{p}"),
                Rule("lm_head.weight", "head.weight"),
            ),
            copies={"lm_head.weight": "transformer.word_embeddings.weight"},
            ignored=(r"(transformer\.)?h\.\d+\.self_attention\.(rotary_emb|maybe_rotary)\.inv_freq",),
            prefix="transformer.",
        )

    @classmethod
    def tiny(cls) -> dict[str, Any]:
        return {
            "vocab_size": 61, "hidden_size": 36, "num_hidden_layers": 3, "num_attention_heads": 6, "num_kv_heads": 2,
            "new_decoder_architecture": True, "max_position_embeddings": 64, "rope_theta": 500.0,
            "ffn_hidden_size": 40, "layer_norm_epsilon": 1e-3, "bos_token_id": 1, "eos_token_id": 2,
        }  # fmt: skip
