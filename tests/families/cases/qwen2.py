"""Qwen2 and Qwen2.5: what its presets are, and configs beyond its own small one."""

SIZES = {
    "qwen2-0.5b": (896, 24, 14, 2, 64, 4864, 151936, 32768, 1e-06, True),
    "qwen2-1.5b": (1536, 28, 12, 2, 128, 8960, 151936, 32768, 1e-06, True),
    "qwen2-7b": (3584, 28, 28, 4, 128, 18944, 152064, 32768, 1e-06, False),
    "qwen2-72b": (8192, 80, 64, 8, 128, 29568, 152064, 32768, 1e-05, False),
    "qwen2.5-0.5b": (896, 24, 14, 2, 64, 4864, 151936, 32768, 1e-06, True),
    "qwen2.5-1.5b": (1536, 28, 12, 2, 128, 8960, 151936, 131072, 1e-06, True),
    "qwen2.5-3b": (2048, 36, 16, 2, 128, 11008, 151936, 32768, 1e-06, True),
    "qwen2.5-7b": (3584, 28, 28, 4, 128, 18944, 152064, 131072, 1e-06, False),
    "qwen2.5-14b": (5120, 48, 40, 8, 128, 13824, 152064, 131072, 1e-05, False),
    "qwen2.5-32b": (5120, 64, 40, 8, 128, 27648, 152064, 131072, 1e-05, False),
    "qwen2.5-72b": (8192, 80, 64, 8, 128, 29568, 152064, 131072, 1e-05, False),
}

FACTS = {
    name: {"0/attention.bias": "kqv", "0/position.theta": 1000000.0, "0/attention.pattern": "causal"} for name in SIZES
}

ALSO = {name.replace("qwen", "qwen-"): name for name in SIZES}

VARIANTS = {
    "no-window": {"use_sliding_window": False, "tie_word_embeddings": False},
    "one-kv-head": {"hidden_size": 48, "num_attention_heads": 3, "num_key_value_heads": 1},
    "many-kv-heads": {
        "num_key_value_heads": 4,
        "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    },
    "layer-types": {
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "max_window_layers": 3,
    },
}
