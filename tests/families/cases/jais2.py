"""Jais 2: configs beyond its own small one."""

VARIANTS = {
    "plain": {"attention_bias": False, "mlp_bias": False, "tie_word_embeddings": True},
    "wide-heads": {"head_dim": 12, "num_key_value_heads": 1, "hidden_act": "gelu"},
}
