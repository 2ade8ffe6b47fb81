"""GLM-4.5 to 4.7: what its presets are, and configs beyond its own small one."""

SIZES = {
    "glm-4.5": (5120, 92, 96, 8, 128, 12288, 151552, 131072, 1e-05, False),
    "glm-4.5-air": (4096, 46, 96, 8, 128, 10944, 151552, 131072, 1e-05, False),
}

FACTS = {
    "glm-4.5": {
        "0/ffn.kind": "swiglu",
        "2/ffn.kind": "swiglu",
        "3/ffn.kind": "moe",
        "91/ffn.experts": 160,
        "91/ffn.width": 1536,
        "91/ffn.scale": 2.5,
        "91/ffn.score": "sigmoid",
        "91/ffn.selection_bias": True,
        "91/ffn.shared_width": 1536,
        "91/attention.qk_norm.eps": 1e-5,
        "91/attention.bias": "kqv",
        "91/position.dims": 64,
    },
    "glm-4.5-air": {
        "0/ffn.kind": "swiglu",
        "1/ffn.kind": "moe",
        "45/ffn.experts": 128,
        "45/ffn.width": 1408,
        "45/ffn.scale": 1.0,
        "45/attention.bias": "kqv",
    },
}

VARIANTS = {
    "all-sparse": {"first_k_dense_replace": 0, "use_qk_norm": False, "norm_topk_prob": False, "attention_bias": False},
    "one-kv-head": {
        "hidden_size": 36,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "first_k_dense_replace": 2,
        "n_shared_experts": 1,
        "tie_word_embeddings": True,
    },
}

RELEASED = {"glm4_moe": {"num_nextn_predict_layers": 1, "rope_scaling": None, "n_group": 1, "topk_group": 1}}

REFUSED = {"glm4_moe": [({"n_group": 2}, "n_group: 2 changes what the model computes")]}

# Without it the class would rotate 21 of 42 dimensions, and then not find them.
TOLD = {"glm4_moe": {"head_dim": 128}}
