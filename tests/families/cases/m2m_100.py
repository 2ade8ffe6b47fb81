"""M2M-100 and NLLB-200: what their presets are, and configs beyond their own small one."""

SIZES = {
    "m2m100-418m": (1024, 12, 16, 16, 64, 4096, 128112, 1024, 1e-05, True),
    "m2m100-1.2b": (1024, 24, 16, 16, 64, 8192, 128112, 1024, 1e-05, True),
    "nllb-200-600m": (1024, 12, 16, 16, 64, 4096, 256206, 1024, 1e-05, True),
    "nllb-200-1.3b": (1024, 24, 16, 16, 64, 8192, 256206, 1024, 1e-05, True),
    "nllb-200-3.3b": (2048, 24, 16, 16, 128, 8192, 256206, 1024, 1e-05, True),
}

FACTS = {
    "nllb-200-600m": {
        "/norm.embedding": False, "/norm.final": True, "0/position.kind": "sinusoidal", "0/position.offset": 2,
        "0/position.endpoint": True, "0/norm.attention_placement": "pre", "0/ffn.kind": "relu", "embed.scale": 32.0,
        "head.bias": False,
    }
}  # fmt: skip

VARIANTS = {
    "plain": {"scale_embedding": False, "activation_function": "gelu", "pad_token_id": 0, "bos_token_id": 1},
    "narrow": {"d_model": 30, "encoder_attention_heads": 5, "decoder_attention_heads": 3, "decoder_layers": 2},
}

RELEASED = {
    "m2m_100": {
        "gradient_checkpointing": False, "num_hidden_layers": 2, "early_stopping": True, "num_beams": 5, "max_length": 200,
        "tokenizer_class": "NllbTokenizer", "encoder_layerdrop": 0.05,
    }
}  # fmt: skip

REFUSED = {"m2m_100": [({"pad_token_id": 61}, "pad_token_id: 61 is not a token, and positions are counted from it")]}
