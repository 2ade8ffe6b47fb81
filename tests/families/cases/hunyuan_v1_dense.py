"""Hunyuan, dense: configs beyond its own small one."""

STRETCHED = {"type": "dynamic", "alpha": 50.0, "factor": 1.0, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0}

VARIANTS = {
    "stretched": {"rope_scaling": STRETCHED | {"mscale_all_dim": 1.0}, "attention_bias": True},
    "one-kv-head": {"num_key_value_heads": 1, "head_dim": 8, "tie_word_embeddings": True},
}
