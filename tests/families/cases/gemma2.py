"""Gemma 2: what its presets are, and configs beyond its own small one."""

SIZES = {
    "gemma-2-2b": (2304, 26, 8, 4, 256, 9216, 256000, 8192, 1e-06, True),
    "gemma-2-9b": (3584, 42, 16, 8, 256, 14336, 256000, 8192, 1e-06, True),
    "gemma-2-27b": (4608, 46, 32, 16, 128, 36864, 256000, 8192, 1e-06, True),
}

FACTS = {
    "gemma-2-27b": {
        "0/attention.pattern": "window(4096)",
        "1/attention.pattern": "causal",
        "0/attention.softcap": 50.0,
        "0/attention.scale": 0.0833333333333,
        "head.softcap": 30.0,
        "0/norm.gain": "one_plus",
        "0/norm.attention_placement": "sandwich",
        "0/ffn.kind": "geglu",
        "0/ffn.form": "tanh",
        "embed.scale": 67.8822509939,
        "embed.round_scale": True,
    },
    "gemma-2-2b": {"0/attention.scale": 0.0625, "0/attention.softcap": 50.0, "head.softcap": 30.0, "embed.scale": 48.0},
    "gemma-2-9b": {"0/attention.scale": 0.0625, "1/attention.pattern": "causal", "embed.scale": 59.8665181884},
}

VARIANTS = {
    "no-caps": {"attn_logit_softcapping": None, "final_logit_softcapping": None, "attention_bias": True},
    "layer-types": {"layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]},
    "untied": {"tie_word_embeddings": False, "num_key_value_heads": 4},
    "one-kv-head": {"hidden_size": 36, "num_attention_heads": 3, "num_key_value_heads": 1},
}
