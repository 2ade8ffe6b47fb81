"""K-EXAONE: configs beyond the small one."""

VARIANTS = {
    "all-global": {
        "layer_types": ["full_attention"] * 3,
        "mlp_layer_types": ["sparse", "dense", "sparse"],
        "norm_topk_prob": False,
        "num_shared_experts": 1,
    },
    "one-kv-head": {
        "hidden_size": 36,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "sliding_window_pattern": 3,
        "first_k_dense_replace": 0,
        "tie_word_embeddings": True,
    },
}

RELEASED = {"exaone_moe": {"n_group": 1, "topk_group": 1}}
