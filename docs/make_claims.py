"""Write the pages of the finished studies and docs/claims.md, from studies/*/results.json; runs nothing."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from anyformer.lab.plots.draw import draw_all
from anyformer.lab.report import write_report
from anyformer.lab.report.markdown import Judged, claims_page, judged_claims, study_page, table
from anyformer.lab.results import FILE, Results
from anyformer.lab.rope_decay import relative_bound
from anyformer.lab.scaling.laws import Point, fit, still_wins
from anyformer.lab.scaling.lr_transfer import TransferPoint, transfer
from anyformer.lab.study import Study

HERE = Path(__file__).resolve().parent
STUDIES, PAGE = HERE.parent / "studies", HERE / "claims.md"
KEPT = ("final.png", "loss-by-length.png", "quality-by-decode-cost.png")
"""Pictures of a study that its page shows; all others can be drawn again from results.json."""
ORDER = (
    "norms", "norm-transfer", "norm-kind", "ffn", "ffn-bias", "positions", "position-mixtures", "heads", "decoding",
    "uptraining", "wiring", "windows", "stability", "packing", "optimizers", "tying", "shape",
)  # fmt: skip
INTRODUCTION = """Sentences that people repeat about Transformers, each judged by a study of small models: what the paper says, whether we
agree, and the interval of the difference. Most models have about a million parameters and see 2.5 million tokens (the study's page
says which), so a verdict is about that scale and no other; where a study could not have seen an effect of a plausible size, it says that it
can't tell. All variants of a study have the learning rates of its base, which were the best of five for the base itself
([study](../studies/learning-rate/README.md)) and may be off for others: that is part of what a verdict says. Differences are
paired by seed (5 seeds), judged with a correction for the claims of the same study ([how](lab.md#statistics)), and every
page has the command that repeats it. Made by `python docs/make.py claims`."""
OVERVIEW = """Each is a TOML file and a folder with what it found: a page, report.html, and results.json with all numbers and no weights. The
corpora are those of [recipes/](../recipes/README.md); [docs/lab.md](../docs/lab.md) says how to run one, and
[docs/claims.md](../docs/claims.md) has all verdicts. On the H200 fourteen runs share the device, so a second of training steps
is about a fourteenth of a second by the clock. Made by `python docs/make.py claims`."""
DISTANCES = (1, 8, 64, 256, 1024)


def rope_decay() -> Judged:
    """The one claim that needs no run: a closed form."""
    bound = dict(zip(DISTANCES, relative_bound(DISTANCES, head_dim=128, theta=10_000.0), strict=True))
    falls = all(bound[a] > bound[b] for a, b in pairwise(DISTANCES))
    shown = ", ".join(f"{distance}: {value:.2f}" for distance, value in bound.items())
    return Judged(
        study="positions", claim="RoPE's bound on the inner product decays with the distance",
        paper="Su et al. 2021, section 3.4.3, arXiv:2104.09864", verdict="agrees" if falls else "differs",
        interval=f"closed form, head_dim 128, by distance {shown}", words="", command="",
    )  # fmt: skip


def scaling_note(results: Results) -> str:
    """The laws of the two feed-forwards, and whether the one that wins small still wins larger."""
    points = {
        kind: [Point(compute=v.train_flops, loss=loss, seed=seed) for v in results.variants if v.name.startswith(kind)
               for seed, loss in v.values("loss").items()]
        for kind in ("swiglu", "relu")
    }  # fmt: skip
    laws = [f"{kind}: {fit(some).words}." for kind, some in points.items()]
    largest = max(point.compute for point in points["swiglu"])
    wins = still_wins(points["relu"], points["swiglu"], 10 * largest, name="swiglu").words
    return "\n\n".join([*laws, f"{wins[0].upper()}{wins[1:]}."])


def transfer_note(results: Results) -> str:
    """Whether the best learning rate moves with the width, with and without `optim.base_width`."""
    peak, found = 0.01, dict[bool, list[TransferPoint]]({False: [], True: []})
    for variant in results.variants:
        width = next((w for w in (64, 256) if f"width {w}" in variant.name), 128)
        rate = peak * float(variant.changes.get("lr", 1.0))
        points = [TransferPoint(width=width, rate=rate, loss=x, seed=s) for s, x in variant.values("loss").items()]
        for scaled, some in found.items():
            # At the base width itself, scaling changes nothing.
            if width == 128 or ("base_width" in variant.name) == scaled:
                some += points
    words = {
        "Rates as they are given": transfer(found[False]).words,
        "Scaled by `optim.base_width`": transfer(found[True]).words,
    }
    return "\n\n".join(f"{title}: {text}." for title, text in words.items())


NOTES = {"scaling": scaling_note, "width-transfer": transfer_note}


def studies() -> dict[str, Path]:
    """Folders of finished studies, in the order of the page."""
    found = {place.parent.name: place.parent for place in STUDIES.glob(f"*/{FILE}")}
    known = [name for name in ORDER if name in found]
    return {name: found[name] for name in [*known, *sorted(found.keys() - {*known})]}


def results_of(name: str, folder: Path) -> Results:
    """What a study found. A claim may be put in better words than when it ran."""
    return replace(Results.read(folder), claims=list(Study.from_file(STUDIES / f"{name}.toml").claims))


def page_of(name: str, folder: Path) -> str:
    """The page of a study."""
    results = results_of(name, folder)
    pictures = sorted(place.name for place in folder.glob("*.png"))
    return study_page(results, pictures=pictures, note=NOTES[name](results) if name in NOTES else "")


def claims() -> str:
    """The page of all claims."""
    rows: list[Judged] = []
    for name, folder in studies().items():
        rows += judged_claims(name, results_of(name, folder))
        rows += [rope_decay()] if name == "positions" else []
    return claims_page(rows, introduction=INTRODUCTION)


def overview() -> str:
    """The page of all studies: runs and what they cost."""
    rows: list[tuple[str, ...]] = []
    for name, folder in studies().items():
        results = results_of(name, folder)
        ran = [run for variant in results.variants for run in variant.runs if run.steps]
        steps = sorted({run.steps for run in ran})
        spent = f"{sum(run.seconds for run in ran):,.0f} s"
        sizes = f"{steps[0]:,}" if len(steps) == 1 else f"{steps[0]:,} to {steps[-1]:,}"
        rows.append(
            (
                f"[{name}]({name}/README.md)",
                results.title,
                f"{len(ran)}",
                sizes,
                spent,
                results.machine,
                f"{len(results.claims)}",
            )
        )
    heads = ("study", "what", "runs", "steps of each", "in training steps", "machine", "claims")
    lines = ["# Studies", "", OVERVIEW, "", *table(heads, rows)]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write them all."""
    for name, folder in studies().items():
        results = results_of(name, folder)
        for place in draw_all(results, folder):
            if place.name not in KEPT and not (place.name.startswith("sweep-") and place.suffix == ".png"):
                place.unlink()
        write_report(results, folder)
        (folder / "README.md").write_text(page_of(name, folder), encoding="utf-8")
        size = sum(place.stat().st_size for place in folder.iterdir()) / 1000
        sys.stdout.write(f"{name}: {math.ceil(size)} kB\n")
    (STUDIES / "README.md").write_text(overview(), encoding="utf-8")
    PAGE.write_text(claims(), encoding="utf-8")
