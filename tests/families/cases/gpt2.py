"""GPT-2: what its presets are, and configs beyond its own small one."""

SIZES = {
    "gpt2-small": (768, 12, 12, 12, 64, 3072, 50257, 1024, 1e-05, True),
    "gpt2-medium": (1024, 24, 16, 16, 64, 4096, 50257, 1024, 1e-05, True),
    "gpt2-large": (1280, 36, 20, 20, 64, 5120, 50257, 1024, 1e-05, True),
    "gpt2-xl": (1600, 48, 25, 25, 64, 6400, 50257, 1024, 1e-05, True),
}

FACTS = {
    "gpt2-small": {
        "0/position.kind": "learned",
        "0/norm.attention_placement": "pre",
        "/norm.final": True,
        "0/ffn.kind": "gelu_tanh",
        "0/attention.bias": "koqv",
    }
}

ALSO = {
    "gpt2": "gpt2-small",
    "gpt-2": "gpt2-small",
    "gpt-2-small": "gpt2-small",
    "gpt-2-medium": "gpt2-medium",
    "gpt-2-large": "gpt2-large",
    "gpt-2-xl": "gpt2-xl",
}

VARIANTS = {
    "untied": {"tie_word_embeddings": False},
    "unscaled": {"scale_attn_weights": False, "activation_function": "relu", "n_inner": None},
    "by-layer": {"scale_attn_by_inverse_layer_idx": True},
    "by-layer-alone": {"scale_attn_by_inverse_layer_idx": True, "scale_attn_weights": False},
}
