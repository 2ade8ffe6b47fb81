"""EXAONE 4.0: configs beyond its own small one."""

VARIANTS = {
    "no-window": {"sliding_window": None, "layer_types": ["full_attention"] * 4, "tie_word_embeddings": True},
    "no-position": {"sliding_window_pattern": 1, "num_key_value_heads": 1, "head_dim": 12},
}

RELEASED = {
    "exaone4": {"sliding_window_pattern": "LLLG", "layer_types": ["sliding_attention"] * 3 + ["full_attention"]}
}

REFUSED = {"exaone4": [({"sliding_window_pattern": "LLLG"}, "sliding_window_pattern: 'LLLG' is not a whole number")]}
