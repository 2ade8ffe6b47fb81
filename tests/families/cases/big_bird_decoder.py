"""BigBird as a decoder: configs beyond its own small one."""

VARIANTS = {
    "relu": {"hidden_act": "relu", "use_bias": False, "rescale_embeddings": True},
    "untied": {"tie_word_embeddings": False, "hidden_size": 30, "num_attention_heads": 5},
}

REFUSED = {
    "big_bird_decoder": [
        ({"attention_type": "block_sparse"}, "attention_type: 'block_sparse' lets tokens of this class")
    ]
}

# By default its blocks are sparse, and see later ones.
TOLD = {"big_bird_decoder": {"attention_type": "original_full"}}
