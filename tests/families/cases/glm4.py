"""GLM-4-0414: what its preset is, and configs beyond its own small one."""

SIZES = {"glm-4-9b-0414": (4096, 40, 32, 2, 128, 13696, 151552, 32768, 1e-05, False)}

FACTS = {
    "glm-4-9b-0414": {
        "0/position.layout": "interleaved",
        "0/position.dims": 64,
        "0/attention.bias": "kqv",
        "0/norm.attention_placement": "sandwich",
        "0/norm.ffn_placement": "sandwich",
        "0/norm.gain": "weight",
    }
}

VARIANTS = {
    "one-kv-head": {"hidden_size": 36, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 16},
    "unbiased": {"attention_bias": False, "num_key_value_heads": 4, "head_dim": 8, "tie_word_embeddings": True},
}

RELEASED = {"glm4": {"partial_rotary_factor": 0.5, "attention_bias": True, "rope_scaling": None}}
