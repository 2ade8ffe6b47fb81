"""ERNIE 4.5 with experts: configs beyond the small one."""

VARIANTS = {
    "every-second": {"moe_layer_interval": 2, "moe_num_shared_experts": 0, "tie_word_embeddings": False},
    "one-kv-head": {
        "hidden_size": 36,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "num_hidden_layers": 4,
        "moe_layer_start_index": 0,
        "moe_layer_end_index": 2,
        "moe_num_shared_experts": 1,
    },
}

REFUSED = {"ernie4_5_moe": [({"use_bias": True}, "use_bias: True changes what the model computes")]}
