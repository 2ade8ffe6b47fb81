"""Flint: configs beyond the small one."""

VARIANTS = {
    "listed": {
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention"],
        "mlp_only_layers": [],
        "decoder_sparse_step": 2,
        "norm_topk_prob": False,
        "attention_bias": True,
    },
    "one-kv-head": {
        "hidden_size": 36,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "num_hidden_layers": 3,
        "mlp_only_layers": None,
        "tie_word_embeddings": True,
    },
}
