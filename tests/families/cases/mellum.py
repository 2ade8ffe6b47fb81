"""Mellum 2: configs beyond the small one."""

VARIANTS = {
    "all-sparse": {"mlp_layer_types": None, "norm_topk_prob": False, "attention_bias": True, "rope_parameters": None},
    "one-kv-head": {
        "hidden_size": 36,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "layer_types": None,
        "tie_word_embeddings": True,
    },
}
