"""Granite 3 with experts: configs beyond the small one."""

VARIANTS = {
    "untied": {"tie_word_embeddings": False, "attention_bias": True, "num_local_experts": 6, "num_experts_per_tok": 2},
    "one-kv-head": {"hidden_size": 36, "num_attention_heads": 3, "num_key_value_heads": 1, "logits_scaling": 2.0},
}
