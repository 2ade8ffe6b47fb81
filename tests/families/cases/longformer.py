"""Longformer: what its presets are, and configs beyond its own small one."""

SIZES = {
    "longformer-base": (768, 12, 12, 12, 64, 3072, 50265, 4096, 1e-05, True),
    "longformer-large": (1024, 24, 16, 16, 64, 4096, 50265, 4096, 1e-05, True),
}

FACTS = {
    "longformer-base": {
        "topology": "encoder",
        "embed.token_types": 1,
        "/norm.embedding": True,
        "0/position.kind": "learned",
        "0/position.offset": 2,
        "0/norm.attention_placement": "post",
        "0/attention.pattern": "symmetric_window(256) | global_tokens",
        "11/attention.pattern": "symmetric_window(256) | global_tokens",
        "0/attention.global_projections": True,
        "0/attention.bias": "koqv",
        "0/ffn.kind": "gelu",
        "head.transform": True,
        "head.bias": True,
        "ids.pad": 1,
    }
}

ALSO = {"longformer-base-4096": "longformer-base", "longformer-large-4096": "longformer-large"}

VARIANTS = {
    "one-window": {"attention_window": 6, "hidden_act": "relu", "pad_token_id": 2, "type_vocab_size": 1},
    "untied": {
        "tie_word_embeddings": False, "hidden_size": 30, "num_attention_heads": 5, "attention_window": [6, 6, 12],
    },
}  # fmt: skip

RELEASED = {
    "longformer": {
        "attention_mode": "longformer", "attention_window": [512] * 3, "ignore_attention_mask": False,
        "gradient_checkpointing": False, "sep_token_id": 2,
    }
}  # fmt: skip

REFUSED = {
    "longformer": [
        ({"attention_window": 5}, "attention_window: 5 can't be halved into two sides; it must be even and above 0"),
        ({"attention_window": [4, 0, 4]}, "attention_window: 0 can't be halved"),
        ({"attention_window": [4, 4]}, "attention_window: lists 2 layers, but there are 3"),
        ({"attention_window": [4, 4.5, 4]}, "attention_window: [4, 4.5, 4] is not a whole number, or a list"),
        ({"attention_mode": "tvm"}, "attention_mode: 'tvm' changes"),
        ({"is_decoder": True}, "is_decoder: True changes"),
    ]
}
