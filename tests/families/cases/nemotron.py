"""Nemotron-4 and Minitron: what its presets are, and configs beyond its own small one."""

SIZES = {
    "nemotron-4-15b": (6144, 32, 48, 8, 128, 24576, 256000, 4096, 1e-05, False),
    "nemotron-4-340b": (18432, 96, 96, 8, 192, 73728, 256000, 4096, 1e-05, False),
    "minitron-4b": (3072, 32, 24, 8, 128, 9216, 256000, 4096, 1e-05, False),
    "minitron-8b": (4096, 32, 48, 8, 128, 16384, 256000, 4096, 1e-05, False),
}

SHARED = {
    "0/norm.kind": "layernorm",
    "0/norm.gain": "one_plus",
    "0/norm.bias": True,
    "0/ffn.kind": "relu2",
    "0/ffn.bias": False,
    "0/attention.bias": "",
    "0/position.theta": 10000.0,
    "0/position.layout": "half",
    "0/position.dims": 64,
}
FACTS = {name: SHARED for name in SIZES} | {"nemotron-4-340b": SHARED | {"0/position.dims": 96}}

VARIANTS = {
    "one-kv-head": {"hidden_size": 48, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": None},
    "biased": {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 4, "tie_word_embeddings": True},
    "whole-heads": {
        "partial_rotary_factor": 1.0,
        "hidden_act": "gelu",
        "rope_scaling": {"type": "linear", "factor": 2.0},
    },
}

RELEASED = {"nemotron": {"partial_rotary_factor": 0.5, "rope_theta": 10000, "rope_scaling": None}}

REFUSED = {"nemotron": [({"hidden_act": "xielu"}, "hidden_act: 'xielu' is an activation that we don't have")]}
