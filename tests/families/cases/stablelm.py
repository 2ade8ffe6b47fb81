"""StableLM: what its presets are, and configs beyond its own small one."""

SIZES = {
    "stablelm-3b-4e1t": (2560, 32, 32, 32, 80, 6912, 50304, 4096, 1e-05, False),
    "stablelm-2-12b": (5120, 40, 32, 8, 160, 13824, 100352, 4096, 1e-05, False),
}

SHARED = {
    "0/norm.kind": "layernorm",
    "0/norm.bias": True,
    "0/attention.bias": "",
    "0/position.layout": "half",
    "0/position.theta": 10000.0,
    "0/ffn.kind": "swiglu",
}
FACTS = {
    "stablelm-3b-4e1t": SHARED | {"0/block.wiring": "serial", "0/position.dims": 20},
    "stablelm-2-12b": SHARED
    | {
        "0/block.wiring": "parallel",
        "0/position.dims": 40,
        "0/attention.qk_norm.kind": "layernorm",
        "0/attention.qk_norm.scope": "heads",
        "0/attention.qk_norm.bias": False,
        "0/attention.qk_norm.when": "before",
    },
}

ALSO = {"stablelm-3b": "stablelm-3b-4e1t"}

VARIANTS = {
    "serial": {"qk_layernorm": False, "use_parallel_residual": False, "use_qkv_bias": True, "num_key_value_heads": 4},
    "one-kv-head": {
        "hidden_size": 48,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "use_parallel_residual": False,
        "partial_rotary_factor": 0.5,
        "tie_word_embeddings": True,
    },
}

RELEASED = {"stablelm": {"hidden_dropout": 0.0, "rope_scaling": None, "rope_theta": 10000}}

REFUSED = {"stablelm": [({"hidden_dropout": 0.1}, "hidden_dropout: 0.1 changes")]}
