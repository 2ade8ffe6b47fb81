"""Ministral 8B: configs beyond its own small one."""

VARIANTS = {
    "some-windows": {"layer_types": ["full_attention", "sliding_attention", "full_attention"]},
    "no-window": {
        "layer_types": ["full_attention"] * 3,
        "num_key_value_heads": 4,
        "head_dim": 8,
        "tie_word_embeddings": True,
    },
}
