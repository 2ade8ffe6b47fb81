"""Qwen3, dense: what its presets are, and configs beyond its own small one."""

SIZES = {
    "qwen3-0.6b": (1024, 28, 16, 8, 128, 3072, 151936, 40960, 1e-06, True),
    "qwen3-1.7b": (2048, 28, 16, 8, 128, 6144, 151936, 40960, 1e-06, True),
    "qwen3-4b": (2560, 36, 32, 8, 128, 9728, 151936, 40960, 1e-06, True),
    "qwen3-8b": (4096, 36, 32, 8, 128, 12288, 151936, 40960, 1e-06, False),
    "qwen3-14b": (5120, 40, 40, 8, 128, 17408, 151936, 40960, 1e-06, False),
    "qwen3-32b": (5120, 64, 64, 8, 128, 25600, 151936, 40960, 1e-06, False),
}

FACTS = {
    name: {
        "0/attention.qk_norm.scope": "head",
        "0/attention.qk_norm.when": "before",
        "0/attention.qk_norm.eps": 1e-6,
        "0/attention.bias": "",
        "0/position.theta": 1000000.0,
        "0/attention.pattern": "causal",
    }
    for name in SIZES
}

ALSO = {name.replace("qwen", "qwen-"): name for name in SIZES}

VARIANTS = {
    "no-window": {"use_sliding_window": False, "tie_word_embeddings": True, "num_key_value_heads": 4, "head_dim": 8},
    "one-kv-head": {"hidden_size": 36, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 16},
    "biased": {
        "attention_bias": True,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    },
}

RELEASED = {"qwen3": {"rope_theta": 1000000, "rope_scaling": None, "sliding_window": None, "use_sliding_window": False}}

REFUSED = {"qwen3": [({"layer_types": ["linear_attention"] * 3}, "layer_types: 'linear_attention' is a kind of layer")]}
