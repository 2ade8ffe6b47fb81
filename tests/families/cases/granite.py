"""Granite 3: what its presets are, and configs beyond its own small one."""

SIZES = {
    "granite-3.0-2b": (2048, 40, 32, 8, 64, 8192, 49155, 4096, 1e-05, True),
    "granite-3.0-8b": (4096, 40, 32, 8, 128, 12800, 49155, 4096, 1e-05, True),
    "granite-3.1-2b": (2048, 40, 32, 8, 64, 8192, 49155, 131072, 1e-05, True),
    "granite-3.1-8b": (4096, 40, 32, 8, 128, 12800, 49155, 131072, 1e-05, True),
}

SHARED = {"embed.scale": 12.0, "embed.round_scale": False, "0/block.branch_scale": 0.22}
SMALL = SHARED | {"0/attention.scale": 0.015625, "head.scale": 0.125}
LARGE = SHARED | {"0/attention.scale": 0.0078125, "head.scale": 0.0625}

FACTS = {
    "granite-3.0-2b": SMALL | {"0/position.theta": 10000.0},
    "granite-3.0-8b": LARGE | {"0/position.theta": 10000.0},
    "granite-3.1-2b": SMALL | {"0/position.theta": 5000000.0},
    "granite-3.1-8b": LARGE | {"0/position.theta": 10000000.0},
}

VARIANTS = {
    "one-kv-head": {"hidden_size": 48, "num_attention_heads": 3, "num_key_value_heads": 1, "logits_scaling": 0.3},
    "biased": {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": None, "tie_word_embeddings": False},
    "no-constants": {"embedding_multiplier": 1, "logits_scaling": 1, "residual_multiplier": 1},
}

RELEASED = {"granite": {"rope_scaling": None, "embedding_multiplier": 12, "logits_scaling": 8}}

REFUSED = {"granite": [({"logits_scaling": 0}, "head.scale: ")]}
