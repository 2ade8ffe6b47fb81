"""StarCoder2: what its presets are, and configs beyond its own small one."""

SIZES = {
    "starcoder2-3b": (3072, 30, 24, 2, 128, 12288, 49152, 16384, 1e-05, True),
    "starcoder2-7b": (4608, 32, 36, 4, 128, 18432, 49152, 16384, 1e-05, True),
    "starcoder2-15b": (6144, 40, 48, 4, 128, 24576, 49152, 16384, 1e-05, False),
}

FACTS = {
    "starcoder2-3b": {
        "0/position.theta": 999999.4420358813,
        "0/attention.pattern": "window(4096)",
        "0/attention.bias": "koqv",
        "0/ffn.kind": "gelu_tanh",
        "0/ffn.bias": True,
        "0/norm.kind": "layernorm",
        "0/block.wiring": "serial",
    },
    "starcoder2-7b": {"0/position.theta": 1000000.0},
    "starcoder2-15b": {"0/position.theta": 100000.0},
}

VARIANTS = {
    "no-biases": {"use_bias": False, "sliding_window": None, "num_key_value_heads": 1},
    "untied": {"tie_word_embeddings": False, "hidden_act": "gelu", "num_attention_heads": 3, "num_key_value_heads": 3},
    "linear": {
        "rope_theta": None,
        "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 700.0},
    },
}

RELEASED = {
    "starcoder2": {
        "activation_function": "gelu",
        "attention_softmax_in_fp32": True,
        "layer_norm_epsilon": 1e-05,
        "mlp_type": "default",
        "norm_type": "layer_norm",
        "scale_attention_softmax_in_fp32": True,
        "scale_attn_weights": True,
    }
}

REFUSED = {"starcoder2": [({"norm_type": "rms_norm"}, "norm_type: 'rms_norm' changes")]}
