"""Reformer: what its presets are, and configs beyond its own small one."""

SIZES = {
    "reformer-enwik8": (1024, 12, 8, 8, 128, 4096, 258, 65536, 1e-12, False),
    "reformer-crime-and-punishment": (256, 6, 2, 2, 64, 512, 320, 524288, 1e-12, False),
}

FACTS = {
    "reformer-enwik8": {
        "0/attention.pattern": "causal & chunked(128, 1)",
        "2/attention.mixer.kind": "lsh",
        "2/attention.mixer.chunk": 256,
        "2/attention.mixer.buckets": 512,
        "2/attention.mixer.rounds": 4,
        "0/block.wiring": "reversible",
        "0/block.merge": "concat",
        "0/position.rows": 128,
        "0/position.row_width": 256,
        "0/attention.bias": "",
        "0/ffn.kind": "relu",
        "0/ffn.bias": True,
    },
    "reformer-crime-and-punishment": {
        "0/attention.pattern": "causal & chunked(64, 1)",
        "1/attention.mixer.kind": "lsh",
        "1/attention.mixer.buckets": [64, 128],
        "1/attention.mixer.rounds": 1,
        "0/position.columns": 1024,
    },
}

VARIANTS = {
    # Documents within one chunk of the LSH layers are exact, with a cache too.
    "one-chunk": {"lsh_attn_chunk_length": 32, "local_num_chunks_before": 2},
    "all-lsh": {"attn_layers": ["lsh", "lsh"], "num_buckets": None, "lsh_num_chunks_before": 2, "num_hashes": 1},
    "all-local": {"attn_layers": ["local", "local"], "axial_pos_embds": False, "hidden_act": "gelu"},
    "one-list": {"num_buckets": [6], "hash_seed": 5, "local_num_chunks_before": 0, "chunk_size_feed_forward": 4},
}

RELEASED = {
    "reformer": {
        "attention_probs_dropout_prob": 0.1,
        "chunk_size_lm_head": 0,
        "intermediate_size": 3072,
        "num_chunks_after": 0,
        "num_chunks_before": 1,
        "num_hidden_layers": 3,
        "output_past": True,
        "axial_norm_std": 1.0,
    }
}

REFUSED = {
    "reformer": [
        ({"is_decoder": False}, "is_decoder: without it this class lets tokens see later ones"),
        ({"attn_layers": ["local", "global"]}, "attn_layers: 'global' is no kind of layer"),
        ({"num_hidden_layers": 7}, "num_hidden_layers: 7 differs from the 3 of attn_layers"),
        ({"lsh_num_chunks_after": 1}, "lsh_num_chunks_after: 1 changes"),
        ({"num_buckets": None, "max_position_embeddings": 65}, "num_buckets: is unset"),
        ({"axial_pos_embds_dim": [10, 10]}, "axial_pos_embds_dim: [10, 10] do not add up to hidden_size=24"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings: True changes"),
    ]
}
