"""OLMoE: configs beyond the small one."""

VARIANTS = {
    "normalised": {"norm_topk_prob": True, "attention_bias": True, "num_key_value_heads": None, "num_experts": 6},
    "one-kv-head": {
        "hidden_size": 36,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "tie_word_embeddings": True,
        "num_experts_per_tok": 1,
    },
}

RELEASED = {"olmoe": {"rope_scaling": None, "router_aux_loss_coef": 0.01, "clip_qkv": None}}

REFUSED = {"olmoe": [({"clip_qkv": 8.0}, "clip_qkv: 8.0 changes what the model computes")]}
