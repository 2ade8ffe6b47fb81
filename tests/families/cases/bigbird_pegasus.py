"""BigBird-PEGASUS: what its preset is, and configs beyond its own small one."""

SIZES = {"bigbird-pegasus-large": (1024, 16, 16, 16, 64, 4096, 96103, 4096, 1e-05, True)}

FACTS = {
    "bigbird-pegasus-large": {
        "/norm.embedding": False, "/norm.final": True, "0/position.kind": "learned", "0/position.offset": 0,
        "0/norm.attention_placement": "pre", "0/attention.bias": "", "0/attention.pattern": "causal",
    }
}  # fmt: skip

VARIANTS = {
    "sparse-blocks": {"block_size": 2, "num_random_blocks": 2, "use_bias": True},
    "full": {"attention_type": "original_full", "scale_embedding": False, "activation_function": "relu"},
}

REFUSED = {
    "bigbird_pegasus": [
        ({"attention_type": "full"}, "attention_type: 'full' is an attention that the class does not have"),
        ({"block_size": 0}, "block"),
    ]
}
