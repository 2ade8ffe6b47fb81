"""MPT: what its presets are, and configs beyond its own small one."""

SIZES = {
    "mpt-7b": (4096, 32, 32, 32, 128, 16384, 50432, 2048, 1e-05, True),
    "mpt-30b": (7168, 48, 64, 64, 112, 28672, 50432, 8192, 1e-05, True),
}

FACTS = {
    "mpt-7b": {
        "0/position.kind": "alibi",
        "0/position.before_scale": False,
        "0/position.slope_base": 8.0,
        "0/norm.bias": False,
        "0/attention.bias": "",
        "0/ffn.kind": "gelu",
        "0/ffn.bias": False,
        "0/block.wiring": "serial",
    }
}

VARIANTS = {
    "power-of-two": {"n_heads": 4, "attn_config": None},
    "scaled": {"n_heads": 3, "attn_config": {"softmax_scale": 0.7}, "tie_word_embeddings": False},
    "one-head": {"n_heads": 1},
}

RELEASED = {
    "mpt": {
        "attn_config": {
            "alibi": True,
            "alibi_bias_max": 8,
            "attn_impl": "torch",
            "attn_pdrop": 0,
            "attn_type": "multihead_attention",
            "attn_uses_sequence_id": False,
            "clip_qkv": None,
            "prefix_lm": False,
            "qk_ln": False,
            "softmax_scale": None,
        },
        "emb_pdrop": 0,
        "embedding_fraction": 1.0,
        "expansion_ratio": 4,
        "init_config": {"init_nonlinearity": "relu", "name": "kaiming_normal_"},
        "init_device": "cpu",
        "learned_pos_emb": True,
        "logit_scale": None,
        "no_bias": True,
        "norm_type": "low_precision_layernorm",
        "resid_pdrop": 0,
        "tokenizer_name": "a/b",
        "verbose": 0,
    }
}

REFUSED = {
    "mpt": [
        ({"attn_config": {"alibi": False}}, "attn_config.alibi: False changes"),
        ({"attn_config": {"alibi_bias_max": 16}}, "attn_config.alibi_bias_max: has no effect in the public class"),
        ({"attn_config": {"qk_ln": True}}, "attn_config.qk_ln: True changes"),
        (
            {"attn_config": {"attn_type": "multiquery_attention"}},
            "attn_config.attn_type: 'multiquery_attention' changes",
        ),
        (
            {"attn_config": {"clip_qvk": 3}},
            "attn_config.clip_qvk: is not a key that we know here; did you mean 'clip_qkv'",
        ),
        ({"logit_scale": "inv_sqrt_d_model"}, "logit_scale: 'inv_sqrt_d_model' changes"),
        ({"no_bias": False}, "no_bias: False changes"),
        ({"expansion_ratio": 3}, "expansion_ratio: 3 changes"),
    ]
}
