"""Phi-1, Phi-1.5 and Phi-2: what its presets are, and configs beyond its own small one."""

SIZES = {
    "phi-1.5": (2048, 24, 32, 32, 64, 8192, 51200, 2048, 1e-05, False),
    "phi-2": (2560, 32, 32, 32, 80, 10240, 51200, 2048, 1e-05, False),
}

FACTS = {
    "phi-1.5": {
        "0/position.dims": 32,
        "0/block.wiring": "parallel",
        "0/attention.bias": "koqv",
        "0/ffn.kind": "gelu_tanh",
        "0/ffn.bias": True,
        "head.bias": True,
    },
    "phi-2": {"0/position.dims": 32, "0/position.layout": "half"},
}

ALSO = {"phi-1_5": "phi-1.5"}

VARIANTS = {
    "head-norms": {
        "qk_layernorm": True,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "partial_rotary_factor": 0.7,
    },
    "one-key": {"num_key_value_heads": 1, "tie_word_embeddings": True, "partial_rotary_factor": 0.4},
    "whole-heads": {"partial_rotary_factor": 1.0, "hidden_act": "gelu"},
}

RELEASED = {"phi": {"rope_scaling": None, "num_key_value_heads": None, "bos_token_id": None, "eos_token_id": None}}
