"""Gemma 3, text only: what its presets are, and configs beyond its own small one."""

SIZES = {
    "gemma-3-270m": (640, 18, 4, 1, 256, 2048, 262144, 32768, 1e-06, True),
    "gemma-3-1b": (1152, 26, 4, 1, 256, 6912, 262144, 32768, 1e-06, True),
    "gemma-3-4b": (2560, 34, 8, 4, 256, 10240, 262208, 131072, 1e-06, True),
    "gemma-3-12b": (3840, 48, 16, 8, 256, 15360, 262208, 131072, 1e-06, True),
    "gemma-3-27b": (5376, 62, 32, 16, 128, 21504, 262208, 131072, 1e-06, True),
}

SMALL = {
    "4/attention.pattern": "window(512)",
    "5/attention.pattern": "causal",
    "11/attention.pattern": "causal",
    "0/position.theta": 10000.0,
    "5/position.theta": 1000000.0,
    "0/attention.scale": 0.0625,
    "0/norm.gain": "one_plus",
    "0/norm.attention_placement": "sandwich",
    "0/attention.qk_norm.gain": "one_plus",
    "0/attention.qk_norm.scope": "head",
    "0/ffn.form": "tanh",
}
LARGE = SMALL | {
    "4/attention.pattern": "window(1024)",
    "5/position.scaling.kind": "linear",
    "5/position.scaling.factor": 8.0,
}

FACTS = {
    "gemma-3-270m": SMALL | {"embed.scale": 25.2982212813},
    "gemma-3-1b": SMALL | {"embed.scale": 33.941125497},
    "gemma-3-4b": LARGE | {"embed.scale": 50.5964425627},
    "gemma-3-12b": LARGE | {"embed.scale": 61.9677335393},
    "gemma-3-27b": LARGE | {"0/attention.scale": 0.0771516749810, "embed.scale": 73.3212111193},
}

VARIANTS = {
    # EmbeddingGemma's.
    "both-ways": {"use_bidirectional_attention": True, "sliding_window": 6},
    "one-kv-head": {
        "hidden_size": 36,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "num_hidden_layers": 3,
        "sliding_window_pattern": 2,
        "rope_scaling": None,
    },
    "tables": {
        "rope_theta": None,
        "rope_local_base_freq": None,
        "rope_scaling": None,
        "rope_parameters": {
            "full_attention": {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 16,
                "rope_theta": 700.0,
            },
            "sliding_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 40.0},
        },
        "num_key_value_heads": 4,
        "num_hidden_layers": 4,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
    },
    "all-local": {"num_hidden_layers": 2, "attention_bias": True, "tie_word_embeddings": False},
    "all-global": {"num_hidden_layers": 2, "sliding_window_pattern": 1, "final_logit_softcapping": 2.0},
}

RELEASED = {
    "gemma3": {
        "rope_scaling": None, "sliding_window_pattern": 6, "cache_implementation": "hybrid", "_sliding_window_pattern": 6,
        "attn_logit_softcapping": None, "final_logit_softcapping": None, "use_bidirectional_attention": False,
    }
}  # fmt: skip

REFUSED = {
    "gemma3": [
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping: 50.0 changes"),
        ({"rope_parameters": {"rope_type": "default"}}, "rope_parameters: 'rope_type' is no table of a kind of layer"),
        ({"rope_parameters": {"chunked_attention": {}}}, "rope_parameters: 'chunked_attention' is no table"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 3.0}}}, "rope_theta: is 900.0 beside the table and 3.0"),
        ({"rope_parameters": {"full_attention": {"rope_type": "odd"}}}, "'odd' is a scaling that we don't have here"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor: is not 1"),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 2.0}}},
            "rope_scaling: says something else than rope_parameters",
        ),
    ]
}
