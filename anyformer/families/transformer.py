"""The Transformer (Vaswani et al. 2017): an encoder-decoder with norms after each addition, sine positions and ReLU.

Its weights were never released in a format that is still read. The public class of the same design is Marian's, whose
checkpoints this family reads.
"""

from typing import Any, ClassVar

from anyformer.families.config_keys import SpecView, activation, each, flag, must, number, usual, whole
from anyformer.families.config_values import Values
from anyformer.families.family import Family, series
from anyformer.families.statemap import Rule, Sines, StateMap, block_rules
from anyformer.families.tensor_ops import Shaped
from anyformer.specs.embed_head import TokenEmbed, TokenHead
from anyformer.specs.model import ModelSpec

PROJECTIONS = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "out_proj"}
PARTS = {
    **{name: f"self_attn.{own}" for name, own in PROJECTIONS.items()},
    **{f"cross_{name}": f"encoder_attn.{own}" for name, own in PROJECTIONS.items()},
    "up": "fc1", "down": "fc2",
}  # fmt: skip
NORMS = {"attention": "self_attn_layer_norm", "cross": "encoder_attn_layer_norm", "ffn": "final_layer_norm"}
# They have the same names before a branch (mBART) and after its addition (BART).
PARTS |= {f"{branch}_{slot}": name for branch, name in NORMS.items() for slot in ("inner", "after")}
SINES = (r"(model\.)?(encoder|decoder)\.embed_positions\.weight",)
"""Tables that are computed."""


def sines(spec: ModelSpec, tables: str = SINES[0]) -> dict[str, Sines]:
    """What must stand in such tables, given by a pattern of their names: the public classes read them."""
    view = SpecView.of(spec, 0)
    frequency = view.layer.position.constants(view.dims).get("frequency", ())
    return {tables: Sines(tuple(frequency), getattr(view.layer.position, "offset", 0))}


STACK_KEYS = {
    **usual(encoder_layers=12, encoder_ffn_dim=4096, encoder_attention_heads=16, d_model=1024),
    **usual(dropout=0.1, attention_dropout=0.0, init_std=0.02),
    "decoder_layers": whole(12),
    "decoder_ffn_dim": whole(4096),
    "decoder_attention_heads": whole(16),
    "num_hidden_layers": whole(None),
    **each(number(0.0), "encoder_layerdrop", "decoder_layerdrop"),
    "activation_dropout": number(0.0, "ffn.dropout"),
    "is_encoder_decoder": must(True),
    "is_decoder": must(False),
}
"""Keys of two stacks with norms last, as Marian, FSMT and LED have them."""
SINE_KEYS = {
    **STACK_KEYS,
    **usual(max_position_embeddings=1024),
    # Choices of the class that these were cut from; they make them like this.
    "add_bias_logits": flag(False),
    **each(must(False), "add_final_layer_norm", "normalize_before", "normalize_embedding"),
    "static_position_embeddings": must(True),
    "extra_pos_embeddings": whole(0),
}
"""Those of Marian and FSMT."""
DECODER = {"layers": "depth", "attention_heads": "attention.heads", "ffn_dim": "ffn.width"}
"""What a decoder may have otherwise than the encoder: key, and field."""


BASE: dict[str, Any] = {
    "topology": "encoder-decoder",
    "attention": {"heads": 1, "bias": "qkvo"},
    "norm": {"kind": "layernorm", "eps": 1e-5, "placement": "post"},
    "ffn": {"kind": "relu", "bias": True},
}
TWO_DEPTHS: dict[str, Any] = {
    "encoder_layers": 2, "decoder_layers": 3, "decoder_attention_heads": 2, "decoder_ffn_dim": 24,
}  # fmt: skip
"""Sizes of a small config whose stacks differ."""


def check_depth(c: Values) -> None:
    """Refuse a number of layers that is not the encoder's, of which it is another name."""
    if c["num_hidden_layers"] not in (None, c["encoder_layers"]):
        c.refuse("num_hidden_layers", f"{c['num_hidden_layers']} is not encoder_layers={c['encoder_layers']}")


class TwoStacks(Family):
    """What those classes share beyond their keys."""

    exempt = "padding on the left of a source: the class counts positions by column, padding included"

    written_from = (0, 0)
    biased: ClassVar[bool] = False
    """Whether the class adds a bias to the logits, which it does not train and which files may leave out."""

    @classmethod
    def hf_from(cls, spec: ModelSpec) -> dict[str, Any]:
        if cls.biased and isinstance(spec.head, TokenHead) and not spec.head.bias:
            # The class has one, begins it with zeros, and leaves it so where files don't hold it.
            return super().hf_from(spec.vary({"head.bias": True}))
        return super().hf_from(spec)

    @classmethod
    def read(cls, c: Values) -> dict[str, Any]:
        decoder = {key: c[f"decoder_{key}"] for key in DECODER if c[f"decoder_{key}"] != c[f"encoder_{key}"]}
        # The classes have no key for an eps.
        own = {"norm.eps": 1e-5, "init.kind": "normal", "loss.label_smoothing": 0.0}
        return super().read(c) | own | {f"decoder.{DECODER[key]}": value for key, value in decoder.items()}

    @classmethod
    def write(cls, spec: ModelSpec) -> dict[str, Any]:
        view = SpecView.of(spec)
        decoder = {f"decoder_{key}": view.get(field) for key, field in DECODER.items()}
        return super().write(spec) | decoder | {"is_encoder_decoder": True}


