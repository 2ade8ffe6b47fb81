"""Qwen3 with experts: what its presets are, and configs beyond its own small one."""

SIZES = {
    "qwen3-30b-a3b": (2048, 48, 32, 4, 128, 768, 151936, 40960, 1e-06, False),
    "qwen3-235b-a22b": (4096, 94, 64, 4, 128, 1536, 151936, 40960, 1e-06, False),
}

FACTS = {
    name: {
        "0/ffn.kind": "moe",
        "0/ffn.experts": 128,
        "0/ffn.top_k": 8,
        "0/ffn.normalise": True,
        "0/attention.qk_norm.scope": "head",
        "0/position.theta": 1000000.0,
    }
    for name in SIZES
}

ALSO = {name.replace("qwen", "qwen-"): name for name in SIZES}

VARIANTS = {
    "every-second": {"mlp_only_layers": [], "decoder_sparse_step": 2, "norm_topk_prob": False, "hidden_act": "gelu"},
    "windows": {
        "use_sliding_window": True,
        "sliding_window": 5,
        "mlp_only_layers": None,
        "hidden_size": 36,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "attention_bias": True,
        "tie_word_embeddings": True,
    },
}

RELEASED = {
    "qwen3_moe": {"rope_theta": 1000000.0, "rope_scaling": None, "sliding_window": None, "max_window_layers": 48}
}

REFUSED = {"qwen3_moe": [({"decoder_sparse_step": 0}, "decoder_sparse_step: 0 is not a whole number above 0")]}
