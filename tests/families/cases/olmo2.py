"""OLMo 2: what its presets are, and configs beyond its own small one."""

SIZES = {"olmo-2-7b": (4096, 32, 32, 32, 128, 11008, 100352, 4096, 1e-06, False)}

FACTS = {
    "olmo-2-7b": {"0/norm.ffn_placement": "output", "0/attention.qk_norm.scope": "whole", "0/position.theta": 500000.0}
}

VARIANTS = {"biased": {"attention_bias": True, "num_key_value_heads": None}}
