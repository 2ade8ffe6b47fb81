"""BERT (Devlin et al. 2018): an encoder with norms after each addition, token types, and a masked-LM head."""

from __future__ import annotations

from anyformer.families import bert_like as like
from anyformer.families.config_keys import text, whole
from anyformer.families.family import Family, Preset
from anyformer.families.statemap import StateMap
from anyformer.specs.model import ModelSpec


def _preset(size: str, width: int, depth: int, heads: int, params: int, published: str, note: str) -> Preset:
    return Preset(
        name=f"bert-{size}", hub=(f"google-bert/bert-{size}-uncased",), title=f"BERT {size} (2018)",
        changes={"width": width, "depth": depth, "attention.heads": heads},
        params=params, published=published,
        evidence="the publisher's notes and two other projects; the count of the body was recorded by another library",
        note=note,
    )  # fmt: skip


class Bert(Family, kind="bert"):
    """BERT with its masked-LM head. Its pooler and its next-sentence head are no part of that, and are left out."""

    base = like.BASE | {"vocab": 30522, "context": 512, "ids": {"pad": 0}}
    presets = (
        _preset("base", 768, 12, 12, 109_514_298, "109,482,240 without the masked-LM head; Google rounds to 110M",
                "with the masked-LM head and without the pooler; the published count is the body with its pooler"),
        _preset("large", 1024, 24, 16, 335_174_458, "335,141,888 without the masked-LM head; Google rounds to 340M",
                "335M, not 340M; with the masked-LM head and without the pooler"),
    )  # fmt: skip
    architectures = ("BertForMaskedLM", "BertForPreTraining")
    model_type = "bert"
    before_types = True
    keys = like.keys(vocab=30522, context=512) | {
        # Sizes of the pooler of the Chinese models.
        "directionality": text("bidi"),
        "pooler_fc_size": whole(768),
        "pooler_num_attention_heads": whole(12),
        "pooler_num_fc_layers": whole(3),
        "pooler_size_per_head": whole(128),
        "pooler_type": text("first_token_transform"),
    }
    small = like.small()

    @classmethod
    def weights(cls, spec: ModelSpec) -> StateMap:
        return like.weights(spec, "bert", ignored=(r"cls\.seq_relationship\.(weight|bias)",))
