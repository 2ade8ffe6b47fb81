"""The Transformer (Vaswani et al. 2017): an encoder-decoder with norms after each addition, sine positions and ReLU.

Its weights were never released in a format that is still read. The public class of the same design is Marian's, whose
checkpoints this family reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyformer.families.config_keys import Values, activation_of, flag, ids, must, number, plain_ffn, text, whole
from anyformer.families.family import Family, Preset
from anyformer.families.statemap import Row, Rule, Sines, StateMap
from anyformer.specs.embed_head import TokenEmbed, TokenHead
from anyformer.specs.model import ModelSpec

BODY = {"q_proj": "q", "k_proj": "k", "v_proj": "v", "out_proj": "o"}
SINES = (r"(model\.)?(encoder|decoder)\.embed_positions\.weight",)
"""Tables that are computed."""


def sines(spec: ModelSpec) -> dict[str, Sines]:
    """What must stand in those tables: the public classes read them."""
    stack = spec.stacks[0]
    layer = stack.layers[0]
    frequency = layer.position.constants(spec.dims(layer, stack)).get("frequency", ())
    return {SINES[0]: Sines(tuple(frequency), getattr(layer.position, "offset", 0))}


STACK_KEYS = {
    "max_position_embeddings": whole(1024),
    "encoder_layers": whole(12),
    "encoder_ffn_dim": whole(4096),
    "encoder_attention_heads": whole(16),
    "decoder_layers": whole(12),
    "decoder_ffn_dim": whole(4096),
    "decoder_attention_heads": whole(16),
    "num_hidden_layers": whole(None),
    "encoder_layerdrop": number(0.0),
    "decoder_layerdrop": number(0.0),
    "d_model": whole(1024),
    "dropout": number(0.1),
    "attention_dropout": number(0.0),
    "activation_dropout": number(0.0),
    "init_std": number(0.02),
    "is_encoder_decoder": must(True),
    "is_decoder": must(False),
    # Choices of the class that these were cut from; they make them like this.
    "add_bias_logits": flag(False),
    "add_final_layer_norm": must(False),
    "normalize_before": must(False),
    "normalize_embedding": must(False),
    "static_position_embeddings": must(True),
    "extra_pos_embeddings": whole(0),
}
"""Keys of two stacks with norms last, as Marian and FSMT have them."""


def read_stacks(c: Values) -> dict[str, Any]:
    """Those keys as changes of a spec."""
    found = {
        "width": c["d_model"],
        "depth": c["encoder_layers"],
        "context": c["max_position_embeddings"],
        "embed.scale": "sqrt(width)" if c["scale_embedding"] else 1.0,
        "embed.dropout": float(c["dropout"]),
        "attention.heads": c["encoder_attention_heads"],
        "attention.dropout": float(c["attention_dropout"]),
        "block.dropout": float(c["dropout"]),
        "ffn.kind": plain_ffn(c, "activation_function"),
        "ffn.bias": True,
        "ffn.width": c["encoder_ffn_dim"],
        "ffn.dropout": float(c["activation_dropout"]),
        # The classes have no key for it.
        "norm.eps": 1e-5,
        "head.tied": c["tie_word_embeddings"],
        "init": {"kind": "normal", "std": float(c["init_std"])},
        "loss.label_smoothing": 0.0,
    }
    for name, key in (("depth", "layers"), ("attention.heads", "attention_heads"), ("ffn.width", "ffn_dim")):
        if c[f"decoder_{key}"] != c[f"encoder_{key}"]:
            found[f"decoder.{name}"] = c[f"decoder_{key}"]
    return found


def write_stacks(spec: ModelSpec) -> dict[str, Any]:
    """Those keys of a spec."""
    sizes: dict[str, Any] = {}
    for stack in spec.stacks:
        layer = stack.layers[0]
        sizes |= {
            f"{stack.name}_layers": stack.depth,
            f"{stack.name}_attention_heads": layer.attention.heads,
            f"{stack.name}_ffn_dim": spec.dims(layer, stack).ffn_width,
        }
    layer, embed = spec.stacks[0].layers[0], spec.embed
    return sizes | {
        "max_position_embeddings": spec.context,
        "d_model": spec.width,
        "activation_function": activation_of(layer.ffn, gated=False),
        "dropout": layer.block.dropout,
        "attention_dropout": layer.attention.dropout,
        "activation_dropout": layer.ffn.dropout,
        "init_std": getattr(spec.init, "std", 0.02),
        "scale_embedding": isinstance(embed, TokenEmbed) and embed.scale not in (1, 1.0),
        "tie_word_embeddings": isinstance(spec.head, TokenHead) and spec.head.tied,
        "is_encoder_decoder": True,
    }


def layer_rules() -> list[Rule]:
    """The tensors of all blocks."""
    rules: list[Rule] = []
    for stack, bodies in (
        ("encoder", {"self_attn": "attention"}),
        ("decoder", {"self_attn": "attention", "encoder_attn": "cross"}),
    ):
        theirs, ours = f"model.{stack}.layers.{{i}}", f"{stack}.blocks.{{i}}"
        parts = {"fc1": "ffn.body.up", "fc2": "ffn.body.down", "final_layer_norm": "ffn.after"}
        for body, branch in bodies.items():
            parts |= {f"{body}.{name}": f"{branch}.body.{own}" for name, own in BODY.items()}
            parts[f"{body}_layer_norm"] = f"{branch}.after"
        rules += [Rule(f"{theirs}.{name}.{{p}}", f"{ours}.{own}.{{p}}") for name, own in parts.items()]
    return rules


def _preset(size: str, width: int, heads: int, ffn: int, params: int, published: str, note: str) -> Preset:
    return Preset(
        name=f"transformer-{size}", also=(f"transformer-2017-{size}",), title=f"Transformer {size} (2017)",
        changes={"width": width, "depth": 6, "attention.heads": heads, "ffn.width": ffn},
        params=params, published=published,
        evidence="sizes, eps and length from the authors' code and another library's copy of it; the vocabulary of about "
        "37000 is what the paper is generally known to say and was not read again",
        note=note,
    )  # fmt: skip


class Transformer(Family, kind="transformer"):
    """The 2017 Transformer, and Marian's models."""

    base = {
        "topology": "encoder-decoder",
        "vocab": 37000,
        "context": 256,
        "attention": {"heads": 1, "bias": "qkvo"},
        "norm": {"kind": "layernorm", "eps": 1e-6, "placement": "post"},
        "position": {"kind": "sinusoidal", "layout": "halves"},
        "ffn": {"kind": "relu", "bias": True},
        "embed": {"kind": "tokens", "scale": "sqrt(width)"},
        "head": {"kind": "lm", "tied": True},
        "init": {"kind": "glorot"},
        "loss": {"label_smoothing": 0.1},
    }
    presets = (
        _preset("base", 512, 8, 2048, 63_082_496, "the paper rounds to 65M",
                "biases on the attention's projections as in the public class: 36,864 of the count. No vocabulary "
                "fits both of the paper's figures: base would need about 40,700 tokens, big about 35,800"),
        _preset("big", 1024, 16, 4096, 214_245_376, "the paper rounds to 213M",
                "biases on the attention's projections as in the public class: 73,728 of the count"),
    )  # fmt: skip
    architectures = ("MarianMTModel",)
    model_type = "marian"
    keys = STACK_KEYS | {
        "vocab_size": whole(58101),
        "decoder_vocab_size": whole(None),
        "activation_function": text("gelu"),
        "scale_embedding": flag(False),
        "share_encoder_decoder_embeddings": flag(True),
        "tie_word_embeddings": flag(True),
        "decoder_start_token_id": whole(58100, null=True),
        "pad_token_id": ids(58100),
        "eos_token_id": ids(0),
    }

    @classmethod
    def read(cls, c: Values) -> Mapping[str, Any]:
        source, vocab = c["vocab_size"], c["decoder_vocab_size"] or c["vocab_size"]
        if c["share_encoder_decoder_embeddings"] and vocab != source:
            c.refuse("decoder_vocab_size", f"{vocab} is not vocab_size={source}, but both stacks share one table")
        return read_stacks(c) | {
            "vocab": vocab,
            "source_vocab": None if source == vocab else source,
            "embed.shared": c["share_encoder_decoder_embeddings"],
            "head.bias": True,
        }

    @classmethod
    def write(cls, spec: ModelSpec) -> Mapping[str, Any]:
        return write_stacks(spec) | {
            "vocab_size": spec.input_vocab,
            "decoder_vocab_size": spec.vocab,
            "share_encoder_decoder_embeddings": isinstance(spec.embed, TokenEmbed) and spec.embed.shared,
        }

    @classmethod
    def weights(cls, spec: ModelSpec) -> StateMap:
        shared = isinstance(spec.embed, TokenEmbed) and spec.embed.shared
        rules = [Rule("final_logits_bias", "head.bias", Row()), Rule("lm_head.weight", "head.weight")]
        repeated: tuple[str, ...] = ()
        copies = {"lm_head.weight": "model.shared.weight" if shared else "model.decoder.embed_tokens.weight"}
        if shared:
            rules.append(Rule("model.shared.weight", "embed.tokens.weight"))
            tables = [f"model.{stack}.embed_tokens.weight" for stack in ("encoder", "decoder")]
            copies |= dict.fromkeys(tables, "model.shared.weight")
            # Without tie_word_embeddings, the public class reads a table for each use, whatever is to be shared.
            repeated = () if isinstance(spec.head, TokenHead) and spec.head.tied else tuple(tables)
        else:
            rules.append(Rule("model.encoder.embed_tokens.weight", "embed.tokens.weight"))
            rules.append(Rule("model.decoder.embed_tokens.weight", "decoder_embed.tokens.weight"))
        return StateMap(
            rules=(*rules, *layer_rules()),
            copies=copies,
            repeated=repeated,
            # A class whose stacks share no table never reads this one.
            ignored=SINES if shared else (*SINES, r"(model\.)?shared\.weight"),
            computed=sines(spec),
            prefix="model.",
        )

    @classmethod
    def tiny(cls) -> dict[str, Any]:
        return {
            "vocab_size": 61, "d_model": 32, "max_position_embeddings": 64, "encoder_layers": 2, "decoder_layers": 3,
            "encoder_attention_heads": 4, "decoder_attention_heads": 2, "encoder_ffn_dim": 40, "decoder_ffn_dim": 24,
            "activation_function": "relu", "scale_embedding": True, "pad_token_id": 0, "eos_token_id": 1,
            "decoder_start_token_id": 0, "forced_eos_token_id": 1,
        }  # fmt: skip
