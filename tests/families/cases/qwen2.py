"""Qwen2 and Qwen2.5: what its presets are, and configs beyond its own small one."""

SIZES = {"qwen2-72b": (8192, 80, 64, 8, 128, 29568, 152064, 32768, 1e-05, False)}

FACTS = {"qwen2-72b": {"0/attention.bias": "kqv", "0/position.theta": 1000000.0}}

ALSO = {"qwen-2-72b": "qwen2-72b"}

VARIANTS = {
    "no-window": {"use_sliding_window": False, "tie_word_embeddings": False},
    "layer-types": {
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "max_window_layers": 3,
    },
}
