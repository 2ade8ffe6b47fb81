"""RoBERTa with its norms before each layer, as fairseq trains it if asked (Wettig et al. 2022)."""

from anyformer.families import bert_like as like
from anyformer.families import roberta


class RobertaPreLayerNorm(roberta.RobertaLike, kind="roberta_prelayernorm"):
    """RoBERTa with norms at the front, another behind the last layer, and its masked-LM head."""

    base = roberta.BASE | {
        "vocab": 50265,
        "norm": {"kind": "layernorm", "eps": 1e-5, "embedding": True},
    }
    architectures = ("RobertaPreLayerNormForMaskedLM",)
    model_type = "roberta-prelayernorm"
    body = "roberta_prelayernorm"
    keys = roberta.keys(50265)
    parts = like.LINEAR | {"attention_inner": "attention.LayerNorm", "ffn_inner": "intermediate.LayerNorm"}
    final = "LayerNorm"
