"""Falcon 1 and 2, and the RefinedWeb models: what its presets are, and configs beyond its own small one."""

SIZES = {
    "falcon-7b": (4544, 32, 71, 1, 64, 18176, 65024, 2048, 1e-05, True),
    "falcon-40b": (8192, 60, 128, 8, 64, 32768, 65024, 2048, 1e-05, True),
    "falcon-180b": (14848, 80, 232, 8, 64, 59392, 65024, 2048, 1e-05, True),
    "falcon2-11b": (4096, 60, 32, 8, 128, 16384, 65024, 8192, 1e-05, False),
}

FACTS = {
    "falcon-7b": {"0/block.wiring": "parallel", "0/ffn.kind": "gelu", "0/ffn.bias": False, "0/attention.bias": ""},
    "falcon-40b": {"0/block.wiring": "parallel2", "0/position.theta": 10000.0, "0/position.layout": "half"},
    "falcon-180b": {"0/block.wiring": "parallel2"},
    "falcon2-11b": {"0/block.wiring": "parallel", "0/position.theta": 500042.0},
}

ALSO = {"falcon-11b": "falcon2-11b", "falcon-2-11b": "falcon2-11b"}

VARIANTS = {
    "7b": {
        "new_decoder_architecture": False,
        "num_kv_heads": None,
        "hidden_size": 30,
        "num_attention_heads": 5,
        "ffn_hidden_size": None,
    },
    "11b": {"num_ln_in_parallel_attn": 1, "tie_word_embeddings": False},
    "rw": {
        "new_decoder_architecture": False,
        "multi_query": False,
        "parallel_attn": False,
        "alibi": True,
        "bias": True,
        "num_kv_heads": None,
    },
    "serial-one-key": {
        "new_decoder_architecture": False,
        "parallel_attn": False,
        "bias": True,
        "activation": "gelu_pytorch_tanh",
    },
    "all-keys": {"num_kv_heads": 6, "alibi": True},
    "one-key": {
        "num_kv_heads": 1,
        "rope_theta": None,
        "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 700.0},
    },
}

RELEASED = {"falcon": {"apply_residual_connection_post_layernorm": False, "n_embed": 36, "ff_factor": 4}}

REFUSED = {
    "falcon": [
        ({"apply_residual_connection_post_layernorm": True}, "apply_residual_connection_post_layernorm: True changes"),
        ({"parallel_attn": False}, "parallel_attn: false does not go with new_decoder_architecture"),
        ({"num_ln_in_parallel_attn": 3}, "num_ln_in_parallel_attn: 3 norms are more than a block has branches"),
        (
            {"new_decoder_architecture": False, "num_ln_in_parallel_attn": 2},
            "num_ln_in_parallel_attn: 2 goes with new_decoder_architecture only",
        ),
        (
            {"new_decoder_architecture": False, "multi_query": False},
            "num_kv_heads: groups of heads go with new_decoder_architecture only",
        ),
    ]
}
