"""T5 1.0, whose head is tied and scaled, and 1.1, with a head of its own and a gated feed-forward: what its presets are, and configs beyond its own small one."""

SIZES = {"t5-small": (512, 6, 8, 8, 64, 2048, 32128, 512, 1e-06, True)}

FACTS = {
    "t5-small": {
        "0/attention.scale": 1.0,
        "0/position.buckets": 32,
        "0/position.max_distance": 128,
        "head.scale": 0.0441941738242,
        "0/norm.kind": "rmsnorm",
        "/norm.final": True,
    }
}

VARIANTS = {
    "v1.1": {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    "silu": {"feed_forward_proj": "gated-silu", "num_decoder_layers": None, "d_kv": 8},
}
