"""Hunyuan-A13B: configs beyond the small one."""

VARIANTS = {
    "no-scaling": {"rope_scaling": None, "rope_theta": 500.0, "attention_bias": True, "moe_topk": 2, "num_experts": 6},
    "one-kv-head": {
        "hidden_size": 36,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "tie_word_embeddings": True,
        "rope_scaling": None,
        "rope_parameters": {"rope_type": "dynamic", "rope_theta": 90.0, "alpha": 3.0, "factor": 1.0},
    },
}

REFUSED = {
    "hunyuan_v1_moe": [
        ({"moe_topk": [3, 3, 2]}, "moe_topk: lists different numbers of chosen experts"),
        ({"num_experts_per_tok": 2}, "num_experts_per_tok: is 2, and moe_topk is [3, 3, 3]; keep one of them"),
    ]
}

# By default there is one expert, of which a router can't choose.
TOLD = {"hunyuan_v1_moe": {"num_experts": 4, "moe_topk": 2, "head_dim": 128}}
