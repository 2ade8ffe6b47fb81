"""OLMo 2: what its presets are, and configs beyond its own small one."""

SIZES = {
    "olmo-2-1b": (2048, 16, 16, 16, 128, 8192, 100352, 4096, 1e-06, False),
    "olmo-2-7b": (4096, 32, 32, 32, 128, 11008, 100352, 4096, 1e-06, False),
    "olmo-2-13b": (5120, 40, 40, 40, 128, 13824, 100352, 4096, 1e-06, False),
    "olmo-2-32b": (5120, 64, 40, 8, 128, 27648, 100352, 4096, 1e-06, False),
}

FACTS = {
    name: {"0/norm.ffn_placement": "output", "0/attention.qk_norm.scope": "whole", "0/position.theta": 500000.0}
    for name in SIZES
}

VARIANTS = {
    "biased": {"attention_bias": True, "num_key_value_heads": None},
    "one-kv-head": {"hidden_size": 48, "num_attention_heads": 3, "num_key_value_heads": 1, "tie_word_embeddings": True},
}
