"""ViT with a linear classifier: what its presets are, and configs beyond its own small one."""

SIZES = {
    "vit-b-16": (768, 12, 12, 12, 64, 3072, 0, 197, 1e-12, False),
    "vit-l-16": (1024, 24, 16, 16, 64, 4096, 0, 197, 1e-12, False),
}

FACTS = {
    "vit-b-16": {
        "topology": "encoder",
        "embed.kind": "patches",
        "embed.image": 224,
        "embed.patch": 16,
        "embed.class_token": True,
        "head.kind": "sequence",
        "head.labels": 1000,
        "head.pool": "first",
        "head.dense": False,
        "0/position.kind": "learned",
        "0/norm.attention_placement": "pre",
        "/norm.final": True,
        "0/ffn.kind": "gelu",
    }
}

ALSO = {"vit-b/16": "vit-b-16", "vit-l/16": "vit-l-16"}

VARIANTS = {
    "unbiased": {"qkv_bias": False, "hidden_size": 30, "num_attention_heads": 5, "image_size": [6, 6], "patch_size": 2},
    "relu": {"hidden_act": "relu", "num_channels": 1, "patch_size": 20, "num_attention_heads": 1, "num_labels": 1},
}

RELEASED = {"vit": {"encoder_stride": 16, "image_size": [20, 20], "label2id": {}, "pooler_act": "tanh"}}

REFUSED = {
    "vit": [
        ({"image_size": [20, 30]}, "image_size: [20, 30] is not a whole number, or twice the same one"),
        ({"num_labels": 3, "id2label": {"0": "cat"}}, "num_labels: 3 is not the number of names in id2label, 1"),
        ({"patch_size": 7}, "embed.patch: 7 does not tile an image of 20 pixels"),
    ]
}
