"""PaLM (Chowdhery et al. 2022): attention and SwiGLU in parallel on one norm, one key for all heads, no biases."""

from __future__ import annotations

from anyformer.families.family import Family, Preset
from anyformer.families.llama_like import sizes

UNKNOWN = "eps and how RoPE pairs dimensions are not published; here our LayerNorm's 1e-5 and halves"


def _preset(size: str, width: int, depth: int, heads: int, params: int, rounded: str, more: str, note: str) -> Preset:
    return Preset(
        name=f"palm-{size}",
        title=f"PaLM {size.upper()} (2022)",
        changes=sizes(width, depth, heads, 1, 4 * width, 256000, 2048) | {"attention.head_dim": 256},
        params=params,
        published=f"only rounded, to {rounded}, in the paper's table as generally known",
        evidence=f"general knowledge of the paper, not read again{more}",
        note=note,
    )


class PaLM(Family, kind="palm"):
    """PaLM. No class of it was released; Cohere's, with one key, computes the same but for RoPE's pairs."""

    base = {
        "attention": {"heads": 1},
        # The paper's formulas write LayerNorm and say that nothing has a bias; tables that say RMSNorm don't say why.
        "norm": {"kind": "layernorm", "eps": 1e-5, "bias": False},
        "position": {"kind": "rope", "theta": 1e4},
        "ffn": {"kind": "swiglu"},
        "block": {"wiring": "parallel"},
        "head": {"kind": "lm", "tied": True, "scale": "1/sqrt(width)"},
        "init": {"kind": "fan_in"},
        "loss": {"z": 1e-4},
    }
    presets = (
        _preset("8b", 4096, 32, 16, 8_632_012_800, "8.63B", "", UNKNOWN),
        _preset("62b", 8192, 64, 32, 62_495_662_080, "62.50B", "", UNKNOWN),
        _preset("540b", 18432, 118, 48, 540_356_474_880, "540.35B", "; a page about it repeats the sizes",
                f"heads times 256 is two thirds of the width; {UNKNOWN}"),
    )  # fmt: skip
