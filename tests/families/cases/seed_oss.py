"""Seed-OSS: configs beyond its own small one."""

VARIANTS = {
    "biased": {"attention_out_bias": True, "mlp_bias": True, "head_dim": None},
    "output-bias": {"attention_bias": False, "attention_out_bias": True, "num_key_value_heads": 1},
}
