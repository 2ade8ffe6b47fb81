"""EuroBERT: configs beyond its own small one."""

VARIANTS = {
    "biased": {"attention_bias": True, "mlp_bias": True, "hidden_act": "gelu", "num_key_value_heads": 4},
    "tied": {"tie_word_embeddings": True, "hidden_size": 30, "num_attention_heads": 5, "num_key_value_heads": 1},
}

RELEASED = {"eurobert": {"clf_pooling": "late", "mask_token": "<|mask|>", "mask_token_id": 60, "rope_scaling": None}}
