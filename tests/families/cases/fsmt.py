"""FSMT, a second class of the 2017 design: configs beyond its own small one."""

SIZES = {
    "wmt19-en-ru": (1024, 6, 16, 16, 64, 4096, 31232, 1024, 1e-05, False),
    "wmt19-ru-en": (1024, 6, 16, 16, 64, 4096, 31640, 1024, 1e-05, False),
    "wmt19-en-de": (1024, 6, 16, 16, 64, 4096, 42024, 1024, 1e-05, True),
    "wmt19-de-en": (1024, 6, 16, 16, 64, 4096, 42024, 1024, 1e-05, True),
}

FACTS = {
    "wmt19-en-ru": {"source_vocab": 31640, "embed.shared": False, "0/position.offset": 2, "0/position.endpoint": True},
    "wmt19-en-de": {"source_vocab": 42024, "embed.shared": True},
}

VARIANTS = {
    "joined": {"src_vocab_size": 61},
    "tied": {"tie_word_embeddings": True, "src_vocab_size": 61, "encoder_attention_heads": 2, "pad_token_id": 0, "bos_token_id": 1},
    # A source of fewer tokens than the target.
    "unscaled": {
        "src_vocab_size": 53,
        "scale_embedding": False, "activation_function": "gelu", "d_model": 30, "encoder_attention_heads": 5,
        "decoder_attention_heads": 3, "encoder_ffn_dim": 24, "decoder_layers": 2,
    },
}  # fmt: skip

RELEASED = {
    "fsmt": {"vocab_size": 61, "extra_pos_embeddings": 0, "num_hidden_layers": 2, "num_beams": 5, "max_length": 200}
}

REFUSED = {
    "fsmt": [
        ({"vocab_size": 62}, "vocab_size: 62 is not tgt_vocab_size=61"),
        (
            {"tie_word_embeddings": True},
            "tie_word_embeddings: true is one table for source and target, but src_vocab_size=67",
        ),
        ({"pad_token_id": 61}, "pad_token_id: 61 is not a token, and positions are counted from it"),
        ({"pad_token_id": None}, "pad_token_id: None is not a whole number"),
    ]
}
