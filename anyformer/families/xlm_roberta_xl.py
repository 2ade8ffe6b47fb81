"""XLM-RoBERTa XL and XXL (Goyal et al. 2021): norms before each layer, and none on the embeddings."""

from anyformer.families import bert_like as like
from anyformer.families import roberta
from anyformer.families.config_keys import usual, whole


class XlmRobertaXl(roberta.RobertaLike, kind="xlm_roberta_xl"):
    """XLM-RoBERTa XL with its masked-LM head."""

    base = roberta.BASE | {"vocab": 250880, "norm": {"kind": "layernorm", "eps": 1e-5}}
    architectures = ("XLMRobertaXLForMaskedLM",)
    model_type = "xlm-roberta-xl"
    keys = {
        **roberta.keys(250880, 514),
        **usual(hidden_size=2560, num_hidden_layers=36, num_attention_heads=32, intermediate_size=10240),
        **usual(layer_norm_eps=1e-5),
        "type_vocab_size": whole(1, "embed.token_types"),
    }
    parts = like.LINEAR | {"attention_inner": "attention.self_attn_layer_norm", "ffn_inner": "LayerNorm"}
    final = "encoder.LayerNorm"
