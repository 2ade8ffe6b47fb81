"""SantaCoder and StarCoder: what its presets are, and configs beyond its own small one."""

SIZES = {"starcoder-15b": (6144, 40, 48, 1, 128, 24576, 49152, 8192, 1e-05, True)}

FACTS = {
    "starcoder-15b": {
        "0/position.kind": "learned",
        "0/attention.bias": "koqv",
        "0/ffn.kind": "gelu_tanh",
        "0/norm.attention_placement": "pre",
    }
}

ALSO = {"starcoder": "starcoder-15b"}

VARIANTS = {
    "all-keys": {"multi_query": False, "activation_function": "gelu"},
    "untied": {"tie_word_embeddings": False, "n_inner": None, "n_head": 4},
    "unscaled": {"scale_attn_weights": False, "n_head": 1},
}

RELEASED = {
    "gpt_bigcode": {
        "attention_softmax_in_fp32": True,
        "inference_runner": 0,
        "max_batch_size": None,
        "max_sequence_length": None,
        "pad_key_length": True,
        "pre_allocate_kv_cache": False,
        "scale_attention_softmax_in_fp32": True,
        "summary_type": "cls_index",
        "validate_runner_input": True,
    }
}

REFUSED = {
    "gpt_bigcode": [
        ({"num_key_value_heads": 3}, "num_key_value_heads: 3 is not what multi_query says, 1"),
        ({"add_cross_attention": True}, "add_cross_attention: True changes"),
    ]
}
