"""LED: what its presets are, and configs beyond its own small one."""

SIZES = {
    "led-base": (768, 6, 12, 12, 64, 3072, 50265, 16384, 1e-05, True),
    "led-large": (1024, 12, 16, 16, 64, 4096, 50265, 16384, 1e-05, True),
}

FACTS = {
    "led-base": {
        "topology": "encoder-decoder",
        "/norm.embedding": True,
        "0/position.kind": "learned",
        "0/position.offset": 0,
        "0/position.length": 1024,
        "0/norm.attention_placement": "post",
        "0/attention.pattern": "causal",
        "0/attention.global_projections": False,
        "0/ffn.kind": "gelu",
        "ids.start": 2,
    }
}

ALSO = {"led-base-16384": "led-base", "led-large-16384": "led-large"}

VARIANTS = {
    "one-window": {"attention_window": 6, "activation_function": "relu", "max_decoder_position_embeddings": 64},
    "long-decoder": {
        "max_encoder_position_embeddings": 24, "d_model": 30, "encoder_attention_heads": 5,
        "decoder_attention_heads": 3, "attention_window": [8, 4, 4],
    },
}  # fmt: skip

RELEASED = {
    "led": {
        "attention_window": [1024] * 3, "classifier_dropout": 0.0, "classif_dropout": 0.0, "num_hidden_layers": 3,
        "encoder_layerdrop": 0.0, "is_encoder_decoder": True, "use_cache": True, "length_penalty": 2.0, "num_beams": 4,
    }
}  # fmt: skip

REFUSED = {
    "led": [
        ({"attention_window": 3}, "attention_window: 3 can't be halved"),
        ({"attention_window": [4]}, "attention_window: lists 1 layers, but there are 3"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings: False changes"),
        ({"num_hidden_layers": 5}, "num_hidden_layers: 5 is not encoder_layers=3"),
        ({"max_position_embeddings": 9}, "max_position_embeddings: 9 changes"),
        ({"max_decoder_position_embeddings": 0}, "position.length: 0 is not at least 1"),
    ]
}
