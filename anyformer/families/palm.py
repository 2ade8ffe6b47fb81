"""PaLM (Chowdhery et al. 2022): attention and SwiGLU in parallel on one norm, one key for all heads, no biases."""

from anyformer.families.family import Family, series, sizes

UNKNOWN = "eps and how RoPE pairs dimensions are not published; here our LayerNorm's 1e-5 and halves"


KNOWN = "general knowledge of the paper, not read again"
ROUNDED = "only rounded, to {}, in the paper's table as generally known"


class PaLM(Family, kind="palm"):
    """PaLM. No class of it was released; Cohere's, with one key, computes the same but for RoPE's pairs."""

    base = {
        # The paper's formulas write LayerNorm and say that nothing has a bias; tables that say RMSNorm don't say why.
        "norm": {"kind": "layernorm", "eps": 1e-5, "bias": False},
        "position": {"kind": "rope", "theta": 1e4},
        "ffn": {"kind": "swiglu"},
        "block": {"wiring": "parallel"},
        "head": {"kind": "lm", "tied": True, "scale": "1/sqrt(width)"},
        "init": {"kind": "fan_in"},
        "loss": {"z": 1e-4},
    }
    presets = series("palm-{}", "PaLM {SIZE} (2022)",
        ("8b", sizes(4096, 32, 16, 1, 16384), 8_632_012_800, ROUNDED.format("8.63B")),
        ("62b", sizes(8192, 64, 32, 1, 32768), 62_495_662_080, ROUNDED.format("62.50B")),
        ("540b", sizes(18432, 118, 48, 1, 73728), 540_356_474_880, ROUNDED.format("540.35B"),
         f"heads times 256 is two thirds of the width; {UNKNOWN}", f"{KNOWN}; a page about it repeats the sizes"),
        changes={"vocab": 256000, "context": 2048, "attention.head_dim": 256}, evidence=KNOWN, note=UNKNOWN,
    )  # fmt: skip
