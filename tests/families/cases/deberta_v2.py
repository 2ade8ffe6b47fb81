"""DeBERTa v2 and v3 with their masked-LM head: what their presets are, and configs beyond the small one."""

SIZES = {
    "deberta-v3-xsmall": (384, 12, 6, 6, 64, 1536, 128100, 512, 1e-07, True),
    "deberta-v3-small": (768, 6, 12, 12, 64, 3072, 128100, 512, 1e-07, True),
    "deberta-v3-base": (768, 12, 12, 12, 64, 3072, 128100, 512, 1e-07, True),
    "deberta-v3-large": (1024, 24, 16, 16, 64, 4096, 128100, 512, 1e-07, True),
}

FACTS = {
    "deberta-v3-base": {
        "topology": "encoder",
        "0/position.kind": "disentangled",
        "0/position.buckets": 256,
        "0/position.max_distance": 512,
        "0/position.norm.kind": "layernorm",
        "embed.token_types": 0,
        "0/attention.bias": "koqv",
    }
}

VARIANTS = {
    # Clipped distances, and positions that are added too.
    "clipped": {
        "position_buckets": -1,
        "max_relative_positions": 9,
        "norm_rel_ebd": "none",
        "position_biased_input": True,
        "type_vocab_size": 0,
    },
    # As the public class is without any setting: no distances at all.
    "plain": {"relative_attention": False, "pos_att_type": None, "position_biased_input": True, "norm_rel_ebd": "none"},
    # One term, so that heads of 8 have a scale of 1/4.
    "one-way": {"hidden_size": 32, "pos_att_type": "c2p", "position_buckets": 16, "max_relative_positions": -1},
}

RELEASED = {
    "deberta-v2": {
        "pooler_dropout": 0,
        "pooler_hidden_act": "gelu",
        "pooler_hidden_size": 48,
        "pos_att_type": "p2c|c2p",
    }
}

REFUSED = {
    "deberta-v2": [
        ({"conv_kernel_size": 3}, "conv_kernel_size: 3 changes"),
        ({"share_att_key": False}, "share_att_key: false has further projections"),
        ({"pos_att_type": None}, "pos_att_type: None is not a choice of c2p, p2c"),
        ({"pos_att_type": ["p2p"]}, "pos_att_type: ['p2p'] is not a choice of c2p, p2c"),
        ({"embedding_size": 20}, "embedding_size: 20 is another size than the model's; it must be 48"),
        ({"position_buckets": 7}, "position.buckets: 7 is not an even number"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings: false is not read"),
        ({"z_steps": 2}, "z_steps: 2 changes"),
    ]
}
