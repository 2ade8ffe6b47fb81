"""PLBART: what its presets are, and configs beyond its own small one."""

SIZES = {"plbart-base": (768, 6, 12, 12, 64, 3072, 50005, 1024, 1e-05, True)}

FACTS = {
    "plbart-base": {"/norm.embedding": True, "/norm.final": False, "0/norm.attention_placement": "post"},
}

VARIANTS = {
    "plain": {"scale_embedding": False, "activation_function": "relu", "decoder_start_token_id": None},
    "narrow": {"d_model": 30, "encoder_attention_heads": 5, "decoder_attention_heads": 3, "decoder_layers": 2},
}
