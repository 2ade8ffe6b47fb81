"""Granite with experts, windows and sinks: configs beyond the small one."""

VARIANTS = {
    "one-theta": {"layer_rope_theta": None, "rope_theta": 90.0, "shared_intermediate_size": 0, "attention_bias": True},
    "one-kv-head": {
        "hidden_size": 36,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "layer_types": ["full_attention", "full_attention", "sliding_attention"],
        "layer_rope_theta": [0, 0, 0],
        "tie_word_embeddings": False,
    },
}

REFUSED = {"granitemoe_swa": [({"layer_rope_theta": [1.0]}, "layer_rope_theta: lists 1 layers")]}
