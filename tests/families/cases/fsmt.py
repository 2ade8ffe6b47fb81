"""FSMT, a second class of the 2017 design: configs beyond its own small one."""

VARIANTS = {
    "tied": {"tie_word_embeddings": True, "encoder_attention_heads": 2, "pad_token_id": 0, "bos_token_id": 1},
    "unscaled": {
        "scale_embedding": False, "activation_function": "gelu", "d_model": 30, "encoder_attention_heads": 5,
        "decoder_attention_heads": 3, "encoder_ffn_dim": 24, "decoder_layers": 2,
    },
}  # fmt: skip

RELEASED = {
    "fsmt": {"vocab_size": 61, "extra_pos_embeddings": 0, "num_hidden_layers": 2, "num_beams": 5, "max_length": 200}
}

REFUSED = {
    "fsmt": [
        ({"tgt_vocab_size": 62}, "tgt_vocab_size: 62 is not src_vocab_size=61"),
        ({"pad_token_id": 61}, "pad_token_id: 61 is not a token, and positions are counted from it"),
        ({"pad_token_id": None}, "pad_token_id: None is not a whole number"),
    ]
}
