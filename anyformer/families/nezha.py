"""NEZHA (Wei et al. 2019): BERT with fixed sine vectors of clipped distances on keys and values.

No public class is left, so no checkpoints are read; the scheme itself is tested against its formula.
"""

from __future__ import annotations

from anyformer.families import bert_like as like
from anyformer.families.family import Family, Preset


def _preset(size: str, width: int, depth: int, heads: int, params: int, evidence: str) -> Preset:
    return Preset(
        name=f"nezha-{size}-zh", title=f"NEZHA {size}, Chinese (2019)",
        changes={"width": width, "depth": depth, "attention.heads": heads},
        params=params, published="no count was found", evidence=evidence,
        note="counted on BERT's class without its table of positions, as the relative vectors are fixed",
    )  # fmt: skip


class Nezha(Family, kind="nezha"):
    """NEZHA with BERT's masked-LM head."""

    base = like.BASE | {
        "vocab": 21128,
        "context": 512,
        "position": {"kind": "shaw", "vectors": "sine", "clip": 64},
        "ids": {"pad": 0},
    }
    presets = (
        _preset("base", 768, 12, 12, 101_897_096,
                "the publisher's config in its own code, and another library's table of pretrained models"),
        _preset("large", 1024, 24, 16, 325_021_320, "another library's table of pretrained models"),
    )  # fmt: skip
