"""Aria, text only: configs beyond the small one."""

VARIANTS = {
    "biased": {"attention_bias": True, "moe_num_shared_experts": 1, "num_key_value_heads": None, "head_dim": None},
    "one-kv-head": {
        "hidden_size": 36,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "tie_word_embeddings": True,
        "moe_num_experts": 3,
    },
}

REFUSED = {
    "aria_text": [
        ({"mlp_bias": True}, "mlp_bias: True changes what the model computes"),
        ({"num_experts_per_tok": 2}, "num_experts_per_tok: is 2, and moe_topk is 3; keep one of them"),
        ({"num_experts": 4}, "num_experts: is 4, and moe_num_experts is 5; keep one of them"),
    ]
}
