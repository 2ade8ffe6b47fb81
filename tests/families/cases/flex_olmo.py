"""FlexOlmo: configs beyond the small one."""

VARIANTS = {
    "normalised": {"norm_topk_prob": True, "attention_bias": True, "num_key_value_heads": None, "num_experts": 7},
    "one-kv-head": {"hidden_size": 36, "num_attention_heads": 3, "num_key_value_heads": 1, "tie_word_embeddings": True},
}
