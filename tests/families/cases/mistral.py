"""Mistral 7B and models released in its format: what its presets are, and configs beyond its own small one."""

SIZES = {
    "mistral-7b-v0.1": (4096, 32, 32, 8, 128, 14336, 32000, 32768, 1e-05, False),
    "mistral-7b-v0.3": (4096, 32, 32, 8, 128, 14336, 32768, 32768, 1e-05, False),
}

FACTS = {
    "mistral-7b-v0.1": {"0/attention.pattern": "window(4096)", "0/position.theta": 10000.0},
    "mistral-7b-v0.3": {"0/attention.pattern": "causal", "0/position.theta": 1000000.0},
}

ALSO = {"mistral-7b": "mistral-7b-v0.1"}

VARIANTS = {
    "no-window": {"sliding_window": None, "num_key_value_heads": 4, "head_dim": None},
    "one-kv-head": {"num_attention_heads": 3, "num_key_value_heads": 1, "tie_word_embeddings": True},
}
