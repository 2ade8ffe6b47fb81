"""PaLM, which has no public class of its own: what its presets are, and the class that is nearest."""

SIZES = {
    "palm-8b": (4096, 32, 16, 1, 256, 16384, 256000, 2048, 1e-05, True),
    "palm-62b": (8192, 64, 32, 1, 256, 32768, 256000, 2048, 1e-05, True),
    "palm-540b": (18432, 118, 48, 1, 256, 73728, 256000, 2048, 1e-05, True),
}

FACTS = {
    "palm-540b": {
        "0/block.wiring": "parallel",
        "0/norm.kind": "layernorm",
        "0/norm.bias": False,
        "0/ffn.kind": "swiglu",
        "0/position.theta": 10000.0,
        "head.scale": 0.00736569563736,
    }
}

NEAREST = {"palm-540b": ("cohere", {"position.layout": "interleaved"})}
