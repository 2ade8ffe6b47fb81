"""OLMo 3: what its presets are, and configs beyond its own small one."""

SIZES = {
    "olmo-3-7b": (4096, 32, 32, 32, 128, 11008, 100278, 65536, 1e-06, False),
    "olmo-3-32b": (5120, 64, 40, 8, 128, 27648, 100278, 65536, 1e-06, False),
}

FACTS = {
    name: {
        "0/norm.ffn_placement": "output",
        "0/attention.qk_norm.scope": "whole",
        "2/attention.pattern": "window(4096)",
        "3/attention.pattern": "causal",
        "2/position.theta": 500000.0,
        "3/position.theta": 500000.0,
        "3/position.scaling.kind": "yarn",
        "3/position.scaling.factor": 8.0,
        "3/position.scaling.original": 8192,
        "3/position.scaling.attention_factor": 1.2079441541679836,
    }
    for name in SIZES
}

VARIANTS = {
    "old-keys": {
        "rope_parameters": None,
        "rope_theta": 500000.0,
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
        "num_key_value_heads": None,
    },
    "one-kv-head": {
        "hidden_size": 48,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "num_hidden_layers": 3,
        "layer_types": ["full_attention", "sliding_attention", "full_attention"],
    },
    "all-global": {"num_hidden_layers": 2, "layer_types": ["full_attention"] * 2, "attention_bias": True},
    "all-local": {"num_hidden_layers": 2, "tie_word_embeddings": True},
}

RELEASED = {"olmo3": {"rope_parameters": None, "rope_scaling": None, "rope_theta": 500000}}

REFUSED = {
    "olmo3": [
        ({"rope_theta": 3.0}, "rope_theta: 3.0 changes"),
        ({"rope_theta": 500000.0}, "rope_theta: is 500000.0 beside the table and 900.0 in it"),
        ({"layer_types": ["full_attention"]}, "layer_types: lists 1 layers"),
    ]
}
