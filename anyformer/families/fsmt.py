"""FSMT (Ng et al. 2019): the 2017 Transformer of fairseq, whose sines end at 1/theta and begin after the padding's id."""

from typing import Any

from anyformer.families.config_keys import TABLE, TEXTS, activation, flag, usual, whole
from anyformer.families.config_values import Values
from anyformer.families.family import series
from anyformer.families.statemap import Rule, StateMap
from anyformer.families.transformer import BASE, SINE_KEYS, SINES, TWO_DEPTHS, TwoStacks, layer_rules, sines
from anyformer.specs.embed_head import TokenEmbed
from anyformer.specs.model import ModelSpec


def read_offset(c: Values, vocab: int) -> int:
    """The first position: fairseq gives padding its own id as a position, and counts on from there."""
    pad = c["pad_token_id"]
    if not 0 <= pad < vocab:
        c.refuse("pad_token_id", f"{pad} is not a token, and positions are counted from it")
    return pad + 1


APART = (
    "the public class holds the decoder's table and the output matrix apart, and is counted as it is; in fairseq they were "
    "one, with {} parameters fewer"
)
SEEN = (
    "sizes: the released checkpoint's bytes, which are those of its weights and of two moments; vocabularies: the source "
    "of ru-en as its port printed it, the other one from the number of bytes"
)
JOINED = {"vocab": 42024, "embed.shared": True, "head.tied": True}
SHARED = (
    "sizes: as the same paper's English and Russian; one dictionary and one table, as --share-all-embeddings has it, of the "
    "size that the public config has by default; not checked against the released file"
)


class FSMT(TwoStacks, kind="fsmt"):
    """FSMT. A second class of the 2017 design; the 2017 presets are those of the family `transformer`.

    Its source may have a vocabulary of its own (English and Russian), or share the target's (English and German).
    """

    base = BASE | {
        "position": {"kind": "sinusoidal", "layout": "halves", "endpoint": True, "offset": 2},
        "embed": {"kind": "tokens", "scale": "sqrt(width)"},
    }
    presets = series("wmt19-{}", "FAIR's WMT19 {} (2019)",
        ("en-ru", {"vocab": 31232, "source_vocab": 31640, "embed.shared": False}, 323_076_096, "",
         APART.format("31,981,568"), SEEN),
        ("ru-en", {"vocab": 31640, "source_vocab": 31232, "embed.shared": False}, 323_493_888, "",
         APART.format("32,399,360"), SEEN),
        ("en-de", JOINED, 269_746_176, "", "", SHARED),
        ("de-en", JOINED, 269_746_176, "", "", SHARED),
        changes={
            "width": 1024, "depth": 6, "context": 1024, "attention.heads": 16, "ffn.width": 8192, "decoder.ffn.width": 4096,
            "ids.bos": 0, "ids.pad": 1, "ids.eos": [2], "ids.start": 2,
        },
        published="the paper gives no number",
    )  # fmt: skip
    architectures = ("FSMTForConditionalGeneration",)
    exempt = "a whole target with a cache: the class masks nothing then"
    keys = {
        **SINE_KEYS,
        "scale_embedding": flag(True, "embed.scale", on="sqrt(width)", off=1.0),
        **usual(tgt_vocab_size=42024, bos_token_id=0, eos_token_id=2),
        "src_vocab_size": whole(42024),
        # Another name of tgt_vocab_size.
        "vocab_size": whole(None),
        "activation_function": activation("relu", more={"ffn.bias": True}),
        # One table for three uses, or one for each.
        "tie_word_embeddings": flag(False, ("head.tied", "embed.shared")),
        "decoder_start_token_id": whole(2, null=True),
        "pad_token_id": whole(1),
        "langs": TEXTS,
        "decoder": TABLE,
    }
    small = TWO_DEPTHS | {
        "src_vocab_size": 67, "langs": ["en", "de"], "pad_token_id": 1, "bos_token_id": 0, "decoder_start_token_id": 2,
    }  # fmt: skip

    @classmethod
    def read(cls, c: Values) -> dict[str, Any]:
        source, vocab, tied = c["src_vocab_size"], c["tgt_vocab_size"], c["tie_word_embeddings"]
        if c["vocab_size"] not in (None, vocab):
            c.refuse("vocab_size", f"{c['vocab_size']} is not tgt_vocab_size={vocab}, of which it is another name")
        if tied and source != vocab:
            why = f"true is one table for source and target, but src_vocab_size={source} and tgt_vocab_size={vocab}"
            c.refuse("tie_word_embeddings", why)
        return super().read(c) | {
            "source_vocab": None if source == vocab else source,
            "position.offset": read_offset(c, min(source, vocab)),
        }

    @classmethod
    def write(cls, spec: ModelSpec) -> dict[str, Any]:
        return super().write(spec) | {"src_vocab_size": spec.input_vocab}

    @classmethod
    def weights(cls, spec: ModelSpec) -> StateMap:
        source, target = (f"model.{stack}.embed_tokens.weight" for stack in ("encoder", "decoder"))
        output = "model.decoder.output_projection.weight"
        one = isinstance(spec.embed, TokenEmbed) and spec.embed.shared
        ends = {target: "embed.tokens"} if one else {source: "embed.tokens", target: "decoder_embed.tokens"}
        rules = [Rule(theirs, f"{ours}.weight") for theirs, ours in ends.items()]
        return StateMap(
            rules=(*rules, Rule(output, "head.weight"), *layer_rules()),
            copies={source: target, output: target} if one else {},
            ignored=SINES,
            computed=sines(spec),
            prefix="model.",
        )
