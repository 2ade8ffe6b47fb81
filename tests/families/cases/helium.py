"""Helium 1: configs beyond its own small one."""

VARIANTS = {
    "biased": {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 4},
    "one-kv-head": {"num_key_value_heads": 1, "hidden_size": 36, "num_attention_heads": 3, "head_dim": 12},
}

REFUSED = {"helium": [({"head_dim": 12}, "head_dim: 12 is not hidden_size / num_attention_heads")]}
