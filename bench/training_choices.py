"""What some choices in training do, as curves: variants of two recipes on a CPU, a PNG and a table for each comparison.

    python bench/training_choices.py [norms z packing restart] --shakespeare FOLDER --polarity FOLDER
        --poems FOLDER [--seeds 2]

FOLDERs are what `anyformer tokenize` made for the recipes shakespeare-cpu, polarity and roformer-poems. Each variant is a
run on one thread, timed by the processor's clock, so other work on the machine changes no figure but the wait. What was
measured is kept in --work: the same command again only draws.
"""

import argparse
import dataclasses
import json
import math
import statistics
import tempfile
import time
import warnings
from pathlib import Path

from anyformer.data.loader import BatchLoader
from anyformer.data.shards import open_examples
from anyformer.files import replace_file
from anyformer.train.config import Config
from anyformer.train.perplexity import evaluate
from anyformer.train.report import running_mean
from anyformer.train.report.chart import INK
from anyformer.train.trainer import Step, Stopped, Trainer

RECIPES = Path(__file__).parent.parent / "recipes"
QUIET = {"compute.device": "cpu", "compute.threads": 1, "run.save_every": 10**6, "data.valid": ""}
"""No text is read twice in these runs, so the loss of the rows that are learned from is that of unseen ones."""
BLUE, ORANGE, GREEN = "#2b6cb0", "#c05621", "#2f855a"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Variant:
    """A recipe with changes; what is kept of its runs goes by the name."""

    name: str
    recipe: str
    changes: dict
    data: str = ""
    """Other data than the recipe's."""


class Bench:
    """Runs variants, and keeps what was measured."""

    def __init__(self, given):
        self.count, self.work = given.seeds, Path(given.work)
        self.data = {"shakespeare-cpu": given.shakespeare, "polarity": given.polarity, "poems": given.poems}
        self.pictures = Path(given.pictures)
        for folder in (self.work, self.pictures):
            folder.mkdir(parents=True, exist_ok=True)

    def steps(self, variant, seed, looks=0):
        """What a run measured at each step: loss, the z term, gradient norm, real tokens, processor seconds; and every
        `looks` steps the loss on held-out documents."""
        kept = self.work / f"{variant.name}-{seed}.json"
        asked = QUIET | variant.changes | {"run.seed": seed}
        if kept.is_file() and (found := json.loads(kept.read_text()))["asked"] == asked:
            return found["steps"]
        places = {"data.folder": self.data[variant.data or variant.recipe], "run.folder": kept.stem}
        config = Config.from_file(RECIPES / f"{variant.recipe}.toml", asked | places)
        steps = list(run(config, looks))
        text = json.dumps({"asked": asked, "steps": steps})
        replace_file(kept, lambda beside: beside.write_text(text))
        print(f"  {kept.stem}: {tail(steps):.3f} after {len(steps)} steps, {steps[-1]['cpu']:.0f} s", flush=True)
        return steps

    def seeds(self, variant, looks=0):
        """The same for every seed."""
        return [self.steps(variant, seed, looks) for seed in range(self.count)]


def smoothed(curve):
    """A running mean over about a fiftieth of the points on either side."""
    means = running_mean([y for _, y in curve], share=0.04)
    return [(x, float(mean)) for (x, _), mean in zip(curve, means, strict=True)]


def run(config, looks):
    """The steps of one run, timed without what is only measured. Nothing else of it is kept."""
    with tempfile.TemporaryDirectory() as place, warnings.catch_warnings():
        # A step that is left out because its numbers are not finite is part of what is shown.
        warnings.simplefilter("ignore")
        config = dataclasses.replace(config, run=dataclasses.replace(config.run, folder=place))
        with Trainer(config) as made:
            spent, began = 0.0, time.process_time()
            for event in made.events():
                if isinstance(event, Stopped):
                    raise SystemExit(event.status)
                if not isinstance(event, Step):
                    continue
                spent += time.process_time() - began
                yield {
                    "step": event.step, "loss": event.loss, "z": event.terms.get("z"), "norm": event.gradient_norm,
                    "tokens": event.tokens, "cpu": spent,
                    "held_out": held_out(made) if looks and event.step % looks == 0 else None,
                }  # fmt: skip
                began = time.process_time()


def held_out(made):
    """The loss on 384 held-out documents, always the same, each in a row of its own from position 0."""
    setup, config = made.components, made.config
    examples = open_examples(config.data.folder, "valid")
    sizes = {"length": config.stages[0].length, "batch": 64, "seed": 0}
    feed = BatchLoader(examples, setup.objective, spec=setup.spec, rows="padded", **sizes)
    return evaluate(setup.model, feed, setup.objective, precision=setup.precision, batches=6).loss


