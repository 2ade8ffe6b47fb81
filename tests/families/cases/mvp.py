"""MVP: what its presets are, and configs beyond its own small one."""

SIZES = {"mvp": (1024, 12, 16, 16, 64, 4096, 50267, 1024, 1e-05, True)}

VARIANTS = {
    "plain": {"scale_embedding": False, "activation_function": "relu", "decoder_attention_heads": 4},
    "narrow": {"d_model": 30, "encoder_attention_heads": 5, "decoder_attention_heads": 3, "decoder_layers": 2},
}

REFUSED = {"mvp": [({"use_prompt": True}, "use_prompt: True changes")]}
