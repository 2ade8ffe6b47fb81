"""Command R and R+: what its presets are, and configs beyond its own small one."""

SIZES = {
    "command-r": (8192, 40, 64, 64, 128, 22528, 256000, 131072, 1e-05, True),
    "command-r-08-2024": (8192, 40, 64, 8, 128, 24576, 256000, 131072, 1e-05, True),
    "command-r-plus": (12288, 64, 96, 8, 128, 33792, 256000, 131072, 1e-05, True),
}

FACTS = {
    "command-r": {
        "0/position.theta": 8000000.0,
        "0/position.layout": "interleaved",
        "0/norm.kind": "layernorm",
        "0/norm.bias": False,
        "0/block.wiring": "parallel",
        "0/ffn.kind": "swiglu",
        "head.scale": 0.0625,
    },
    "command-r-08-2024": {"0/position.theta": 4000000.0},
    "command-r-plus": {
        "0/position.theta": 75000000.0,
        "0/attention.qk_norm.kind": "layernorm",
        "0/attention.qk_norm.scope": "heads",
        "0/attention.qk_norm.bias": False,
        "head.scale": 0.833333333333,
    },
}

ALSO = {"command-r-v01": "command-r", "command-r+": "command-r-plus"}

VARIANTS = {
    "no-head-norms": {"use_qk_norm": False, "num_key_value_heads": None, "attention_bias": True},
    "untied": {"tie_word_embeddings": False, "num_attention_heads": 2, "num_key_value_heads": 1},
    # What stands nearest to PaLM: one key, logits by the root of the width, heads that don't add up to the width.
    "palm": {
        "use_qk_norm": False,
        "num_key_value_heads": 1,
        "head_dim": 12,
        "logit_scale": 32**-0.5,
        "rope_theta": 10000.0,
        "initializer_range": 0.02,
    },
    "linear": {"rope_scaling": {"type": "linear", "factor": 3.0}},
}

RELEASED = {"cohere": {"model_max_length": 131072, "rope_scaling": None}}
