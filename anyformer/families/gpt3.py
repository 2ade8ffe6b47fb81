"""GPT-3 (Brown et al. 2020): GPT-2 at scale, every second layer attending to a band only.

It was never released, so no checkpoints are read; its layers are tested against GPT-2's class.
"""

from anyformer.families.family import Family, Preset
from anyformer.families.gpt2 import GPT2

UNKNOWN = "which layers are banded, and how wide the band is, was not published: every second and 256 are our choice"


def _preset(size: str, width: int, depth: int, heads: int, params: int, published: str, note: str = "") -> Preset:
    return Preset(
        name=f"gpt3-{size}", also=(f"gpt-3-{size}", *(("gpt-3",) if size == "175b" else ())),
        title=f"GPT-3 {size.upper() if size[0].isdigit() else size} (2020)",
        changes={"width": width, "depth": depth, "attention.heads": heads},
        params=params, published=f"{published}, as the paper's appendix is generally known to say",
        evidence="the paper's table of sizes as generally known and not read again; training code of two other projects "
        "restates it",
        note=f"{note}; {UNKNOWN}" if note else UNKNOWN,
        released=False,
    )  # fmt: skip


class GPT3(Family, kind="gpt3"):
    """GPT-3."""

    base = dict(GPT2.base) | {
        "context": 2048,
        "layers": {"order": "dense, banded", "dense": {}, "banded": {"attention": {"pattern": "window(256)"}}},
    }
    presets = (
        _preset("small", 768, 12, 12, 125_226_240, "125M"),
        _preset("medium", 1024, 24, 16, 355_871_744, "356M"),
        _preset("large", 1536, 24, 16, 760_300_032, "760M"),
        _preset("xl", 2048, 24, 16, 1_315_723_264, "1,320M",
                "the table prints 24 heads of 128, which is not the width; 16 of 128 here, as one of the projects has it "
                "(another has 32 of 64); the count does not depend on it"),
        _preset("2.7b", 2560, 32, 32, 2_651_553_280, "2,650M"),
        _preset("6.7b", 4096, 32, 32, 6_658_404_352, "6,660M"),
        _preset("13b", 5120, 40, 40, 12_853_386_240, "12,850M",
                "the table prints a width of 5140 with 40 heads of 128; only 5120 gives the published count"),
        _preset("175b", 12288, 96, 96, 174_604_259_328, "174,600M"),
    )  # fmt: skip
