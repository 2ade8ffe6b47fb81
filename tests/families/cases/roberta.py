"""RoBERTa with its masked-LM head: what its presets are, and configs beyond its own small one."""

SIZES = {
    "roberta-base": (768, 12, 12, 12, 64, 3072, 50265, 512, 1e-05, True),
    "roberta-large": (1024, 24, 16, 16, 64, 4096, 50265, 512, 1e-05, True),
}

FACTS = {
    "roberta-base": {
        "topology": "encoder",
        "embed.token_types": 1,
        "/norm.embedding": True,
        "0/position.offset": 2,
        "0/norm.attention_placement": "post",
        "0/ffn.kind": "gelu",
        "head.transform": True,
        "ids.pad": 1,
    }
}

VARIANTS = {
    "relu": {"hidden_act": "relu", "pad_token_id": 2, "eos_token_id": 1, "type_vocab_size": 1},
    "untied": {"tie_word_embeddings": False, "hidden_size": 30, "num_attention_heads": 5},
}

RELEASED = {"roberta": {"position_embedding_type": "absolute", "gradient_checkpointing": False}}

REFUSED = {
    "roberta": [
        ({"is_decoder": True}, "is_decoder: True changes"),
        ({"pad_token_id": -1}, "pad_token_id: -1 is not a token, and positions are counted from it"),
        ({"max_position_embeddings": 2}, "context: 0 is not at least 1"),
    ]
}
