"""Emu3's text model: configs beyond its own small one."""

VARIANTS = {
    "biased": {"attention_bias": True, "mlp_bias": True, "hidden_act": "gelu"},
    "one-kv-head": {"num_key_value_heads": 1, "num_attention_heads": 3, "hidden_size": 36, "tie_word_embeddings": True},
}
