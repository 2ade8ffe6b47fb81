"""dots.llm1: configs beyond the small one."""

VARIANTS = {
    "biased": {"attention_bias": True, "norm_topk_prob": False, "first_k_dense_replace": 0, "head_dim": 12},
    "one-kv-head": {
        "hidden_size": 36,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "layer_types": ["full_attention"] * 3,
        "tie_word_embeddings": True,
        "first_k_dense_replace": 2,
        "n_shared_experts": 1,
    },
}

RELEASED = {"dots1": {"n_group": 1, "topk_group": 1, "rope_scaling": None, "max_window_layers": 62}}

REFUSED = {"dots1": [({"n_routed_experts": None}, "n_routed_experts: is missing")]}

# The class has no number of experts of its own.
TOLD = {"dots1": {"n_routed_experts": 128, "num_experts_per_tok": 6, "n_shared_experts": 2}}
