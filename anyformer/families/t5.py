"""T5 (Raffel et al. 2019): an encoder-decoder with a learned bias for buckets of distances, RMSNorm, no biases."""

from typing import Any

from anyformer.families import t5_like as like
from anyformer.families.config_keys import flag
from anyformer.families.config_values import Values
from anyformer.families.family import series
from anyformer.specs.embed_head import TokenHead
from anyformer.specs.model import ModelSpec

GATED = {"ffn.kind": "geglu", "ffn.form": "tanh", "head.tied": False, "head.scale": 1.0}
"""What 1.1 has otherwise."""
VOCAB = {"vocab": 32128}
EVIDENCE = "the publisher's configuration files"
LOSS = "z-loss 1e-4 was the default of the code that it was trained with"


class T5(like.T5Like, kind="t5"):
    """T5 1.0, whose head is tied and scaled, and 1.1, with a head of its own and a gated feed-forward."""

    base = like.BASE | {"ffn": {"kind": "relu"}, "head": {"kind": "lm", "tied": True, "scale": "1/sqrt(width)"}}
    presets = (
        *series("t5-{}", "T5 {} (2019)",
            ("small", like.sizes(512, 6, 8, 64, 2048), 60_506_624,
             "60,506,624, recorded by another library; the paper rounds to 60M"),
            ("base", like.sizes(768, 12, 12, 64, 3072), 222_903_552,
             "222,903,552, recorded by another library and in copies of the files; the paper rounds to 220M"),
            ("large", like.sizes(1024, 24, 16, 64, 4096), 737_668_096,
             "737,668,096, recorded by another library; the paper rounds to 770M",
             "770M would need a second table of 32128 x 1024; the released model has one"),
            ("3b", like.sizes(1024, 24, 32, 128, 16384), 2_851_598_336, "the paper rounds to 3B",
             "the heads together are four times as wide as the model"),
            ("11b", like.sizes(1024, 24, 128, 128, 65536), 11_307_321_344, "the paper rounds to 11B",
             "the heads together are sixteen times as wide as the model"),
            changes=VOCAB, hub=("google-t5/t5-{}",), evidence=EVIDENCE, note=LOSS),
        *series("t5-v1.1-{}", "T5 1.1 {} (2020)",
            ("small", like.sizes(512, 8, 6, 64, 1024), 76_961_152,
             "76,961,152, recorded by another library for a model tuned from it",
             "8 layers of 6 heads, unlike T5 small. That library's own entry for it is one table short, as if tied"),
            ("base", like.sizes(768, 12, 12, 64, 2048), 247_577_856, "247,577,856, recorded by another library"),
            ("large", like.sizes(1024, 24, 16, 64, 2816), 783_150_080,
             "783,150,080, recorded by another library for a model tuned from it",
             "that library's own entry for it is one table short, as if tied"),
            ("xl", like.sizes(2048, 24, 32, 64, 5120), 2_849_757_184, "2,849,757,184, recorded by another library"),
            ("xxl", like.sizes(4096, 24, 64, 64, 10240), 11_135_332_352, "11,135,332,352, recorded by another library"),
            changes=VOCAB | GATED, hub=("google/t5-v1_1-{}",), evidence=EVIDENCE, note=LOSS),
    )  # fmt: skip
    architectures = ("T5ForConditionalGeneration", "T5WithLMHeadModel")
    bodies = ("T5EncoderModel",)
    before_types = True
    keys = like.keys(vocab=32128, ffn=2048, depth=6, heads=8, projection="relu") | {
        "scale_decoder_outputs": flag(False, null=True)
    }

    @classmethod
    def read(cls, c: Values) -> dict[str, Any]:
        # A file that is silent means: scaled if tied.
        scaled = c["scale_decoder_outputs"] if "scale_decoder_outputs" in c.given else None
        scaled = c["tie_word_embeddings"] if scaled is None else scaled
        return super().read(c) | {"head.scale": "1/sqrt(width)" if scaled else 1.0}

    @classmethod
    def write(cls, spec: ModelSpec) -> dict[str, Any]:
        scaled = isinstance(spec.head, TokenHead) and spec.head.scale not in (1, 1.0)
        return super().write(spec) | {"scale_decoder_outputs": scaled}
