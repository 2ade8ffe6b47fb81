"""LLaMA 1 to 3 and models released in its format: what its presets are, and configs beyond its own small one."""

SIZES = {
    "llama-7b": (4096, 32, 32, 32, 128, 11008, 32000, 2048, 1e-06, False),
    "llama-13b": (5120, 40, 40, 40, 128, 13824, 32000, 2048, 1e-06, False),
    "llama-33b": (6656, 60, 52, 52, 128, 17920, 32000, 2048, 1e-06, False),
    "llama-65b": (8192, 80, 64, 64, 128, 22016, 32000, 2048, 1e-06, False),
    "llama-2-7b": (4096, 32, 32, 32, 128, 11008, 32000, 4096, 1e-05, False),
    "llama-2-13b": (5120, 40, 40, 40, 128, 13824, 32000, 4096, 1e-05, False),
    "llama-2-70b": (8192, 80, 64, 8, 128, 28672, 32000, 4096, 1e-05, False),
    "llama-3-8b": (4096, 32, 32, 8, 128, 14336, 128256, 8192, 1e-05, False),
    "llama-3-70b": (8192, 80, 64, 8, 128, 28672, 128256, 8192, 1e-05, False),
    "llama-3.1-8b": (4096, 32, 32, 8, 128, 14336, 128256, 131072, 1e-05, False),
    "llama-3.1-70b": (8192, 80, 64, 8, 128, 28672, 128256, 131072, 1e-05, False),
    "llama-3.1-405b": (16384, 126, 128, 8, 128, 53248, 128256, 131072, 1e-05, False),
    "llama-3.2-1b": (2048, 16, 32, 8, 64, 8192, 128256, 131072, 1e-05, True),
    "llama-3.2-3b": (3072, 28, 24, 8, 128, 8192, 128256, 131072, 1e-05, True),
    "deepseek-7b": (4096, 30, 32, 32, 128, 11008, 102400, 4096, 1e-06, False),
    "deepseek-67b": (8192, 95, 64, 8, 128, 22016, 102400, 4096, 1e-06, False),
    "yi-6b": (4096, 32, 32, 4, 128, 11008, 64000, 4096, 1e-05, False),
    "yi-34b": (7168, 60, 56, 8, 128, 20480, 64000, 4096, 1e-05, False),
    "smollm2-135m": (576, 30, 9, 3, 64, 1536, 49152, 8192, 1e-05, True),
    "smollm2-360m": (960, 32, 15, 5, 64, 2560, 49152, 8192, 1e-05, True),
    "smollm2-1.7b": (2048, 24, 32, 32, 64, 8192, 49152, 8192, 1e-05, True),
}

FACTS = {
    "llama-7b": {"0/position.theta": 10000.0, "0/position.layout": "half", "0/ffn.kind": "swiglu"},
    "llama-3-8b": {"0/position.theta": 500000.0, "0/attention.bias": ""},
    "llama-3-70b": {"0/position.theta": 500000.0},
    "llama-3.1-8b": {
        "0/position.theta": 500000.0,
        "0/position.scaling.kind": "llama3",
        "0/position.scaling.factor": 8.0,
        "0/position.scaling.original": 8192,
        "0/position.scaling.low": 1.0,
        "0/position.scaling.high": 4.0,
    },
    "llama-3.1-70b": {"0/position.scaling.factor": 8.0},
    "llama-3.1-405b": {"0/position.scaling.factor": 8.0},
    "llama-3.2-1b": {"0/position.scaling.factor": 32.0},
    "llama-3.2-3b": {"0/position.scaling.factor": 32.0},
    "deepseek-67b": {"0/position.theta": 10000.0},
    "yi-6b": {"0/position.theta": 5000000.0},
    "yi-34b": {"0/position.theta": 5000000.0},
    "smollm2-135m": {"0/position.theta": 100000.0},
    "smollm2-360m": {"0/position.theta": 100000.0},
    "smollm2-1.7b": {"0/position.theta": 130000.0},
}

ALSO = {"llama-30b": "llama-33b"}

VARIANTS = {
    "tied": {"tie_word_embeddings": True},
    "biased": {"attention_bias": True, "mlp_bias": True},
    "wide-heads": {"head_dim": 12, "num_key_value_heads": None},
    "one-kv-head": {"num_attention_heads": 6, "num_key_value_heads": 1, "hidden_size": 36},
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
