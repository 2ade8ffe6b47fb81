"""DBRX: configs beyond the small one."""

VARIANTS = {
    "one-kv-head": {
        "d_model": 36,
        "n_heads": 3,
        "attn_config": {"kv_n_heads": 1, "rope_theta": 500.0, "clip_qkv": 0.5},
        "ffn_config": {"ffn_hidden_size": 12, "moe_num_experts": 3, "moe_top_k": 2, "ffn_act_fn": {"name": "gelu"}},
    },
    "not-normalised": {
        "attn_config": {"kv_n_heads": 4, "rope_theta": 500.0, "clip_qkv": 4},
        "ffn_config": {
            "ffn_hidden_size": 20, "moe_num_experts": 4, "moe_top_k": 1, "moe_normalize_expert_weights": None,
        },
    },
}  # fmt: skip

REFUSED = {
    "dbrx": [
        ({"attn_config": {"rope_theta": 3.0}}, "attn_config.rope_theta: is 3.0, and 500.0 elsewhere"),
        ({"ffn_config": {"moe_normalize_expert_weights": 2.0}}, "ffn_config.moe_normalize_expert_weights: 2.0 changes"),
    ]
}

# The class wants a theta there, and by default one expert is chosen, whose score would always be 1.
TOLD = {"dbrx": {"attn_config": {"rope_theta": 10000.0}, "ffn_config": {"moe_top_k": 2}}}
