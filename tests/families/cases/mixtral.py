"""Mixtral: what its presets are, and configs beyond its own small one."""

SIZES = {
    "mixtral-8x7b": (4096, 32, 32, 8, 128, 14336, 32000, 32768, 1e-05, False),
    "mixtral-8x22b": (6144, 56, 48, 8, 128, 16384, 32000, 65536, 1e-05, False),
}

FACTS = {
    name: {"0/ffn.experts": 8, "0/ffn.top_k": 2, "0/ffn.normalise": True, "0/position.theta": 1000000.0}
    for name in SIZES
}

VARIANTS = {
    "wide-heads": {"head_dim": 12, "num_key_value_heads": 4, "sliding_window": None, "num_experts_per_tok": 5},
    "one-kv-head": {
        "hidden_size": 36,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "tie_word_embeddings": True,
        "num_local_experts": 3,
        "hidden_act": "gelu",
    },
}

RELEASED = {"mixtral": {"rope_theta": 1000000.0, "router_jitter_noise": 0.0, "router_aux_loss_coef": 0.02}}
