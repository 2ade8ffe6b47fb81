"""ALBERT with its masked-LM head: what its presets are, and configs beyond its own small one."""

SIZES = {
    "albert-base-v2": (768, 12, 12, 12, 64, 3072, 30000, 512, 1e-12, True),
    "albert-large-v2": (1024, 24, 16, 16, 64, 4096, 30000, 512, 1e-12, True),
    "albert-xlarge-v2": (2048, 24, 16, 16, 128, 8192, 30000, 512, 1e-12, True),
    "albert-xxlarge-v2": (4096, 12, 64, 64, 64, 16384, 30000, 512, 1e-12, True),
}

FACTS = {
    "albert-base-v2": {
        "topology": "encoder",
        "/layers.shared": (0,) * 12,
        "embed.width": 128,
        "embed.project": "last",
        "embed.token_types": 2,
        "0/ffn.kind": "gelu_tanh",
        "head.activation": "gelu_tanh",
    }
}

VARIANTS = {
    # As all released models: one layer for all.
    "one-layer": {"num_hidden_groups": 1, "inner_group_num": 1, "hidden_act": "gelu"},
    "unshared": {"num_hidden_groups": 3, "inner_group_num": 1, "embedding_size": 40},
}

RELEASED = {
    "albert": {
        "net_structure_type": 0,
        "num_memory_blocks": 0,
        "gap_size": 0,
        "down_scale_factor": 1,
        "layers_to_keep": [],
        "classifier_dropout_prob": 0.1,
    }
}

REFUSED = {
    "albert": [
        ({"embedding_size": 32}, "embedding_size: is the model's width"),
        ({"num_hidden_groups": 4}, "num_hidden_groups: 4 are more than 3 layers"),
        ({"num_hidden_groups": 3}, "inner_group_num: 2 with as many groups as layers"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings: false goes with a table as wide"),
        ({"num_memory_blocks": 2}, "num_memory_blocks: 2 changes"),
    ]
}
