"""NEZHA (Wei et al. 2019): BERT with fixed sine vectors of clipped distances on keys and values.

No public class is left, so no checkpoints are read; the scheme itself is tested against its formula.
"""

from anyformer.families import bert_like as like
from anyformer.families.family import Family, series, sizes


class Nezha(Family, kind="nezha"):
    """NEZHA with BERT's masked-LM head."""

    base = like.BASE | {
        "vocab": 21128,
        "context": 512,
        "position": {"kind": "shaw", "vectors": "sine", "clip": 64},
        "ids": {"pad": 0},
    }
    presets = series("nezha-{}-zh", "NEZHA {}, Chinese (2019)",
        ("base", sizes(768, 12, 12), 101_897_096, "", "",
         "the publisher's config in its own code, and another library's table of pretrained models"),
        ("large", sizes(1024, 24, 16), 325_021_320, "", "", "another library's table of pretrained models"),
        published="no count was found",
        note="counted on BERT's class without its table of positions, as the relative vectors are fixed",
    )  # fmt: skip
