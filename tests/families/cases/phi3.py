"""Phi-3 mini and medium, Phi-4: what its presets are, and configs beyond its own small one."""

SIZES = {
    "phi-3-mini-4k": (3072, 32, 32, 32, 96, 8192, 32064, 4096, 1e-05, False),
    "phi-3-mini-128k": (3072, 32, 32, 32, 96, 8192, 32064, 131072, 1e-05, False),
    "phi-3-medium-4k": (5120, 40, 40, 10, 128, 17920, 32064, 4096, 1e-05, False),
    "phi-4": (5120, 40, 40, 10, 128, 17920, 100352, 16384, 1e-05, False),
}

FACTS = {
    "phi-3-mini-4k": {"0/attention.pattern": "window(2047)", "0/position.theta": 10000.0},
    "phi-3-mini-128k": {
        "0/attention.pattern": "causal",
        "0/position.scaling.kind": "longrope",
        "0/position.scaling.original": 4096,
        "0/position.scaling.factor": 32.0,
    },
    "phi-3-medium-4k": {"0/attention.pattern": "window(2047)", "0/position.theta": 10000.0},
    "phi-4": {"0/attention.pattern": "causal", "0/position.theta": 250000.0},
}

ALSO = {"phi-3-mini": "phi-3-mini-4k", "phi-3-medium": "phi-3-medium-4k"}

VARIANTS = {
    "whole-heads": {"partial_rotary_factor": 1.0, "sliding_window": None, "num_key_value_heads": None},
    "one-kv-head": {"hidden_size": 48, "num_attention_heads": 3, "num_key_value_heads": 1, "tie_word_embeddings": True},
    "longrope": {
        "partial_rotary_factor": 1.0,
        "sliding_window": None,
        "original_max_position_embeddings": 16,
        "rope_scaling": {"type": "longrope", "short_factor": [1.0, 1.3, 1.9, 2.5], "long_factor": [2.5, 1.9, 1.3, 1.0]},
    },
}
