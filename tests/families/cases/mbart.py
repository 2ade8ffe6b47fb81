"""mBART: what its presets are, and configs beyond its own small one."""

SIZES = {
    "mbart-large-cc25": (1024, 12, 16, 16, 64, 4096, 250027, 1024, 1e-05, True),
    "mbart-large-50": (1024, 12, 16, 16, 64, 4096, 250054, 1024, 1e-05, True),
}

FACTS = {
    "mbart-large-50": {
        "/norm.embedding": True,
        "/norm.final": True,
        "0/position.offset": 2,
        "0/norm.attention_placement": "pre",
        "0/ffn.kind": "gelu",
        "embed.scale": 32.0,
    }
}

VARIANTS = {
    "plain": {"scale_embedding": False, "activation_function": "relu", "decoder_start_token_id": None},
    "narrow": {"d_model": 30, "encoder_attention_heads": 5, "decoder_attention_heads": 3, "decoder_layers": 2},
}

RELEASED = {
    "mbart": {
        "add_final_layer_norm": True, "normalize_before": True, "normalize_embedding": True, "classif_dropout": 0.0,
        "static_position_embeddings": False, "gradient_checkpointing": False, "num_hidden_layers": 2, "num_beams": 5,
        "tokenizer_class": "MBart50Tokenizer", "forced_bos_token_id": None, "add_bias_logits": False, "output_past": True,
    }
}  # fmt: skip
