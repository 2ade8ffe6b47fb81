"""Command A and Command R7B: what its presets are, and configs beyond its own small one."""

SIZES = {
    "command-r7b": (4096, 32, 32, 8, 128, 14336, 256000, 131072, 1e-05, True),
    "command-a": (12288, 64, 96, 8, 128, 36864, 256000, 262144, 1e-05, True),
}

FACTS = {
    name: {
        "2/attention.pattern": "window(4096)",
        "3/attention.pattern": "causal",
        "2/position.kind": "rope",
        "2/position.theta": 50000.0,
        "2/position.layout": "interleaved",
        "3/position.kind": "none",
        "4/position.kind": "rope",
        "0/norm.bias": False,
        "0/block.wiring": "parallel",
        "head.scale": 0.25,
    }
    for name in SIZES
}

VARIANTS = {
    "every-second": {"sliding_window_pattern": 2, "num_key_value_heads": 1, "attention_bias": True},
    "layer-types": {
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention", "full_attention"],
        "num_key_value_heads": None,
    },
    "all-full": {"layer_types": ["full_attention"] * 5, "tie_word_embeddings": False},
    "all-local": {"layer_types": ["sliding_attention"] * 5, "num_attention_heads": 2, "num_key_value_heads": 2},
}

RELEASED = {
    "cohere2": {
        "head_dim": 8,
        "layer_switch": 4,
        "order_of_interleaved_layers": "local_attn_first",
        "position_embedding_type": "rope_gptj",
        "rotary_pct": 1.0,
        "use_embedding_sharing": True,
        "use_gated_activation": True,
        "use_parallel_block": True,
        "use_parallel_embedding": True,
        "use_qk_norm": False,
        "cache_implementation": "hybrid",
        "sliding_window_pattern": 4,
    }
}

REFUSED = {
    "cohere2": [
        ({"head_dim": 16}, "head_dim: 16 is not hidden_size / num_attention_heads"),
        ({"use_qk_norm": True}, "use_qk_norm: True changes"),
        ({"layer_types": ["full_attention"]}, "layer_types: lists 1 layers, but num_hidden_layers is 5"),
        ({"sliding_window": None}, "sliding_window: is missing"),
        ({"sliding_window_pattern": 0}, "sliding_window_pattern: 0 is not at least 1"),
        ({"use_parallel_block": False}, "use_parallel_block: False changes"),
    ]
}
