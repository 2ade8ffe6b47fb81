"""BERT (Devlin et al. 2018): an encoder with norms after each addition, token types, and a masked-LM head."""

from anyformer.families import bert_like as like
from anyformer.families.config_keys import each, text, whole
from anyformer.families.family import series, sizes


class Bert(like.BertLike, kind="bert"):
    """BERT with its masked-LM head. Its pooler and its next-sentence head are no part of that, and are left out."""

    base = like.BASE | {"vocab": 30522, "context": 512, "ids": {"pad": 0}}
    presets = series("bert-{}", "BERT {} (2018)",
        ("base", sizes(768, 12, 12), 109_514_298, "109,482,240 without the masked-LM head; Google rounds to 110M",
         "with the masked-LM head and without the pooler; the published count is the body with its pooler"),
        ("large", sizes(1024, 24, 16), 335_174_458, "335,141,888 without the masked-LM head; Google rounds to 340M",
         "335M, not 340M; with the masked-LM head and without the pooler"),
        hub=("google-bert/bert-{}-uncased",),
        evidence="the publisher's notes and two other projects; the count of the body was recorded by another library",
    )  # fmt: skip
    architectures = ("BertForMaskedLM", "BertForPreTraining")
    before_types = True
    keys = {
        **like.keys(vocab=30522, context=512),
        # Sizes of the pooler of the Chinese models.
        **each(text(""), "directionality", "pooler_type"),
        **each(
            whole(0), "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers", "pooler_size_per_head"
        ),
    }
    unread = like.NEXT_SENTENCE
