"""BART: what its presets are, and configs beyond its own small one."""

SIZES = {
    "bart-base": (768, 6, 12, 12, 64, 3072, 50265, 1024, 1e-05, True),
    "bart-large": (1024, 12, 16, 16, 64, 4096, 50265, 1024, 1e-05, True),
}

FACTS = {
    "bart-large": {
        "topology": "encoder-decoder",
        "/norm.embedding": True,
        "/norm.final": False,
        "0/position.kind": "learned",
        "0/position.offset": 2,
        "0/norm.attention_placement": "post",
        "0/ffn.kind": "gelu",
        "embed.scale": 1.0,
        "ids.start": 2,
    }
}

VARIANTS = {
    "plain": {"scale_embedding": False, "activation_function": "relu", "decoder_attention_heads": 4},
    "narrow": {"d_model": 30, "encoder_attention_heads": 5, "decoder_attention_heads": 3, "decoder_layers": 2},
}

RELEASED = {
    "bart": {
        "add_bias_logits": False, "add_final_layer_norm": False, "classif_dropout": 0.1, "classifier_dropout": 0.0,
        "normalize_before": False, "normalize_embedding": True, "num_hidden_layers": 2, "static_position_embeddings": False,
        "extra_pos_embeddings": 2, "gradient_checkpointing": False, "forced_bos_token_id": 0, "early_stopping": True,
        "no_repeat_ngram_size": 3, "num_beams": 4, "task_specific_params": {"summarization": {"num_beams": 4}},
        "output_past": True, "prefix": " ", "force_bos_token_to_be_generated": True,
    }
}  # fmt: skip

REFUSED = {
    "bart": [
        ({"num_hidden_layers": 5}, "num_hidden_layers: 5 is not encoder_layers=2"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings: False changes"),
    ]
}
