"""Gopher (Rae et al. 2021) and Chinchilla (Hoffmann et al. 2022): RMSNorm and Transformer-XL's relative positions.

They were never released, so no checkpoints are read; the scores are tested against XLNet's class, which shares them.
"""

from anyformer.families.family import Family, Preset


def _preset(name: str, title: str, width: int, heads: int, params: int, published: str, note: str) -> Preset:
    return Preset(
        name=name, title=title,
        changes={"width": width, "depth": 80, "attention.heads": heads, "ffn.width": 4 * width},
        params=params, published=published,
        evidence="sizes from the papers' tables as generally known and not read again; norm and positions from an "
        "encyclopaedia",
        note=f"{note}. Not published, and our choice: GELU (GPT-2's), eps 1e-6, a tied head, no biases; the last "
        "digits of the count mean nothing",
        released=False,
    )  # fmt: skip


class Gopher(Family, kind="gopher"):
    """Gopher and Chinchilla."""

    base = {
        "vocab": 32000,
        "context": 2048,
        "norm": {"kind": "rmsnorm", "eps": 1e-6},
        "position": {"kind": "xl"},
        "ffn": {"kind": "gelu_tanh"},
        "head": {"kind": "lm", "tied": True},
        "init": {"kind": "gpt2", "std": 0.02},
    }
    presets = (
        _preset("gopher-280b", "Gopher 280B (2021)", 16384, 128, 279_702_421_504, "the paper rounds to 280B",
                "only with a projection of distances in every layer are there 280B; without them 258B"),
        _preset("chinchilla-70b", "Chinchilla 70B (2022)", 8192, 64, 70_057_992_192, "the paper rounds to 70B",
                "only with a projection of distances in every layer are there 70B; without them 64.7B"),
    )  # fmt: skip
