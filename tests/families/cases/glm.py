"""GLM-4 9B: what its preset is, and configs beyond its own small one."""

SIZES = {"glm-4-9b": (4096, 40, 32, 2, 128, 13696, 151552, 8192, 1.5625e-07, False)}

FACTS = {
    "glm-4-9b": {
        "0/position.layout": "interleaved",
        "0/position.dims": 64,
        "0/position.theta": 10000.0,
        "0/attention.bias": "kqv",
        "0/norm.attention_placement": "pre",
        "ids.eos": [151329, 151336, 151338],
    }
}

VARIANTS = {
    "one-kv-head": {"hidden_size": 36, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 16},
    "unbiased": {"attention_bias": False, "num_key_value_heads": 4, "head_dim": 8, "tie_word_embeddings": True},
    "whole-heads": {"partial_rotary_factor": 1.0, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
}

RELEASED = {"glm": {"partial_rotary_factor": 0.5, "attention_bias": True, "rope_scaling": None}}

REFUSED = {
    "glm": [
        ({"partial_rotary_factor": 0.25}, "position.kind: 'rope' turns pairs: 3 of head_dim=12"),
        ({"head_dim": None}, "head_dim: None is not a whole number"),
    ]
}
