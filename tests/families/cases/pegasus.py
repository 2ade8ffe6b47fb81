"""PEGASUS: what its presets are, and configs beyond its own small one."""

SIZES = {"pegasus-large": (1024, 16, 16, 16, 64, 4096, 96103, 1024, 1e-05, True)}

FACTS = {
    "pegasus-large": {
        "/norm.embedding": False, "/norm.final": True, "0/position.kind": "sinusoidal", "0/position.endpoint": False,
        "0/norm.attention_placement": "pre", "0/ffn.kind": "relu",
    }
}  # fmt: skip

VARIANTS = {
    "plain": {"scale_embedding": False, "activation_function": "gelu", "decoder_attention_heads": 4},
    "narrow": {"d_model": 30, "encoder_attention_heads": 5, "decoder_attention_heads": 3, "decoder_layers": 2},
}

RELEASED = {
    "pegasus": {
        "add_final_layer_norm": True, "normalize_before": True, "normalize_embedding": False, "extra_pos_embeddings": 1,
        "static_position_embeddings": True, "add_bias_logits": False, "num_beams": 8, "length_penalty": 0.8,
        "force_bos_token_to_be_generated": False, "num_hidden_layers": 2, "classif_dropout": 0.0,
    }
}  # fmt: skip
