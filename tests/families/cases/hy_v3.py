"""Hy3: configs beyond the small one."""

VARIANTS = {
    "listed": {
        "mlp_layer_types": ["sparse", "dense", "sparse"],
        "attention_bias": True,
        "num_shared_experts": 1,
        "enable_moe_fp32_combine": False,
        "router_scaling_factor": 1.0,
    },
    "one-kv-head": {"hidden_size": 36, "num_attention_heads": 3, "num_key_value_heads": 1, "tie_word_embeddings": True},
}

REFUSED = {
    "hy_v3": [
        ({"mlp_bias": True}, "mlp_bias: True changes what the model computes"),
        ({"mlp_layer_types": ["sparse"]}, "mlp_layer_types: lists 1 layers, but there are 3"),
    ]
}
