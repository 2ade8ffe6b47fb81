"""GPT-NeoX-20B, and the Pythia models in the same format: what its presets are, and configs beyond its own small one."""

SIZES = {"gpt-neox-20b": (6144, 44, 64, 64, 96, 24576, 50432, 2048, 1e-05, False)}

FACTS = {
    "gpt-neox-20b": {
        "0/position.layout": "half",
        "0/position.dims": 24,
        "0/block.wiring": "parallel2",
        "0/ffn.kind": "gelu_tanh",
    }
}

VARIANTS = {
    "serial": {"use_parallel_residual": False, "attention_bias": False, "hidden_act": "gelu_new"},
    "new-keys": {
        "rotary_pct": None,
        "rotary_emb_base": None,
        "rope_parameters": {"rope_type": "default", "rope_theta": 700.0, "partial_rotary_factor": 0.5},
    },
}
