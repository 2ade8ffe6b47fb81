"""ModernBERT: what its presets are, and configs beyond its own small one."""

SIZES = {
    "modernbert-base": (768, 22, 12, 12, 64, 1152, 50368, 8192, 1e-05, True),
    "modernbert-large": (1024, 28, 16, 16, 64, 2624, 50368, 8192, 1e-05, True),
}

FACTS = {
    "modernbert-base": {
        "topology": "encoder",
        "embed.token_types": 0,
        "/norm.embedding": True,
        "/norm.final": True,
        "0/norm.attention_placement": "none",
        "0/norm.ffn_placement": "pre",
        "3/norm.attention_placement": "pre",
        "0/norm.bias": False,
        "0/attention.pattern": "full",
        "1/attention.pattern": "symmetric_window(64)",
        "2/attention.pattern": "symmetric_window(64)",
        "3/attention.pattern": "full",
        "0/position.theta": 160000.0,
        "1/position.theta": 10000.0,
        "0/ffn.kind": "geglu",
        "0/ffn.form": "erf",
        "0/ffn.bias": False,
        "head.transform": True,
        "head.transform_bias": False,
        "head.bias": True,
    }
}

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

RELEASED = {
    "modernbert": {
        "global_attn_every_n_layers": 3, "global_rope_theta": 160000.0, "local_rope_theta": 10000.0,
        "layer_norm_eps": 1e-05, "position_embedding_type": "absolute", "classifier_pooling": "mean",
        "deterministic_flash_attn": False, "reference_compile": None, "repad_logits_with_grad": False,
        "sparse_prediction": False, "sparse_pred_ignore_index": -100, "gradient_checkpointing": False,
    }
}  # fmt: skip

REFUSED = {
    "modernbert": [
        (
            {"rope_scaling": {"type": "linear", "factor": 2.0}},
            "rope_scaling: {'type': 'linear', 'factor': 2.0} changes",
        ),
        ({"local_rope_theta": None}, "local_rope_theta: None is not a finite number"),
        ({"global_attn_every_n_layers": 0}, "global_attn_every_n_layers: 0 is not at least 1"),
        ({"layer_types": ["full_attention"]}, "layer_types: lists 1 layers"),
    ]
}
