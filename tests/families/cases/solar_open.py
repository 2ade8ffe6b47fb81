"""Solar Open: configs beyond the small one."""

VARIANTS = {
    "not-normalised": {"attention_bias": False, "norm_topk_prob": False},
    "one-kv-head": {
        "hidden_size": 36,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "n_shared_experts": 1,
        "routed_scaling_factor": 2.0,
        "tie_word_embeddings": True,
    },
}

RELEASED = {"solar_open": {"intermediate_size": 10240, "rope_scaling": None}}