def tail(steps, of="loss"):
    """The mean over the last tenth of a run."""
    return statistics.fmean(step[of] for step in steps[-max(1, len(steps) // 10) :])


def curves(runs, y, x="step"):
    """Points (x, y) of the run of each seed; steps without y are left out."""
    return [[(step[x], step[y]) for step in steps if step[y] is not None] for steps in runs]


def spread(values):
    """The mean, and how far the seeds are apart."""
    values = list(values)
    return f"{statistics.fmean(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def draw(path, panels, *, title, across=2):
    """Panels of (heading, x name, y name, [(label, color, curves)]), some across, with the curves of each label; it is at their ends."""
    from matplotlib.figure import Figure

    down, across = math.ceil(len(panels) / across), min(across, len(panels))
    figure = Figure(figsize=(max(5.2 * across, 7.5), 3.2 * down + 0.5), dpi=150, layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, color=INK)
    for axes, panel in zip(figure.subplots(down, across, squeeze=False).flat, panels, strict=True):
        draw_panel(axes, *panel)
    figure.savefig(path, format="png")


def draw_panel(axes, heading, x_name, y_name, lines):
    """One panel, a curve for each seed. The first few steps are far above all that matters, and are cut off."""
    everything = [(label, color, points) for label, color, runs in lines for points in runs]
    for _, color, points in everything:
        axes.plot(*zip(*points, strict=True), color=color, linewidth=1.4)
    values = [y for *_, points in everything for _, y in points]
    low, high = min(values), statistics.quantiles(values, n=40)[-1]
    low, high = low - 0.06 * (high - low), high + 0.06 * (high - low)
    right = max(x for *_, points in everything for x, _ in points)
    axes.set(xlim=(0, right * 1.02), ylim=(low, high), xlabel=x_name, ylabel=y_name)
    apart, at, named = 0.075 * (high - low), -math.inf, {}
    for end, label, color in sorted((points[-1][1], label, color) for label, color, points in everything):
        # Seeds that end side by side have one label.
        if end - named.get(label, -math.inf) > 2 * apart:
            at = max(end, at + apart)
            axes.annotate(label, (right, end), xytext=(right * 1.04, at), color=color, fontsize=9, va="center",
                          annotation_clip=False)  # fmt: skip
        named[label] = end
    axes.set_title(heading, loc="left", fontsize=10, color=INK)
    axes.grid(color="#e6eaf2", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def rates(rate):
    """AdamW with one rate for everything, from the first step to the last."""
    groups = {f"optim.{group}": rate for group in ("matrices", "tables", "vectors")}
    return {"optim.kind": "adamw", "schedule.kind": "constant"} | groups


def norms(bench):
    """Pre-norm against post-norm without warm-up, and post-norm with it."""
    plain = {
        "model.spec.width": 64, "model.spec.ffn": {"kind": "gelu"}, "model.spec.attention.qk_norm": False,
        "stages.steps": 200,
    }  # fmt: skip
    ways = [("pre-norm", "pre", 0, BLUE), ("post-norm", "post", 0, ORANGE), ("post, warm-up", "post", 100, GREEN)]
    inits = {"small": {"kind": "normal", "std": 0.02}, "Glorot": {"kind": "glorot"}}
    panels = []
    for depth, first, rate in ((6, "Glorot", 0.001), (6, "Glorot", 0.003), (6, "small", 0.003), (12, "Glorot", 0.003)):
        lines = []
        for label, placement, warmup, color in ways:
            changes = plain | rates(rate) | {"model.spec.depth": depth, "model.spec.init": inits[first]}
            changes |= {"model.spec.norm.placement": placement, "schedule.warmup": warmup}
            name = f"norms-{depth}-{first}-{rate:g}-{placement}-{warmup}"
            runs = bench.seeds(Variant(name=name, recipe="shakespeare-cpu", changes=changes))
            print(f"depth {depth:2}  {first:6}  {rate:g}  {label:14} {spread(map(tail, runs))}")
            lines.append((label, color, [smoothed(curve) for curve in curves(runs, "loss")]))
        panels.append((f"depth {depth}, {first} init, AdamW {rate:g}", "step", "loss", lines))
    title = "Norms before or after the add, no warm-up (green: with 100 steps of it)"
    draw(bench.pictures / "choice-norms.png", panels, title=title)


def z(bench):
    """The loss and mean logsumexp^2 with a z-loss and without."""
    lines = {"z": [], "loss": []}
    # So small a weight changes nothing, and lets the run report the term.
    for label, weight, color in (("none", 1e-12, ORANGE), ("1e-4", 1e-4, BLUE), ("1e-2", 1e-2, GREEN)):
        changes = {"model.spec.loss.z": weight, "stages.steps": 300}
        runs = bench.seeds(Variant(name=f"z-{weight:g}", recipe="shakespeare-cpu", changes=changes))
        print(f"z-loss {label:6} loss {spread(map(tail, runs))}  logsumexp^2 {spread(tail(run, 'z') for run in runs)}")
        for name, points in lines.items():
            points.append((label, color, [smoothed(curve) for curve in curves(runs, name)]))
    panels = [
        ("what the term is made of", "step", "mean logsumexp^2", lines["z"]),
        ("the loss", "step", "loss", lines["loss"]),
    ]
    draw(bench.pictures / "choice-z-loss.png", panels, title="z-loss: weights on mean logsumexp^2")


SENTENCES = {
    "model.spec.topology": "decoder", "model.spec.head": {"kind": "lm", "tied": True}, "model.spec.block.dropout": 0.0,
    "model.spec.embed.dropout": 0.0, "model.spec.context": 256, "objective": {"kind": "causal"}, "stages.length": 256,
}  # fmt: skip
"""The recipe for polarity as a language model of its sentences: what is compared is how they are laid into rows."""
PACKED, PADDED = {"data.rows": "packed", "stages.batch": 4}, {"data.rows": "padded", "stages.batch": 39}
"""Both learn from about 1,000 real tokens in a step; a sentence has 26."""

DEEP = {"model.spec.depth": 8, "stages.steps": 12}
"""Enough to measure speed."""


def packing(bench):
    """Rows of several sentences against one sentence in a row: real tokens a second, and the way to a loss."""
    lines = []
    found = {}
    for label, rows, color in (("packed", PACKED, BLUE), ("padded", PADDED, ORANGE)):
        changes = SENTENCES | rows | {"stages.steps": 200}
        runs = bench.seeds(Variant(name=f"packing-{label}", recipe="polarity", changes=changes), looks=20)
        found[label] = curves(runs, "held_out", "cpu")
        # The head reads only what counts, whatever the rows; the deeper the model, the more of its work is in the rows.
        deep = Variant(name=f"packing-{label}-deep", recipe="polarity", changes=changes | DEEP)
        speeds = [speed(each) for each in (runs, bench.seeds(deep))]
        print(f"{label}: {speeds[0]:.0f} real tokens/s of one core, {speeds[1]:.0f} at depth 8")
        print(f"{label}: held-out loss {spread(run[-1]['held_out'] for run in runs)}")
        lines.append((label, color, found[label]))
    # The loss that all reach: the worst end.
    goal = max(curve[-1][1] for each in found.values() for curve in each)
    for label, each in found.items():
        took = statistics.fmean(reached(curve, goal) for curve in each)
        print(f"{label}: {took:.0f} s to a held-out loss of {goal:.3f}")
    panels = [("one core", "processor seconds", "held-out loss", lines)]
    draw(bench.pictures / "choice-packing.png", panels, title="The same sentences in packed and in padded rows")


def speed(runs):
    """Real tokens a second. The first two steps are left out: they make what later ones use again."""
    return statistics.fmean((run[-1]["tokens"] - run[1]["tokens"]) / (run[-1]["cpu"] - run[1]["cpu"]) for run in runs)


def reached(curve, goal):
    """Where a falling curve first is at a goal, on a straight line between two points."""
    before = curve[0]
    for point in curve:
        if point[1] <= goal:
            share = 1.0 if point == before else (before[1] - goal) / (before[1] - point[1])
            return before[0] + share * (point[0] - before[0])
        before = point
    return math.nan


def restart(bench):
    """Positions that begin again with each document of a packed row, or not; judged on one document in a row."""
    lines = []
    for data, kind, length, color in (
        ("polarity", "learned", 256, ORANGE), ("polarity", "learned", 1024, BLUE), ("poems", "learned", 256, GREEN),
        ("poems", "rope", 256, INK),
    ):  # fmt: skip
        sizes = {"stages.length": length, "stages.batch": 1024 // length, "model.spec.context": length}
        changes = SENTENCES | PACKED | sizes | {"stages.steps": 200, "model.spec.position": {"kind": kind}}
        found = []
        for again in (True, False):
            name = f"restart-{data}-{kind}-{length}-{again}"
            variant = Variant(name=name, recipe="polarity", changes=changes | {"data.restart": again}, data=data)
            found.append(curves(bench.seeds(variant, looks=20), "held_out"))
        label = f"{data}, {kind}, rows of {length}"
        for word, runs in zip(("restart", "go on"), found, strict=True):
            print(f"{label:32} positions {word:8} held-out loss {spread(curve[-1][1] for curve in runs)}")
        harm = [
            [(x, worse - better) for (x, better), (_, worse) in zip(*pair, strict=True)]
            for pair in zip(*found, strict=True)
        ]
        lines.append((label, color, harm))
    panels = [("what positions that go on cost", "step", "nats a token, on padded held-out rows", lines)]
    draw(bench.pictures / "choice-restart.png", panels, title="Packed rows in which positions do not restart", across=1)


COMPARISONS = {"norms": norms, "z": z, "packing": packing, "restart": restart}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "comparisons", nargs="*", metavar="COMPARISON", help=f"of {', '.join(COMPARISONS)}; default: all"
    )
    parser.add_argument("--shakespeare", default="data/shakespeare", metavar="FOLDER")
    parser.add_argument("--polarity", default="data/polarity", metavar="FOLDER")
    parser.add_argument("--poems", default="data/poems", metavar="FOLDER")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--work", default="runs/choices", metavar="FOLDER")
    parser.add_argument("--pictures", default="docs/pictures", metavar="FOLDER")
    given = parser.parse_args()
    wrong = [name for name in given.comparisons if name not in COMPARISONS]
    if wrong:
        parser.error(f"{', '.join(wrong)}: the comparisons are {', '.join(COMPARISONS)}")
    bench = Bench(given)
    for name in given.comparisons or COMPARISONS:
        COMPARISONS[name](bench)


if __name__ == "__main__":
    main()
