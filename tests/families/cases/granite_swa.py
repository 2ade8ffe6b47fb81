"""Granite with windows: configs beyond its own small one."""

VARIANTS = {
    "one-theta": {"layer_rope_theta": None, "attention_bias": True, "mlp_bias": True, "num_key_value_heads": 1},
    "all-global": {
        "num_hidden_layers": 3,
        "layer_types": ["full_attention"] * 3,
        "layer_rope_theta": [70.0, 0, 70.0],
        "rope_scaling": {"type": "linear", "factor": 3.0},
        "tie_word_embeddings": False,
    },
    "no-position": {"num_hidden_layers": 2, "layer_rope_theta": [0, 0]},
}

REFUSED = {"granite_swa": [({"layer_rope_theta": [500.0]}, "layer_rope_theta: lists 1 layers; num_hidden_layers is 4")]}
