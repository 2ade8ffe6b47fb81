"""BigBird: what its preset is, and configs beyond its own small one."""

SIZES = {"bigbird-base": (768, 12, 12, 12, 64, 3072, 50358, 4096, 1e-12, True)}

FACTS = {
    "bigbird-base": {
        "topology": "encoder",
        "embed.token_types": 2,
        "embed.scale": 1.0,
        "/norm.embedding": True,
        "0/position.kind": "learned",
        "0/norm.attention_placement": "post",
        "0/attention.pattern": "edge_blocks(64) | chunked(64, 1, 1) | bigbird_random(64, 3, 12, 4096, 'training')",
        "0/attention.bias": "koqv",
        "0/ffn.kind": "gelu_tanh",
        "head.activation": "gelu_tanh",
        "head.transform": True,
    }
}

ALSO = {"bigbird-roberta-base": "bigbird-base"}

VARIANTS = {
    "sparse-blocks": {"block_size": 2, "num_random_blocks": 2, "num_hidden_layers": 4},
    "few-blocks": {"block_size": 4, "num_random_blocks": 1},
    "five-blocks": {"block_size": 5, "num_random_blocks": 0},
    "full": {"attention_type": "original_full", "use_bias": False, "rescale_embeddings": True, "hidden_act": "relu"},
    "untied": {"tie_word_embeddings": False, "hidden_size": 30, "num_attention_heads": 5, "num_random_blocks": 0},
}

RELEASED = {
    "big_bird": {
        "norm_type": "postnorm", "position_embedding_type": "absolute", "sep_token_id": 66, "use_cache": True,
        "gradient_checkpointing": False,
    }
}  # fmt: skip

REFUSED = {
    "big_bird": [
        ({"attention_type": "full"}, "attention_type: 'full' is an attention that the class does not have"),
        ({"block_size": 0}, "block"),
        ({"num_random_blocks": -1}, "num_random_blocks: -1 is not at least 0"),
        ({"norm_type": "prenorm"}, "norm_type: 'prenorm' changes"),
        ({"is_decoder": True}, "is_decoder: True changes"),
    ]
}
