"""ERNIE 4.5, dense: configs beyond its own small one."""

VARIANTS = {
    "plain": {"use_bias": False, "head_dim": None, "tie_word_embeddings": False},
    "one-kv-head": {"num_key_value_heads": 1, "hidden_act": "gelu", "rope_scaling": {"type": "linear", "factor": 3.0}},
}
