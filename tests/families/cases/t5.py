"""T5 1.0, whose head is tied and scaled, and 1.1, with a head of its own and a gated feed-forward: what its presets are, and configs beyond its own small one."""

SIZES = {
    "t5-small": (512, 6, 8, 8, 64, 2048, 32128, 512, 1e-06, True),
    "t5-base": (768, 12, 12, 12, 64, 3072, 32128, 512, 1e-06, True),
    "t5-large": (1024, 24, 16, 16, 64, 4096, 32128, 512, 1e-06, True),
    "t5-3b": (1024, 24, 32, 32, 128, 16384, 32128, 512, 1e-06, True),
    "t5-11b": (1024, 24, 128, 128, 128, 65536, 32128, 512, 1e-06, True),
    "t5-v1.1-small": (512, 8, 6, 6, 64, 1024, 32128, 512, 1e-06, False),
    "t5-v1.1-base": (768, 12, 12, 12, 64, 2048, 32128, 512, 1e-06, False),
    "t5-v1.1-large": (1024, 24, 16, 16, 64, 2816, 32128, 512, 1e-06, False),
    "t5-v1.1-xl": (2048, 24, 32, 32, 64, 5120, 32128, 512, 1e-06, False),
    "t5-v1.1-xxl": (4096, 24, 64, 64, 64, 10240, 32128, 512, 1e-06, False),
}

FACTS = {
    "t5-small": {
        "0/attention.scale": 1.0,
        "0/position.buckets": 32,
        "0/position.max_distance": 128,
        "head.scale": 0.0441941738242,
        "0/norm.kind": "rmsnorm",
        "/norm.final": True,
        "0/ffn.kind": "relu",
    },
    "t5-v1.1-xxl": {"head.scale": 1.0, "0/ffn.kind": "geglu", "0/ffn.form": "tanh", "0/attention.scale": 1.0},
}

VARIANTS = {
    "v1.1": {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    "silu": {"feed_forward_proj": "gated-silu", "num_decoder_layers": None, "d_kv": 8},
    "ten-buckets": {"relative_attention_num_buckets": 10},
    "odd-buckets": {"relative_attention_num_buckets": 7, "relative_attention_max_distance": 16},
    "odd": {"num_heads": 3, "d_kv": 16, "num_decoder_layers": 1},
}
