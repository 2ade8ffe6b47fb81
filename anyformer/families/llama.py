"""LLaMA and its many relatives (Touvron et al. 2023): RMSNorm first, RoPE in halves, SwiGLU, no biases."""

from __future__ import annotations

from anyformer.families.family import Family, Preset


def sizes(width: int, depth: int, heads: int, kv_heads: int, ffn: int, vocab: int, context: int) -> dict[str, int]:
    """The seven numbers in which these models differ most."""
    return {
        "width": width, "depth": depth, "attention.heads": heads, "attention.kv_heads": kv_heads, "ffn.width": ffn,
        "vocab": vocab, "context": context,
    }  # fmt: skip


class Llama(Family, kind="llama"):
    """LLaMA 1 to 3 and models released in its format."""

    base = {
        "attention": {"heads": 1},
        "norm": {"kind": "rmsnorm", "eps": 1e-5},
        "position": {"kind": "rope", "theta": 1e4},
        "ffn": {"kind": "swiglu"},
        "head": {"kind": "lm"},
        "init": {"kind": "normal", "std": 0.02},
    }
    presets = (
        Preset(
            name="llama-7b", title="LLaMA 7B (2023)",
            changes=sizes(4096, 32, 32, 32, 11008, 32000, 2048) | {"norm.eps": 1e-6},
            params=6_738_415_616, published="6,738,415,616 (released files); the paper rounds to 6.7B",
            evidence="released configs and training code",
        ),
        Preset(
            name="llama-2-70b", title="Llama 2 70B (2023)",
            changes=sizes(8192, 80, 64, 8, 28672, 32000, 4096),
            params=68_976_648_192, published="68,976,648,192 (released files)",
            evidence="released configs", note="69.0B, not 70B",
        ),
        Preset(
            name="llama-3-8b", title="Llama 3 8B (2024)",
            changes=sizes(4096, 32, 32, 8, 14336, 128256, 8192) | {"position.theta": 5e5},
            params=8_030_261_248, published="8,030,261,248 (released files)",
            evidence="released configs",
        ),
        Preset(
            name="smollm2-1.7b", title="SmolLM2 1.7B (2024)",
            changes=sizes(2048, 24, 32, 32, 8192, 49152, 8192) | {"position.theta": 130000.0, "head.tied": True},
            params=1_711_376_384, published="1,711,376,384 (released files)",
            evidence="released configs and training files",
            note="trained with the interleaved RoPE layout, released in halves",
        ),
    )  # fmt: skip
