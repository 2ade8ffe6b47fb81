"""GPT-Neo (Black et al. 2021): GPT-2 with a window in every second layer, unscaled scores and fewer biases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyformer.families.config_keys import Key, Values, activation_of, flag, ids, number, plain_ffn, text, texts, whole
from anyformer.families.family import Family
from anyformer.families.statemap import Rule, StateMap
from anyformer.families.window_keys import LOCAL, arranged, window_of
from anyformer.specs.embed_head import TokenHead
from anyformer.specs.model import ModelSpec
from anyformer.specs.stacks import DEEPEST

LAYER, BLOCK = "transformer.h.{i}", "decoder.blocks.{i}"


def _is_types(value: Any) -> bool:
    pairs = value if isinstance(value, list) else [None]
    return all(
        isinstance(pair, list)
        and len(pair) == 2
        and isinstance(pair[0], list)
        and isinstance(pair[1], int)
        and not isinstance(pair[1], bool)
        and all(kind in ("global", "local") for kind in pair[0])
        for pair in pairs
    )


class GPTNeo(Family, kind="gpt_neo"):
    """GPT-Neo. Its sizes were not confirmed, so it has no preset; its checkpoints are read."""

    base = {
        "attention": {"heads": 1, "bias": "o", "scale": 1.0},
        "norm": {"kind": "layernorm", "eps": 1e-5},
        "position": {"kind": "learned"},
        "ffn": {"kind": "gelu_tanh", "bias": True},
        "head": {"kind": "lm", "tied": True},
        "init": {"kind": "normal", "std": 0.02},
    }
    architectures = ("GPTNeoForCausalLM",)
    model_type = "gpt_neo"
    keys = {
        "vocab_size": whole(50257),
        "max_position_embeddings": whole(2048),
        "hidden_size": whole(2048),
        "num_layers": whole(24),
        "attention_types": Key(
            what="a list of pairs: kinds of layers ('global' or 'local') and how often they are repeated",
            fits=_is_types,
            default=None,
            null=True,
        ),
        "attention_layers": texts(),
        "num_heads": whole(16),
        "intermediate_size": whole(None),
        "window_size": whole(256),
        "activation_function": text("gelu_new"),
        "resid_dropout": number(0.0),
        "embed_dropout": number(0.0),
        "attention_dropout": number(0.0),
        "layer_norm_epsilon": number(1e-5),
        "initializer_range": number(0.02),
        "tie_word_embeddings": flag(True),
        "bos_token_id": ids(50256),
        "eos_token_id": ids(50256),
    }

    @classmethod
    def read(cls, c: Values) -> Mapping[str, Any]:
        given = c["attention_types"]
        pairs = [[["global", "local"], 12]] if given is None else given
        names = [kind for kinds, count in pairs for kind in kinds * min(count, DEEPEST)]
        if len(names) != c["num_layers"]:
            c.problems.add("attention_types", f"names {len(names)} layers, but num_layers is {c['num_layers']}")
        if c["attention_layers"] not in (None, names):
            c.refuse("attention_layers", "says something else than attention_types; keep one of them")
        own = {
            "vocab": c["vocab_size"],
            "width": c["hidden_size"],
            "depth": c["num_layers"],
            "context": c["max_position_embeddings"],
            "attention.heads": c["num_heads"],
            "attention.dropout": float(c["attention_dropout"]),
            "block.dropout": float(c["resid_dropout"]),
            "embed.dropout": float(c["embed_dropout"]),
            "ffn.kind": plain_ffn(c, "activation_function"),
            "ffn.bias": True,
            "ffn.width": None if c["intermediate_size"] == 4 * c["hidden_size"] else c["intermediate_size"],
            "norm.eps": float(c["layer_norm_epsilon"]),
            "head.tied": c["tie_word_embeddings"],
            "init.std": float(c["initializer_range"]),
        }
        return own | arranged(names, {"local": {"attention.pattern": f"window({c['window_size']})"}, "global": {}})

    @classmethod
    def write(cls, spec: ModelSpec) -> Mapping[str, Any]:
        stack = spec.stacks[-1]
        layer = stack.layers[0]
        dims = spec.dims(layer, stack)
        window, types = window_of(spec)
        return {
            "vocab_size": spec.vocab,
            "max_position_embeddings": spec.context,
            "hidden_size": spec.width,
            "num_layers": stack.depth,
            "attention_types": [[["local" if kind == LOCAL else "global" for kind in types], 1]],
            "num_heads": dims.heads,
            "intermediate_size": dims.ffn_width,
            "window_size": 256 if window is None else window,
            "activation_function": activation_of(layer.ffn, gated=False, prefer="gelu_new"),
            "resid_dropout": layer.block.dropout,
            "embed_dropout": spec.embed.dropout,
            "attention_dropout": layer.attention.dropout,
            "layer_norm_epsilon": layer.norm.leaf.eps,
            "initializer_range": getattr(spec.init, "std", 0.02),
            "tie_word_embeddings": isinstance(spec.head, TokenHead) and spec.head.tied,
        }

    @classmethod
    def weights(cls, spec: ModelSpec) -> StateMap:
        parts = {
            "ln_1": "attention.inner",
            "attn.attention.q_proj": "attention.body.q",
            "attn.attention.k_proj": "attention.body.k",
            "attn.attention.v_proj": "attention.body.v",
            "attn.attention.out_proj": "attention.body.o",
            "ln_2": "ffn.inner",
            "mlp.c_fc": "ffn.body.up",
            "mlp.c_proj": "ffn.body.down",
        }
        return StateMap(
            rules=(
                Rule("transformer.wte.weight", "embed.tokens.weight"),
                Rule("transformer.wpe.weight", "decoder.positions.0.table"),
                *(Rule(f"{LAYER}.{theirs}.{{p}}", f"{BLOCK}.{ours}.{{p}}") for theirs, ours in parts.items()),
                Rule("transformer.ln_f.{p}", "decoder.final_norm.{p}"),
                Rule("lm_head.weight", "head.weight"),
            ),
            copies={"lm_head.weight": "transformer.wte.weight"},
            ignored=(r"(transformer\.)?h\.\d+\.attn\.attention\.(bias|masked_bias)",),
            prefix="transformer.",
        )

    @classmethod
    def tiny(cls) -> dict[str, Any]:
        return {
            "vocab_size": 61, "max_position_embeddings": 64, "hidden_size": 32, "num_layers": 4, "num_heads": 4,
            "attention_types": [[["global", "local"], 2]], "window_size": 5, "intermediate_size": 40,
            "layer_norm_epsilon": 1e-3, "bos_token_id": 1, "eos_token_id": 2,
        }  # fmt: skip
