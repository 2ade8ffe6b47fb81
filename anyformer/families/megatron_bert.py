"""Megatron-BERT (Shoeybi et al. 2019): BERT with norms before each layer, and none on the embeddings."""

from anyformer.families import bert_like as like
from anyformer.families.config_keys import usual


class MegatronBert(like.BertLike, kind="megatron_bert"):
    """Megatron-BERT with its masked-LM head. Its pooler and its next-sentence head are left out."""

    base = like.BASE | {
        "vocab": 29056,
        "context": 512,
        "norm": {"kind": "layernorm", "eps": 1e-12},
        "ids": {"pad": 0},
    }
    architectures = ("MegatronBertForMaskedLM", "MegatronBertForPreTraining")
    model_type = "megatron-bert"
    keys = {
        **like.keys(vocab=29056, context=512),
        **usual(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096),
    }
    parts = like.LINEAR | {"attention_inner": "attention.ln", "ffn_inner": "ln"}
    final = "encoder.ln"
    unread = like.NEXT_SENTENCE
