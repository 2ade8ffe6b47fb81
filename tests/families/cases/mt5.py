"""mT5: what its presets are, and configs beyond its own small one."""

SIZES = {
    "mt5-small": (512, 8, 6, 6, 64, 1024, 250112, 1024, 1e-06, False),
    "mt5-base": (768, 12, 12, 12, 64, 2048, 250112, 1024, 1e-06, False),
    "mt5-large": (1024, 24, 16, 16, 64, 2816, 250112, 1024, 1e-06, False),
    "mt5-xl": (2048, 24, 32, 32, 64, 5120, 250112, 1024, 1e-06, False),
    "mt5-xxl": (4096, 24, 64, 64, 64, 10240, 250112, 1024, 1e-06, False),
}

FACTS = {
    "mt5-small": {
        "head.scale": 1.0,
        "0/ffn.kind": "geglu",
        "0/ffn.form": "tanh",
        "0/attention.scale": 1.0,
        "0/position.shared": True,
    }
}

VARIANTS = {
    "tied": {"tie_word_embeddings": True, "num_heads": 5, "d_kv": 16},
    "relu": {"feed_forward_proj": "relu", "num_decoder_layers": None},
}

RELEASED = {"mt5": {"output_past": True, "dense_act_fn": "gelu_new", "is_gated_act": True}}

REFUSED = {"mt5": [({"feed_forward_proj": "gated-mish"}, "feed_forward_proj: 'gated-mish' is a feed-forward")]}
