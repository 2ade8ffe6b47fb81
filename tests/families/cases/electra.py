"""ELECTRA: configs beyond its own small one."""

VARIANTS = {
    "relu": {"hidden_act": "relu", "num_attention_heads": 1},
    # Of the larger sizes, whose tables are as wide as the model.
    "untied": {"embedding_size": 30, "tie_word_embeddings": False, "hidden_size": 30, "num_attention_heads": 5},
}

RELEASED = {
    "electra": {
        "summary_type": "first", "summary_use_proj": True, "summary_activation": "gelu", "summary_last_dropout": 0.1,
        "position_embedding_type": "absolute",
    }
}  # fmt: skip

REFUSED = {"electra": [({"tie_word_embeddings": False}, "tie_word_embeddings: false goes with a table as wide")]}
