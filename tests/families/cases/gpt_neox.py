"""GPT-NeoX-20B, and the Pythia models in the same format: what its presets are, and configs beyond its own small one."""

SIZES = {
    "gpt-neox-20b": (6144, 44, 64, 64, 96, 24576, 50432, 2048, 1e-05, False),
    "pythia-14m": (128, 6, 4, 4, 32, 512, 50304, 2048, 1e-05, False),
    "pythia-31m": (256, 6, 8, 8, 32, 1024, 50304, 2048, 1e-05, False),
    "pythia-70m": (512, 6, 8, 8, 64, 2048, 50304, 2048, 1e-05, False),
    "pythia-160m": (768, 12, 12, 12, 64, 3072, 50304, 2048, 1e-05, False),
    "pythia-410m": (1024, 24, 16, 16, 64, 4096, 50304, 2048, 1e-05, False),
    "pythia-1b": (2048, 16, 8, 8, 256, 8192, 50304, 2048, 1e-05, False),
    "pythia-1.4b": (2048, 24, 16, 16, 128, 8192, 50304, 2048, 1e-05, False),
    "pythia-2.8b": (2560, 32, 32, 32, 80, 10240, 50304, 2048, 1e-05, False),
    "pythia-6.9b": (4096, 32, 32, 32, 128, 16384, 50432, 2048, 1e-05, False),
    "pythia-12b": (5120, 36, 40, 40, 128, 20480, 50688, 2048, 1e-05, False),
}

FACTS = {
    "pythia-70m": {"0/position.dims": 16, "0/block.wiring": "parallel2", "0/ffn.kind": "gelu"},
    "pythia-2.8b": {"0/position.dims": 20},
    "gpt-neox-20b": {
        "0/position.layout": "half",
        "0/position.dims": 24,
        "0/block.wiring": "parallel2",
        "0/ffn.kind": "gelu_tanh",
    },
}

VARIANTS = {
    "odd-heads": {"hidden_size": 36, "num_attention_heads": 3, "rotary_pct": 0.34, "tie_word_embeddings": True},
    "serial": {"use_parallel_residual": False, "attention_bias": False, "hidden_act": "gelu_new"},
    "new-keys": {
        "rotary_pct": None,
        "rotary_emb_base": None,
        "rope_parameters": {"rope_type": "default", "rope_theta": 700.0, "partial_rotary_factor": 0.5},
    },
}
