"""LaMDA (Thoppilan et al. 2022): a decoder with T5's relative bias and gated feed-forwards.

It was never released, so no checkpoints are read; it is tested against the decoder of T5's class, run on its own.
"""

from anyformer.families import t5_like as like
from anyformer.families.family import Family, Preset


class Lamda(Family, kind="lamda"):
    """LaMDA."""

    base = like.BASE | {
        "topology": "decoder",
        "vocab": 32000,
        "context": 1024,
        "ffn": {"kind": "geglu", "form": "tanh"},
        "head": {"kind": "lm", "tied": True, "scale": "1/sqrt(width)"},
        "loss": {},
        "ids": {},
    }
    presets = (
        Preset("lamda-137b", "LaMDA 137B (2022)", like.sizes(8192, 64, 128, 128, 65536), 137_702_158_336,
               published="137B without the embedding, as the paper is generally known to say",
               evidence="sizes, relative bias and gated GELU from the paper as generally known and not read again",
               note="three matrices in the feed-forward give 137.4B, two would give 103B. Not published, and taken "
               "from T5: RMSNorm first with eps 1e-6, unscaled scores, 32 buckets up to 128, a tied and scaled head; "
               "the context is our choice",
               released=False),
    )  # fmt: skip
