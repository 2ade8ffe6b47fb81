"""The Sparse Transformer (Child et al. 2019): bytes, blocks of 128 with columns that sum them up, positions on a grid.

It was never released, so no checkpoints are read; its layers are tested against GPT-2's class, which is given the masks.
"""

from anyformer.families.family import Family, Preset


class SparseTransformer(Family, kind="sparse_transformer"):
    """The Sparse Transformer for text."""

    base = {
        "norm": {"kind": "layernorm", "eps": 1e-5},
        "ffn": {"kind": "gelu_quick", "bias": True},
        "init": {"kind": "gpt2", "std": 0.02},
    }
    presets = (
        Preset("sparse-transformer-enwik8", "Sparse Transformer enwik8 (2019)",
               {"vocab": 256, "width": 512, "depth": 30, "context": 12288, "attention.heads": 8,
                "attention.pattern": "causal & fixed(128, 32)",
                "position": {"kind": "axial", "rows": 96, "columns": 128, "join": "sum"}}, 94_887_936,
               published="95M, as the paper's table is generally known to say",
               evidence="layers, heads, width, stride, columns and context as the paper is generally known to say, and "
               "not read again; the patterns also in the publisher's code",
               note="both sets of positions in one head (merged), the same in all heads: the paper also tried heads "
               "with columns of their own and does not say which this model has. That attention has no biases, eps and "
               "the init are our choice",
               released=False),
    )  # fmt: skip
