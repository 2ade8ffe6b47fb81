"""AFM-4.5B: configs beyond its own small one."""

VARIANTS = {
    "biased": {"attention_bias": True, "mlp_bias": True, "head_dim": None, "tie_word_embeddings": True},
    "yarn": {
        "num_key_value_heads": 1,
        "rope_scaling": {"rope_type": "yarn", "factor": 20.0, "original_max_position_embeddings": 16},
    },
}
