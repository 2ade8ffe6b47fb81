"""Write the pages of the finished studies and docs/claims.md, from studies/*/results.json; runs nothing."""

from __future__ import annotations

import math
import sys
from pathlib import Path

from anyformer.lab.markdown import Judged, claims_page, judged_claims, study_page
from anyformer.lab.plots import draw_all
from anyformer.lab.report import write_report
from anyformer.lab.results import FILE, Results
from anyformer.lab.rope_decay import relative_bound

HERE = Path(__file__).resolve().parent
STUDIES, PAGE = HERE.parent / "studies", HERE / "claims.md"
KEPT = ("final.png", "loss-by-tokens.png", "loss-by-length.png", "quality-by-decode-cost.png")
"""Pictures of a study that its page shows; all others can be drawn again from results.json."""
ORDER = (
    "norms", "norm-transfer", "norm-kind", "ffn", "ffn-bias", "positions", "position-mixtures", "heads", "decoding",
    "uptraining", "wiring", "windows", "stability", "packing", "optimizers", "tying", "shape",
)  # fmt: skip
INTRODUCTION = """Sentences that people repeat about Transformers, each judged by a study of small models: what the paper says, whether we
agree, and the interval of the difference. The models have about a million parameters and see 2.5 million tokens, so a
verdict is about that scale and no other; where a study could not have seen an effect of a plausible size, it says that it
can't tell. Differences are paired by seed (5 seeds), judged with a correction for the claims of the same study
([how](lab.md#statistics)), and every page has the command that repeats it. Made by `python docs/make.py claims`."""
DISTANCES = (1, 8, 64, 256, 1024)


def rope_decay() -> Judged:
    """The one claim that needs no run: a closed form."""
    bound = dict(zip(DISTANCES, relative_bound(DISTANCES, head_dim=128, theta=10_000.0), strict=True))
    falls = all(bound[a] > bound[b] for a, b in zip(DISTANCES, DISTANCES[1:], strict=False))
    shown = ", ".join(f"{distance}: {value:.2f}" for distance, value in bound.items())
    return Judged(
        study="positions", claim="RoPE's bound on the inner product decays with the distance",
        paper="Su et al. 2021, section 3.4.3, arXiv:2104.09864", verdict="agrees" if falls else "differs",
        interval=f"closed form, head_dim 128, by distance {shown}", words="", command="",
    )  # fmt: skip


def studies() -> dict[str, Path]:
    """Folders of finished studies, in the order of the page."""
    found = {place.parent.name: place.parent for place in STUDIES.glob(f"*/{FILE}")}
    known = [name for name in ORDER if name in found]
    return {name: found[name] for name in [*known, *sorted(found.keys() - {*known})]}


def main() -> None:
    """Write them all."""
    rows: list[Judged] = []
    for name, folder in studies().items():
        results = Results.read(folder)
        for place in draw_all(results, folder):
            if place.name not in KEPT and not (place.name.startswith("sweep-") and place.suffix == ".png"):
                place.unlink()
        pictures = sorted(place.name for place in folder.glob("*.png"))
        write_report(results, folder)
        (folder / "README.md").write_text(study_page(results, pictures=pictures), encoding="utf-8")
        rows += judged_claims(name, results)
        if name == "positions":
            rows.append(rope_decay())
        size = sum(place.stat().st_size for place in folder.iterdir()) / 1000
        sys.stdout.write(f"{name}: {math.ceil(size)} kB\n")
    PAGE.write_text(claims_page(rows, introduction=INTRODUCTION), encoding="utf-8")
