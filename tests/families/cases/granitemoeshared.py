"""Granite with experts, one of them shared: configs beyond the small one."""

VARIANTS = {
    "not-shared": {"shared_intermediate_size": 0, "tie_word_embeddings": False, "attention_bias": True},
    "one-kv-head": {"hidden_size": 36, "num_attention_heads": 3, "num_key_value_heads": 1, "num_local_experts": 3},
}
