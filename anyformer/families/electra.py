"""ELECTRA (Clark et al. 2020): BERT with narrow tables; a small model fills masks in, and a larger one finds them."""

from typing import Any

from anyformer.families import bert_like as like
from anyformer.families import tasks
from anyformer.families.config_keys import embed_width, usual
from anyformer.families.config_values import Values


class Electra(like.NarrowBertLike, kind="electra"):
    """ELECTRA's generator: an encoder with a masked-LM head. Of a discriminator the body is read."""

    base = like.BASE | {"vocab": 30522, "context": 512, "ids": {"pad": 0}}
    architectures = ("ElectraForMaskedLM",)
    tasks = tasks.ELECTRA
    bodies = ("ElectraModel", "ElectraForPreTraining")
    body = "electra"
    head = ("generator_predictions", "dense", "LayerNorm")
    output = "generator_lm_head"
    unread = (r"discriminator_predictions\..*",)
    keys = {
        **like.keys(vocab=30522, context=512),
        **usual(hidden_size=256, num_attention_heads=4, intermediate_size=1024),
        "embedding_size": embed_width(128),
    }
    small = {"embedding_size": 20}

    @classmethod
    def read(cls, c: Values) -> dict[str, Any]:
        # The head has GELU, whatever the layers have.
        return super().read(c) | {"head.activation": "gelu"}
