"""MPNet with its masked-LM head: what its preset is, and configs beyond its own small one."""

SIZES = {"mpnet-base": (768, 12, 12, 12, 64, 3072, 30527, 512, 1e-05, True)}

FACTS = {
    "mpnet-base": {
        "topology": "encoder",
        "embed.token_types": 0,
        "embed.position.kind": "learned",
        "embed.position.offset": 2,
        "0/position.kind": "t5",
        "0/position.max_distance": 128,
        "0/norm.attention_placement": "post",
        "head.transform": True,
    }
}

VARIANTS = {
    # Longer than the buckets reach.
    "relu": {"hidden_act": "relu", "max_position_embeddings": 200, "num_attention_heads": 2},
    "untied": {"tie_word_embeddings": False, "hidden_size": 30, "num_attention_heads": 5},
}

RELEASED = {"mpnet": {"gradient_checkpointing": False, "max_position_embeddings": 514}}

REFUSED = {
    "mpnet": [
        ({"relative_attention_num_buckets": 16}, "relative_attention_num_buckets: 16 changes"),
        ({"max_position_embeddings": 2}, "context: 0 is not at least 1"),
    ]
}
