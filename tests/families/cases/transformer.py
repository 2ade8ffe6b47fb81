"""The 2017 Transformer, and Marian's models: what its presets are, and configs beyond its own small one."""

SIZES = {
    "transformer-base": (512, 6, 8, 8, 64, 2048, 37000, 256, 1e-06, True),
    "transformer-big": (1024, 6, 16, 16, 64, 4096, 37000, 256, 1e-06, True),
}

FACTS = {
    "transformer-base": {
        "0/position.kind": "sinusoidal",
        "0/ffn.kind": "relu",
        "0/norm.ffn_placement": "post",
        "0/position.layout": "halves",
        "embed.scale": 22.627416998,
        "0/attention.bias": "koqv",
    }
}

ALSO = {"transformer-2017-base": "transformer-base", "transformer-2017-big": "transformer-big"}

VARIANTS = {
    "plain": {"scale_embedding": False, "activation_function": "gelu", "decoder_attention_heads": 4},
    "two-tables": {"share_encoder_decoder_embeddings": False},
    "three-tables": {"share_encoder_decoder_embeddings": False, "tie_word_embeddings": False},
    "two-vocabularies": {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 47},
}
