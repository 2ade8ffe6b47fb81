"""What BART and its relatives share: the names of their keys and of their tensors."""

from typing import Any, ClassVar

from anyformer.families import tasks
from anyformer.families.config_keys import Key, activation, each, flag, must, text, usual, whole
from anyformer.families.config_values import Values
from anyformer.families.statemap import Rule, StateMap
from anyformer.families.tensor_ops import Shaped
from anyformer.families.transformer import BASE, STACK_KEYS, TWO_DEPTHS, TwoStacks, check_depth, layer_rules
from anyformer.specs.embed_head import TokenHead
from anyformer.specs.model import ModelSpec

BART: dict[str, Any] = BASE | {
    "norm": {"kind": "layernorm", "eps": 1e-5, "placement": "post", "embedding": True},
    "position": {"kind": "learned", "offset": 2},
    "ffn": {"kind": "gelu", "bias": True},
    "head": {"kind": "lm", "tied": True},
}
"""Norms last and one on the embeddings, and learned positions from row 2."""
PRE: dict[str, Any] = BART | {"norm": {"kind": "layernorm", "eps": 1e-5}}
"""Norms first, and one at the end of each stack."""

ZEROS = (
    "the class adds a bias to the logits that it does not train and that files may leave out; it is no part of the count, and "
    "a checkpoint that is loaded has it"
)


def keys(
    vocab: int, width: int, depth: tuple[int, int], heads: int, ffn: int, context: int, *, act: str = "gelu",
    scaled: bool = False, attention_dropout: float = 0.0, ids: tuple[int, int | None, int] = (1, 0, 2), start: int | None = None,
) -> dict[str, Key]:  # fmt: skip
    """The keys that all of them have, with the defaults of one public class; `depth` is that of each stack.

    `ids` are those of padding, bos and eos; `start` is that of the first token of an answer.
    """
    return {
        **STACK_KEYS,
        **usual(vocab_size=vocab, d_model=width, encoder_layers=depth[0], encoder_attention_heads=heads),
        **usual(encoder_ffn_dim=ffn, max_position_embeddings=context, attention_dropout=attention_dropout),
        **usual(pad_token_id=ids[0], bos_token_id=ids[1], eos_token_id=ids[2]),
        "decoder_layers": whole(depth[1]),
        "decoder_attention_heads": whole(heads),
        "decoder_ffn_dim": whole(ffn),
        "activation_function": activation(act, more={"ffn.bias": True}),
        "scale_embedding": flag(scaled, "embed.scale", on="sqrt(width)", off=1.0),
        "decoder_start_token_id": whole(start, null=True),
        # The class has one name for three tables, or three tables of which one is never read.
        "tie_word_embeddings": must(True),
        # Choices of an older class that these were cut from, as their released files have them; no class reads them.
        **each(flag(False), "add_bias_logits", "add_final_layer_norm", "normalize_before", "normalize_embedding"),
        **each(flag(False), "static_position_embeddings", "do_blenderbot_90_layernorm", "extra_layer_norm"),
        **each(flag(False), "force_bos_token_to_be_generated"),
        "layernorm_variant": text(None),
        "extra_pos_embeddings": whole(0),
    }


class BartLike(TwoStacks):
    """BART's design and names, of which a family says what it has otherwise."""

    base = BART
    tasks = tasks.BART
    biased = True
    final: ClassVar[str] = "layer_norm"
    """What the norm at the end of a stack is called."""
    small = TWO_DEPTHS | {
        "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2, "scale_embedding": True,
        "forced_eos_token_id": 2,
    }  # fmt: skip

    @classmethod
    def read(cls, c: Values) -> dict[str, Any]:
        check_depth(c)
        return super().read(c) | {"head.tied": True, "head.bias": cls.biased}

    @classmethod
    def write(cls, spec: ModelSpec) -> dict[str, Any]:
        return super().write(spec) | {"tie_word_embeddings": isinstance(spec.head, TokenHead) and spec.head.tied}

    @classmethod
    def weights(cls, spec: ModelSpec) -> StateMap:
        ends = [
            Rule("model.shared.weight", "embed.tokens.weight"),
            Rule("final_logits_bias", "head.bias", Shaped((1, spec.vocab))),
        ]
        for stack in ("encoder", "decoder"):
            ends.append(Rule(f"model.{stack}.embed_positions.weight", f"{stack}.positions.0.table"))
            ends.append(Rule(f"model.{stack}.layernorm_embedding.{{p}}", f"{stack}.embedding_norm.{{p}}"))
            ends.append(Rule(f"model.{stack}.{cls.final}.{{p}}", f"{stack}.final_norm.{{p}}"))
        tables = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight")
        return StateMap(
            rules=(*ends, *layer_rules()),
            copies=dict.fromkeys(tables, "model.shared.weight"),
            # A number that fairseq's files have.
            ignored=(r"(model\.)?(encoder|decoder)\.version",),
            zeros=("final_logits_bias",),
            prefix="model.",
        )
