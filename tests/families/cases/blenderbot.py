"""BlenderBot: what its presets are, and configs beyond its own small one."""

SIZES = {"blenderbot-3b": (2560, 24, 32, 32, 80, 10240, 8008, 128, 1e-05, True)}

FACTS = {
    "blenderbot-3b": {
        "/norm.embedding": False, "/norm.final": True, "0/position.offset": 0, "0/norm.attention_placement": "pre",
    }
}  # fmt: skip

VARIANTS = {
    "plain": {"scale_embedding": False, "activation_function": "relu", "decoder_attention_heads": 4},
    "narrow": {"d_model": 30, "encoder_attention_heads": 5, "decoder_attention_heads": 3, "decoder_layers": 2},
}

RELEASED = {
    "blenderbot": {
        "add_final_layer_norm": True, "normalize_before": True, "normalize_embedding": False, "layernorm_variant": "prelayernorm",
        "static_position_embeddings": False, "extra_pos_embeddings": 0, "encoder_no_repeat_ngram_size": 3, "num_beams": 10,
        "unk_token_id": 3, "do_blenderbot_90_layernorm": False, "extra_layer_norm": False, "length_penalty": 0.65,
    }
}  # fmt: skip
