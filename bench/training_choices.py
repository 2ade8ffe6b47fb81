"""What some choices in training do, as curves: variants of two recipes on a CPU, a PNG and a table for each comparison.

    python bench/training_choices.py [norms z packing restart] --shakespeare FOLDER --polarity FOLDER [--seeds 2]

FOLDERs are what `anyformer tokenize` made for recipes/shakespeare-cpu.toml and recipes/polarity.toml. Each variant is a
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

from anyformer.data.feed import Feed
from anyformer.data.shards import open_examples
from anyformer.files import replace_file
from anyformer.train.config import Config
from anyformer.train.curve import INK, smoothed
from anyformer.train.events import Step
from anyformer.train.judging import look
from anyformer.train.run import Run

RECIPES = Path(__file__).parent.parent / "recipes"
QUIET = {"compute.device": "cpu", "compute.threads": 1, "run.save_every": 10**6, "data.valid": ""}
"""No text is read twice in these runs, so the loss of the rows that are learned from is that of unseen ones."""
BLUE, ORANGE, GREEN = "#2b6cb0", "#c05621", "#2f855a"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Variant:
    """One line of a picture."""

    name: str
    """Of its runs' folders, one for each seed."""
    label: str
    color: str
    recipe: str
    changes: dict
    dashed: bool = False


class Bench:
    """Runs variants, and keeps what was measured."""

    def __init__(self, given):
        self.given = given
        self.work = Path(given.work)
        self.work.mkdir(parents=True, exist_ok=True)

    def steps(self, variant, seed, looks=0):
        """What a run measured at each step: loss, the z term, gradient norm, real tokens, processor seconds; and every
        `looks` steps the loss on held-out documents."""
        kept = self.work / f"{variant.name}-{seed}.json"
        folders = {"shakespeare-cpu": self.given.shakespeare, "polarity": self.given.polarity}
        own = {"data.folder": folders[variant.recipe], "run.folder": kept.stem, "run.seed": seed}
        config = Config.from_file(RECIPES / f"{variant.recipe}.toml", QUIET | variant.changes | own)
        asked = config.to_toml()
        if kept.is_file() and (found := json.loads(kept.read_text()))["config"] == asked:
            return found["steps"]
        steps = list(run(config, looks))
        text = json.dumps({"config": asked, "steps": steps})
        replace_file(kept, lambda beside: beside.write_text(text))
        print(f"  {kept.stem}: {tail(steps):.3f} after {len(steps)} steps, {steps[-1]['cpu']:.0f} s", flush=True)
        return steps

    def seeds(self, variant, looks=0):
        """The same for every seed."""
        return [self.steps(variant, seed, looks) for seed in range(self.given.seeds)]


def run(config, looks):
    """The steps of one run, timed without what is only measured. Nothing else of it is kept."""
    with tempfile.TemporaryDirectory() as place, warnings.catch_warnings():
        # A step that is left out because its numbers are not finite is part of what is shown.
        warnings.simplefilter("ignore")
        config = dataclasses.replace(config, run=dataclasses.replace(config.run, folder=place))
        with Run(config) as made:
            spent, began = 0.0, time.process_time()
            for event in made.events():
                if not isinstance(event, Step):
                    continue
                spent += time.process_time() - began
                yield {
                    "step": event.step, "loss": event.loss, "z": event.terms.get("z"), "norm": event.gradient_norm,
                    "tokens": event.tokens, "cpu": spent, "skipped": event.skipped,
                    "held_out": held_out(made) if looks and event.step % looks == 0 else None,
                }  # fmt: skip
                began = time.process_time()


def held_out(made):
    """The loss on held-out documents, each in a row of its own from position 0."""
    setup, config = made.setup, made.config
    examples = open_examples(config.data.folder, "valid")
    sizes = {"length": config.stages[0].length, "batch": 64, "seed": 0}
    feed = Feed(examples, setup.objective, spec=setup.spec, rows="padded", **sizes)
    return look(setup.model, feed, setup.objective, precision=setup.precision).loss


