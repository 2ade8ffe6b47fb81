"""Qwen1.5-MoE and Qwen2-MoE: configs beyond the small one."""

VARIANTS = {
    "no-window": {"use_sliding_window": False, "norm_topk_prob": True, "decoder_sparse_step": 2, "mlp_only_layers": []},
    "one-kv-head": {
        "hidden_size": 36,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "qkv_bias": False,
        "mlp_only_layers": None,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
        "tie_word_embeddings": True,
    },
}

RELEASED = {"qwen2_moe": {"rope_theta": 1000000.0, "sliding_window": 32768, "max_window_layers": 21}}
