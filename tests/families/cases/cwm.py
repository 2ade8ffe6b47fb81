"""Code World Model: configs beyond its own small one."""

VARIANTS = {
    "all-local": {"layer_types": ["sliding_attention"] * 3, "num_key_value_heads": 4, "mlp_bias": True},
    "default": {
        "rope_parameters": {"rope_type": "default", "rope_theta": 700.0},
        "layer_types": ["full_attention"] * 3,
    },
}

REFUSED = {
    "cwm": [
        ({"rope_parameters": None, "rope_theta": 1e4}, "rope_theta: is 10000.0 beside the table and 1000000.0 in it"),
        ({"attention_bias": True}, "attention_bias: True changes"),
    ]
}
