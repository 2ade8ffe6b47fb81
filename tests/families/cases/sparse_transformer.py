"""The Sparse Transformer: what its preset is. It has no public class."""

SIZES = {"sparse-transformer-enwik8": (512, 30, 8, 8, 64, 2048, 256, 12288, 1e-05, False)}

FACTS = {
    "sparse-transformer-enwik8": {
        "0/attention.pattern": "causal & fixed(128, 32)",
        "29/attention.pattern": "causal & fixed(128, 32)",
        "0/position.kind": "axial",
        "0/position.join": "sum",
        "0/norm.attention_placement": "pre",
        "0/ffn.kind": "gelu_quick",
        "0/ffn.bias": True,
        "0/attention.bias": "",
    }
}
