"""RoFormer as an encoder: what its presets are, and configs beyond its own small one."""

SIZES = {
    "roformer-base-zh": (768, 12, 12, 12, 64, 3072, 50000, 1536, 1e-12, True),
    "roformer-char-base-zh": (768, 12, 12, 12, 64, 3072, 12000, 512, 1e-12, True),
}

FACTS = {
    "roformer-base-zh": {
        "topology": "encoder",
        "0/position.layout": "interleaved",
        "0/position.theta": 10000.0,
        "0/position.dims": 64,
        "0/position.on_values": False,
        "embed.token_types": 2,
        "head.transform": True,
    }
}

VARIANTS = {
    "turned-values": {"rotary_value": True, "embedding_size": None, "hidden_act": "relu"},
    "untied": {"tie_word_embeddings": False, "embedding_size": 30, "hidden_size": 30, "num_attention_heads": 5},
}

REFUSED = {"roformer": [({"tie_word_embeddings": False}, "tie_word_embeddings: false goes with a table as wide")]}
