"""LLaMA 1 to 3 and models released in its format: what its presets are, and configs beyond its own small one."""

SIZES = {
    "llama-7b": (4096, 32, 32, 32, 128, 11008, 32000, 2048, 1e-06, False),
    "llama-2-70b": (8192, 80, 64, 8, 128, 28672, 32000, 4096, 1e-05, False),
    "llama-3-8b": (4096, 32, 32, 8, 128, 14336, 128256, 8192, 1e-05, False),
    "smollm2-1.7b": (2048, 24, 32, 32, 64, 8192, 49152, 8192, 1e-05, True),
}

FACTS = {
    "llama-7b": {"0/position.theta": 10000.0, "0/position.layout": "half", "0/ffn.kind": "swiglu"},
    "llama-3-8b": {"0/position.theta": 500000.0, "0/attention.bias": ""},
    "smollm2-1.7b": {"0/position.theta": 130000.0},
}

VARIANTS = {
    "tied": {"tie_word_embeddings": True},
    "biased": {"attention_bias": True, "mlp_bias": True},
    "wide-heads": {"head_dim": 12, "num_key_value_heads": None},
    "gelu": {"hidden_act": "gelu"},
    "linear": {"rope_scaling": {"type": "linear", "factor": 3.0}},
    "dynamic": {"rope_scaling": {"type": "dynamic", "factor": 2.0}, "max_position_embeddings": 8},
    "llama3": {
        "rope_theta": None,
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 900.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 40,
        },
    },
    "yarn": {
        "rope_theta": 900.0,
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    },
    "yarn-mscale": {
        "rope_theta": None,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 900.0,
            "factor": 4.0,
            "original_max_position_embeddings": 16,
            "mscale": 0.7,
            "mscale_all_dim": 0.4,
            "truncate": False,
            "beta_fast": 16.0,
            "beta_slow": 2.0,
        },
    },
    "longrope": {
        "max_position_embeddings": 64,
        "rope_theta": None,
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 900.0,
            "short_factor": [1.0, 1.3, 1.9, 2.5],
            "long_factor": [2.5, 1.9, 1.3, 1.0],
            "original_max_position_embeddings": 16,
        },
    },
}
