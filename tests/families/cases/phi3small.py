"""Phi-3-small: what its preset is, and configs beyond its own small one."""

SIZES = {"phi-3-small-8k": (4096, 32, 32, 8, 128, 14336, 100352, 8192, 1e-05, True)}

FACTS = {
    "phi-3-small-8k": {
        "0/attention.pattern": "block_sparse(64, 16, 8, 1)",
        "1/attention.pattern": "causal",
        "30/attention.pattern": "block_sparse(64, 16, 8, 1)",
        "31/attention.pattern": "causal",
        "0/attention.scale": 1 / 128,
        "0/attention.bias": "koqv",
        "0/position.theta": 1e6,
        "0/position.dims": 128,
        "0/norm.kind": "layernorm",
        "0/norm.attention_placement": "pre",
        "0/ffn.kind": "geglu",
        "0/ffn.form": "quick",
        "0/ffn.clamp": 20.0,
        "0/ffn.offset": 1.0,
        "0/ffn.bias": True,
        "embed.scale": 10.0,
        "head.scale": 0.125,
    }
}

ALSO = {"phi-3-small": "phi-3-small-8k"}

VARIANTS = {
    "few-heads": {
        "num_attention_heads": 2, "num_key_value_heads": None, "blocksparse_vert_stride": 5,
        "blocksparse_block_size": 2, "dense_attention_every_n_layers": 3, "mup_use_scaling": False,
    },
    "alike-heads": {
        "blocksparse_homo_head_pattern": True, "blocksparse_num_local_blocks": 1, "num_key_value_heads": 1,
        "dense_attention_every_n_layers": 9, "tie_word_embeddings": False, "gegelu_limit": 0.3,
    },
    "dense": {"dense_attention_every_n_layers": 1, "mup_attn_multiplier": 1.0, "mup_width_multiplier": 1.0},
}  # fmt: skip

RELEASED = {
    "phi3small": {
        "attention_bias": False, "attention_dropout_prob": 0.0, "architectures": ["Phi3SmallForCausalLM"],
        "auto_map": {"AutoConfig": "configuration_phi3_small.Phi3SmallConfig",
                     "AutoModelForCausalLM": "modeling_phi3_small.Phi3SmallForCausalLM"},
        "embedding_dropout_prob": 0.1, "ff_dim_multiplier": None, "ffn_dropout_prob": 0.1, "gegelu_pad_to_256": True,
        "initializer_range": 0.02, "pad_sequence_to_multiple_of_64": True, "reorder_and_upcast_attn": False,
        "blocksparse_triton_kernel_block_size": 64, "rope_position_scale": 1.0, "use_cache": True,
    }
}  # fmt: skip

REFUSED = {
    "phi3small": [
        ({"hidden_act": "gelu"}, "hidden_act: 'gelu' changes"),
        ({"ff_dim_multiplier": 4}, "ff_dim_multiplier: 4 changes"),
        ({"rope_position_scale": 2.0}, "rope_position_scale: 2.0 changes"),
        ({"rope_scaling": {"type": "su"}}, "rope_scaling: {'type': 'su'} changes"),
        ({"dense_attention_every_n_layers": 0}, "dense_attention_every_n_layers: 0 is not at least 1"),
        ({"mup_width_multiplier": 0.0}, "mup_width_multiplier: 0 can't divide logits"),
    ]
}
