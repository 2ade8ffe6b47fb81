"""ModernBERT as a decoder: configs beyond its own small one."""

VARIANTS = {
    "biased": {
        "attention_bias": True, "mlp_bias": True, "norm_bias": True, "classifier_bias": True, "decoder_bias": False,
        "classifier_activation": "relu", "num_hidden_layers": 3, "num_attention_heads": 1,
    },
    "untied": {
        "tie_word_embeddings": False, "hidden_activation": "silu", "hidden_size": 30, "num_attention_heads": 5,
        "global_attn_every_n_layers": 2, "local_attention": 7, "global_rope_theta": 700.0, "local_rope_theta": 30.0,
    },
    "scaled": {
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 900.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 40.0},
        },
    },
}  # fmt: skip
