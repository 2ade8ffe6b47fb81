"""Qwen 1: what its presets are, and the class that is nearest to it."""

SIZES = {
    "qwen-7b": (4096, 32, 32, 32, 128, 11008, 151936, 8192, 1e-06, False),
    "qwen-14b": (5120, 40, 40, 40, 128, 13696, 152064, 8192, 1e-06, False),
}

FACTS = {
    name: {"0/attention.bias": "kqv", "0/position.theta": 10000.0, "0/position.layout": "half", "0/ffn.kind": "swiglu"}
    for name in SIZES
}

NEAREST = {name: ("qwen2", {"attention.head_dim": None}) for name in SIZES}
