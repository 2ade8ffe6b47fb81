"""SmolLM3: what its preset is, and configs beyond its own small one."""

SIZES = {"smollm3-3b": (2048, 36, 16, 4, 128, 11008, 128256, 65536, 1e-06, True)}

FACTS = {
    "smollm3-3b": {
        "2/position.kind": "rope",
        "2/position.theta": 5000000.0,
        "3/position.kind": "none",
        "4/position.kind": "rope",
        "35/position.kind": "none",
        "3/attention.pattern": "causal",
    }
}

ALSO = {"smollm3": "smollm3-3b"}

VARIANTS = {
    "windows": {"use_sliding_window": True, "sliding_window": 5, "no_rope_layer_interval": 2, "num_key_value_heads": 4},
    "one-kv-head": {
        "hidden_size": 36,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "num_hidden_layers": 3,
        "no_rope_layers": [0, 1, 1, 0],
        "tie_word_embeddings": False,
    },
    "four-kinds": {
        "use_sliding_window": True,
        "sliding_window": 5,
        "no_rope_layers": [0, 1, 0, 1, 1],
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "full_attention", "full_attention"],
        "attention_bias": True,
        "mlp_bias": True,
    },
    "never": {"no_rope_layers": [0] * 5},
    "always": {"no_rope_layers": [1] * 5, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
}

RELEASED = {
    "smollm3": {"max_window_layers": 28, "pretraining_tp": 2, "no_rope_layer_interval": 4, "rope_scaling": None}
}

REFUSED = {
    "smollm3": [
        ({"no_rope_layers": [1, 0]}, "no_rope_layers: has 2 entries for 5 layers"),
        ({"no_rope_layer_interval": 0}, "no_rope_layer_interval: 0 is not at least 1"),
        ({"layer_types": ["sliding_attention"] * 5}, "sliding_window: is missing; layer_types has 'sliding_attention'"),
    ]
}
