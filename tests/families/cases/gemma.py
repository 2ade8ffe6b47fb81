"""The first Gemma: what its presets are, and configs beyond its own small one."""

SIZES = {
    "gemma-2b": (2048, 18, 8, 1, 256, 16384, 256000, 8192, 1e-06, True),
    "gemma-7b": (3072, 28, 16, 16, 256, 24576, 256000, 8192, 1e-06, True),
}

FACTS = {
    "gemma-2b": {
        "0/norm.gain": "one_plus",
        "0/norm.attention_placement": "pre",
        "0/ffn.kind": "geglu",
        "0/ffn.form": "tanh",
        "0/attention.scale": 0.0625,
        "embed.scale": 45.2548339959,
        "embed.round_scale": True,
    },
    "gemma-7b": {"embed.scale": 55.4256258422, "0/position.theta": 10000.0},
}

VARIANTS = {
    "one-kv-head": {"hidden_size": 36, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 16},
    "biased": {"attention_bias": True, "num_key_value_heads": 4, "head_dim": 8},
    "untied": {"tie_word_embeddings": False, "hidden_act": "silu"},
    "said-gelu": {"hidden_act": "gelu"},
}

RELEASED = {"gemma": {"hidden_act": "gelu", "hidden_activation": None, "rope_scaling": None, "rope_theta": 500.0}}

REFUSED = {
    "gemma": [
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention: True changes"),
        ({"hidden_activation": "gelu"}, "hidden_activation: 'gelu' changes"),
    ]
}
