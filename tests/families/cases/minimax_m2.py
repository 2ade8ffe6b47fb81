"""MiniMax-M2: configs beyond the small one."""

VARIANTS = {
    "whole-heads": {"rotary_dim": None, "num_key_value_heads": 4, "num_experts_per_tok": 2},
    "one-kv-head": {
        "hidden_size": 36,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "rotary_dim": None,
        "rope_theta": None,
        "rope_parameters": {"rope_type": "default", "rope_theta": 90.0, "partial_rotary_factor": 0.5},
        "tie_word_embeddings": True,
    },
}

RELEASED = {
    "minimax_m2": {
        "attn_type_list": [1, 1, 1],
        "qk_norm_type": "per_layer",
        "scoring_func": "sigmoid",
        "shared_intermediate_size": 0,
        "use_qk_norm": True,
        "use_routing_bias": True,
    }
}

REFUSED = {"minimax_m2": [({"attn_type_list": [0, 1, 1]}, "attn_type_list: has a kind of attention other than 1")]}
