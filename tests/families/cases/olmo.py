"""The first OLMo: what its presets are, and configs beyond its own small one."""

SIZES = {
    "olmo-1b": (2048, 16, 16, 16, 128, 8192, 50304, 2048, 1e-05, True),
    "olmo-7b": (4096, 32, 32, 32, 128, 11008, 50304, 2048, 1e-05, False),
    "olmo-7b-0724": (4096, 32, 32, 32, 128, 11008, 50304, 4096, 1e-05, False),
}

PLAIN = {
    "0/norm.kind": "layernorm",
    "0/norm.gain": "none",
    "0/norm.bias": False,
    "0/position.theta": 10000.0,
    "0/ffn.kind": "swiglu",
}
FACTS = {"olmo-1b": PLAIN, "olmo-7b": PLAIN, "olmo-7b-0724": PLAIN | {"0/attention.clip_qkv": 8.0}}

VARIANTS = {
    "unclipped": {"clip_qkv": None, "num_key_value_heads": None, "tie_word_embeddings": True},
    "one-kv-head": {"hidden_size": 48, "num_attention_heads": 3, "num_key_value_heads": 1, "rope_theta": 500.0},
    "biased": {"attention_bias": True, "num_key_value_heads": 4},
}

RELEASED = {"olmo": {"clip_qkv": 8.0, "rope_theta": 10000.0, "rope_scaling": None, "pretraining_tp": 1}}

REFUSED = {"olmo": [({"rms_norm_eps": 1e-6}, "rms_norm_eps: is not a key that we know here")]}
