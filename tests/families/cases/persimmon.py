"""Persimmon 8B: configs beyond its own small one."""

VARIANTS = {
    "no-head-norms": {"qk_layernorm": False, "partial_rotary_factor": 1.0, "tie_word_embeddings": True},
    "odd-heads": {"hidden_size": 36, "num_attention_heads": 3, "hidden_act": "gelu", "partial_rotary_factor": 0.7},
}
