"""gpt-oss: what its presets are, and configs beyond its own small one."""

SIZES = {
    "gpt-oss-20b": (2880, 24, 64, 8, 64, 2880, 201088, 131072, 1e-05, False),
    "gpt-oss-120b": (2880, 36, 64, 8, 64, 2880, 201088, 131072, 1e-05, False),
}

FACTS = {
    name: {
        "0/attention.pattern": "window(128)",
        "1/attention.pattern": "causal",
        "0/attention.mixer.sinks": True,
        "0/ffn.experts": experts,
        "0/ffn.top_k": 4,
        "0/ffn.router_bias": True,
        "0/ffn.expert.clamp": 7.0,
        "0/ffn.expert.offset": 1.0,
        "0/position.theta": 150000.0,
        "0/position.scaling.truncate": False,
        "0/norm.gain_at": "before_cast",
    }
    for name, experts in (("gpt-oss-20b", 32), ("gpt-oss-120b", 128))
}

VARIANTS = {
    "no-table": {"rope_scaling": None, "num_local_experts": 3, "num_experts_per_tok": 2, "num_key_value_heads": 4},
    "all-local": {
        "layer_types": ["sliding_attention"] * 3,
        "hidden_size": 36,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "attention_bias": False,
        "rope_scaling": {"rope_type": "default"},
    },
}

RELEASED = {"gpt_oss": {"experts_per_token": 4, "initial_context_length": 4096}}

REFUSED = {"gpt_oss": [({"swiglu_alpha": 1.0}, "swiglu_alpha: 1.0 changes what the model computes")]}