def layer_rules(body: str = "model") -> list[Rule]:
    """The tensors of all blocks."""
    stacks = {stack: f"{body}.{stack}.layers.{{i}}" for stack in ("encoder", "decoder")}
    return [rule for ours, theirs in stacks.items() for rule in block_rules(theirs, PARTS, f"{ours}.blocks.{{i}}")]


class Transformer(TwoStacks, kind="transformer"):
    """The 2017 Transformer, and Marian's models."""

    base = BASE | {
        "vocab": 37000,
        "context": 256,
        "norm": {"kind": "layernorm", "eps": 1e-6, "placement": "post"},
        "position": {"kind": "sinusoidal", "layout": "halves"},
        "embed": {"kind": "tokens", "scale": "sqrt(width)"},
        "head": {"kind": "lm", "tied": True},
        "init": {"kind": "glorot"},
        "loss": {"label_smoothing": 0.1},
    }
    presets = series("transformer-{}", "Transformer {} (2017)",
        ("base", {"width": 512, "attention.heads": 8, "ffn.width": 2048}, 63_082_496, "the paper rounds to 65M",
         "biases on the attention's projections as in the public class: 36,864 of the count. No vocabulary fits both "
         "of the paper's figures: base would need about 40,700 tokens, big about 35,800"),
        ("big", {"width": 1024, "attention.heads": 16, "ffn.width": 4096}, 214_245_376, "the paper rounds to 213M",
         "biases on the attention's projections as in the public class: 73,728 of the count"),
        changes={"depth": 6}, also=("transformer-2017-{}",),
        evidence="sizes, eps and length from the authors' code and another library's copy of it; the vocabulary of about "
        "37000 is what the paper is generally known to say and was not read again",
    )  # fmt: skip
    architectures = ("MarianMTModel",)
    model_type = "marian"
    keys = {
        **SINE_KEYS,
        "scale_embedding": flag(False, "embed.scale", on="sqrt(width)", off=1.0),
        **usual(tie_word_embeddings=True, pad_token_id=58100, eos_token_id=0),
        "vocab_size": whole(58101),
        "decoder_vocab_size": whole(None),
        "activation_function": activation("gelu", more={"ffn.bias": True}),
        "share_encoder_decoder_embeddings": flag(True, "embed.shared"),
        "decoder_start_token_id": whole(58100, null=True),
    }
    small = TWO_DEPTHS | {
        "vocab_size": 61, "activation_function": "relu", "scale_embedding": True, "eos_token_id": 1,
        "decoder_start_token_id": 0, "forced_eos_token_id": 1,
    }  # fmt: skip

    @classmethod
    def read(cls, c: Values) -> dict[str, Any]:
        source, vocab = c["vocab_size"], c["decoder_vocab_size"] or c["vocab_size"]
        if c["share_encoder_decoder_embeddings"] and vocab != source:
            c.refuse("decoder_vocab_size", f"{vocab} is not vocab_size={source}, but both stacks share one table")
        tables = {"vocab": vocab, "source_vocab": None if source == vocab else source}
        return super().read(c) | tables | {"head.bias": True}

    @classmethod
    def write(cls, spec: ModelSpec) -> dict[str, Any]:
        return super().write(spec) | {"vocab_size": spec.input_vocab, "decoder_vocab_size": spec.vocab}

    @classmethod
    def weights(cls, spec: ModelSpec) -> StateMap:
        shared = isinstance(spec.embed, TokenEmbed) and spec.embed.shared
        tied = isinstance(spec.head, TokenHead) and spec.head.tied
        source, target = (f"model.{stack}.embed_tokens.weight" for stack in ("encoder", "decoder"))
        ends = {source: "embed.tokens.weight", target: "decoder_embed.tokens.weight"}
        copies = {"lm_head.weight": target}
        if shared:
            ends = {"model.shared.weight": "embed.tokens.weight"}
            copies = dict.fromkeys(("lm_head.weight", source, target), "model.shared.weight")
        ends |= {"lm_head.weight": "head.weight"}
        return StateMap(
            rules=(
                Rule("final_logits_bias", "head.bias", Shaped((1, spec.vocab))),
                *(Rule(*end) for end in ends.items()),
                *layer_rules(),
            ),
            copies=copies,
            # Without tie_word_embeddings, the public class reads a table for each use, whatever is to be shared.
            repeated=(source, target) if shared and not tied else (),
            # A class whose stacks share no table never reads this one.
            ignored=SINES if shared else (*SINES, r"(model\.)?shared\.weight"),
            computed=sines(spec),
            prefix="model.",
        )
