"""HyperCLOVA X SEED Think: configs beyond its own small one."""

VARIANTS = {
    "pre": {"use_post_norm": False, "attention_multiplier": None, "tie_word_embeddings": False},
    "biased": {"attention_bias": True, "mlp_bias": True, "head_dim": None, "num_key_value_heads": None},
}

SEEDS = {"hyperclovax": 2}
