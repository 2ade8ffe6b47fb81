"""Gopher and Chinchilla: what its presets are. They have no public class."""

SIZES = {
    "gopher-280b": (16384, 80, 128, 128, 128, 65536, 32000, 2048, 1e-06, True),
    "chinchilla-70b": (8192, 80, 64, 64, 128, 32768, 32000, 2048, 1e-06, True),
}

FACTS = {
    "gopher-280b": {
        "0/position.kind": "xl",
        "0/position.shared": False,
        "0/norm.kind": "rmsnorm",
        "0/norm.attention_placement": "pre",
        "0/attention.bias": "",
    }
}