def tail(steps, of="loss"):
    """The mean over the last tenth of a run."""
    return statistics.fmean(step[of] for step in steps[-max(1, len(steps) // 10) :])


def mean_curve(runs, y, x="step"):
    """Points (x, y), each the mean over the runs of all seeds; steps without y are left out."""
    rows = [each for each in zip(*runs, strict=True) if all(step[y] is not None for step in each)]
    return [tuple(statistics.fmean(step[name] for step in each) for name in (x, y)) for each in rows]


def spread(values):
    """The mean, and how far the seeds are apart."""
    values = list(values)
    return f"{statistics.fmean(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def draw(path, panels, *, title):
    """Panels side by side, each (heading, x name, y name, [(label, color, dashed, points)]); a line's label is at its end."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.8 * len(panels) + 0.6, 4.2), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, color=INK)
    for axes, (heading, x_name, y_name, lines) in zip(
        figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True
    ):
        ends = []
        for label, color, dashed, points in lines:
            style = (0, (4, 2)) if dashed else "-"
            axes.plot(*zip(*points, strict=True), color=color, linewidth=1.6, linestyle=style)
            ends.append((points[-1][1], points[-1][0], label, color))
        values = [y for *_, points in lines for _, y in points]
        # The first few steps are far above all that matters.
        low, high = min(values), statistics.quantiles(values, n=50)[-1]
        low, high = low - 0.06 * (high - low), high + 0.06 * (high - low)
        right = max(x for *_, points in lines for x, _ in points)
        axes.set(xlim=(0, right * 1.02), ylim=(low, high), xlabel=x_name, ylabel=y_name)
        at = -math.inf
        for y, x, label, color in sorted(ends):
            at = max(y, at + 0.055 * (high - low))
            axes.annotate(label, (x, y), xytext=(right * 1.04, at), color=color, fontsize=9, va="center",
                          annotation_clip=False)  # fmt: skip
        axes.set_title(heading, loc="left", fontsize=10, color=INK)
        axes.grid(color="#e6eaf2", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, format="png")


def norms(bench):
    """Pre-norm against post-norm without warm-up, and post-norm with it, deep and narrow."""
    deep = {
        "model.spec.width": 64, "model.spec.depth": 16, "model.spec.ffn": {"kind": "gelu"},
        "model.spec.attention.qk_norm": False, "optim.kind": "adamw", "schedule.kind": "constant", "stages.steps": 300,
    }  # fmt: skip
    ways = [
        ("pre-norm, no warm-up", "pre", 0, BLUE),
        ("post-norm, no warm-up", "post", 0, ORANGE),
        ("post-norm, warm-up of 100", "post", 100, GREEN),
    ]
    for init in ({"kind": "normal", "std": 0.02}, {"kind": "glorot"}):
        panels = []
        for rate in (0.001, 0.003):
            lines = []
            for label, placement, warmup, color in ways:
                changes = deep | {"model.spec.init": init, "model.spec.norm.placement": placement, "schedule.warmup": warmup}
                changes |= {f"optim.{group}": rate for group in ("matrices", "tables", "vectors")}
                name = f"norms-{init['kind']}-{rate:g}-{placement}-{warmup}"
                one = Variant(name=name, label=label, color=color, recipe="shakespeare-cpu", changes=changes)
                runs = bench.seeds(one)
                lines.append((label, color, False, smoothed(mean_curve(runs, "loss"))))
                skipped = sum(step["skipped"] for steps in runs for step in steps)
                print(f"{init['kind']:8}{rate:8g}  {label:28}{spread(map(tail, runs))}  {skipped} steps left out")
            panels.append((f"AdamW {rate:g}", "step", "loss", lines))
        draw(bench.pictures / f"choice-norms-{init['kind']}.png", panels, title="norms")
