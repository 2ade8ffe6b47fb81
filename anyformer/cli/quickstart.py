"""`anyformer quickstart`: train a small language model, measure it, and let it speak.

anyformer quickstart
anyformer quickstart --position alibi
anyformer quickstart --norm-placement post --ffn relu --set attention.kv_heads=1
anyformer quickstart --text my-notes.txt --minutes 5
"""

from __future__ import annotations

import argparse
import contextlib
import shlex
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

from anyformer.cli.parser import Command, add_set, flag, number, option, whole
from anyformer.cli.terminal import console, errors, live_bar, print_all, print_json, ruled, say, text

if TYPE_CHECKING:
    from rich.console import Console

    from anyformer.lab.quickstart import Comparison, Quickstart, Result, StepRecord
    from anyformer.lab.quickstart_plan import Budget, Plan

MINUTES, MOST_MINUTES = 2.0, 5.0
LEAST_STEPS = 500
"""Two idle cores make about 660 steps in the usual time. A machine that makes fewer than these is given more time."""
NOTICE_AFTER = 0.1
"""The share of the usual time after which its speed is known well enough to say so."""
SHORTCUTS = {
    "position": ("position.kind", "KIND", "how it knows where a token is: alibi, learned, t5, none, ..."),
    "norm_placement": ("norm.placement", "WHERE", "where norms stand: pre, post, sandwich, output"),
    "ffn": ("ffn.kind", "KIND", "the feed-forward: relu, gelu, geglu, ..."),
}
"""Options for the changes that people try first: the field of the spec, and words for --help."""


def _arguments(parser: argparse.ArgumentParser) -> None:
    option(parser, "--text", "learn from this text (also .gz; - is stdin), not from Python's standard library", "FILE")
    length = parser.add_mutually_exclusive_group()
    words = f"(default {MINUTES:g}; where the machine is slow or busy, up to {MOST_MINUTES:g} until {LEAST_STEPS} steps are made)"
    words = f"how long it may take, getting ready and measuring included {words}"
    option(length, "--minutes", words, number(above=0), metavar="M")
    option(length, "--steps", "train so many steps instead: the same on every run, to the bit", whole(1))
    for name, (_, metavar, words) in SHORTCUTS.items():
        option(parser, f"--{name.replace('_', '-')}", words, metavar)
    add_set(parser)
    option(parser, "--out", "the run folder (default: runs/quickstart, and one for each set of changes)", "DIR")
    option(parser, "--device", "cpu or cuda (default: cuda if there is one)", "NAME")
    option(parser, "--seed", "of weights, batches and sample", whole(0), default=0)
    flag(parser, "--json", "print nothing but the result, as JSON")


def _run(given: argparse.Namespace) -> int:
    """Train, measure, keep, sample."""
    began = time.perf_counter()
    # torch takes a second to load; a name that is wrong should not have to wait for it.
    plan = _plan(given)
    plan.spec()
    from anyformer.lab.quickstart import Quickstart, compare, earlier, read_result

    screen = console()
    made = Quickstart(plan, began=began)
    replaced = read_result(plan.place)
    try:
        with made.folder:
            _prepare(screen, made, replaced, quiet=given.json)
            _train(screen, made, quiet=given.json)
            if made.late and not given.json:
                why = "longer than the budget: getting ready and measuring take most of it; give more --minutes"
                _line(screen, "time", why)
            with contextlib.nullcontext() if given.json else screen.status("measuring on the held-out text"):
                result = made.measure()
                place = made.keep()
    except KeyboardInterrupt:
        sys.stderr.write(f"anyformer: stopped; {plan.place} is as it was before\n")
        return 130
    before = earlier(plan.base, place)
    compared = None if before is None else compare(before, place)
    if given.json:
        beside = None if compared is None else {
            "difference": compared.difference.data(), "before": asdict(compared.before), "gain": compared.gain,
        }  # fmt: skip
        print_json({"folder": str(place), **asdict(result), "compared": beside, "rule": made.rule})
        return 0
    _show_result(screen, result, made.rule, made.allotted)
    for piece in ("\n", *made.sample(), "\n\n"):
        say(piece)
    if compared is not None:
        _show_comparison(screen, compared)
    begin, again = ("", f" --text {shlex.quote(plan.text)}") if plan.text else (' "def "', "")
    hints = [f"Kept in {place}: spec, tokenizer, weights, metrics and loss.png."]
    hints.append(f"Go on: anyformer generate {shlex.quote(str(place))}{begin}")
    if not plan.changes and plan.out is None:
        hints.append(f"   or: anyformer quickstart{again} --position alibi    (compares itself with this run)")
    screen.print("\n".join(hints), markup=False, soft_wrap=True)
    return 0


def _plan(given: argparse.Namespace) -> Plan:
    from anyformer.lab.quickstart_plan import Budget, Plan

    named = {path: getattr(given, name) for name, (path, _, _) in SHORTCUTS.items()}
    changes = {path: value for path, value in named.items() if value is not None} | dict(given.changes)
    budget = Budget(seconds=60 * MINUTES, least_steps=LEAST_STEPS, most_seconds=60 * MOST_MINUTES)
    if given.steps or given.minutes is not None:
        budget = Budget(steps=given.steps) if given.steps else Budget(seconds=60 * given.minutes)
    return Plan(text=given.text, budget=budget, changes=changes, out=given.out, device=given.device, seed=given.seed)


def _prepare(screen: Console, made: Quickstart, replaced: Result | None, *, quiet: bool) -> None:
    """Read the text and make the model, each shown as soon as it is there."""
    corpus = made.read()
    if quiet:
        made.prepare()
        return
    from anyformer.explain.report import summary
    from anyformer.specs.number_format import data

    learn, held = data(corpus.train_bytes), data(corpus.held_out_bytes)
    files = f" ({len(corpus.train)} and {len(corpus.held_out)} documents)" if len(corpus.train) > 1 else ""
    _line(screen, "text", f"{corpus.title}: {learn} to learn from, {held} held out{files}")
    with screen.status("training a tokenizer"):
        spec = made.prepare()
    per_token = corpus.train_bytes / len(made.tokens)
    _line(screen, "tokens", f"byte-level BPE, {spec.vocab:,} tokens of {per_token:.2f} bytes on average")
    _line(screen, "model", summary(spec))
    if replaced is not None:
        spent = f"{replaced.steps:,} steps, {replaced.bits_per_byte:.3f} bits per byte"
        _line(screen, "folder", f"{made.plan.place} holds a run ({spent}), which this one will replace")


def _line(screen: Console, label: str, words: str) -> None:
    from rich.table import Table

    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(width=6, no_wrap=True)
    grid.add_row(text(label, "bold"), text(words))
    print_all(screen, [grid])


def _train(screen: Console, made: Quickstart, *, quiet: bool) -> None:
    """Train behind a bar on a terminal, with a line for each tenth of the run in a pipe."""
    # Whoever watches sees the bar; whoever reads standard output gets JSON alone.
    screen = errors() if quiet else screen
    bar = live_bar(screen) if screen.is_terminal else None
    slow, tenths = "", 0
    with contextlib.nullcontext() if bar is None else bar:
        task = None if bar is None else bar.add_task("training", total=1.0, left="")
        for record in made.train():
            if quiet and bar is None:
                continue
            if not slow and (slow := _slow(record, made.allotted)):
                screen.print(slow, markup=False, soft_wrap=True)
            numbers = f"step {record.step:4} {record.loss:.2f}"
            if screen.width >= 60:
                speed = f"{record.tokens / record.seconds:,.0f} tokens/s"
                numbers = f"step {record.step:4}  loss {record.loss:.3f}  {speed}"
            left = f"{_clock(record.seconds * (1 - record.progress) / max(record.progress, 1e-6))} left"
            if bar is not None and task is not None:
                bar.update(task, completed=record.progress, description=numbers, left=left)
            elif int(record.progress * 10) > tenths:
                tenths = int(record.progress * 10)
                screen.print(f"  {numbers}  {left}")


def _slow(record: StepRecord, budget: Budget) -> str:
    """As soon as it is clear that steps are slow: what is done about it."""
    usual, expected = budget.seconds or 0.0, budget.expected(record.step, record.seconds)
    if not budget.least_steps or record.seconds < NOTICE_AFTER * usual or expected <= 1.1 * usual:
        return ""
    pace = f"{record.step / record.seconds:.2g} steps/s where {budget.least_steps / (usual or 1):.2g} are needed"
    return (
        f"slow: the machine is busy or small, or the model large: {pace}. Training takes about {_clock(expected)} instead of "
        f"{_clock(usual)}, so that it makes {budget.least_steps} steps, and at most "
        f"{_clock(budget.most_seconds or 0)}; --minutes sets another time"
    )


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def _show_result(screen: Console, result: Result, rule: str, budget: Budget) -> None:
    gain = 1 - result.bits_per_byte / result.gzip_bits_per_byte
    beside = f"{abs(gain):.1%} {'below' if gain >= 0 else 'above'} gzip"
    rows = [
        ("unigram model", f"{result.unigram_bits_per_byte:.3f}", "tokens by their frequency"),
        ("gzip -9", f"{result.gzip_bits_per_byte:.3f}", ""),
        ("[bold]this model[/]", f"[bold]{result.bits_per_byte:.3f}[/]", f"[bold]{beside}[/]"),
    ]
    table = ruled(("held out", "bits per byte", ""), rows)
    spent = f"{result.steps:,} steps, {result.tokens / 1e6:.2f}M tokens, {result.seconds:.0f} s"
    line = f"loss {result.loss:.3f} nats per token, perplexity {result.perplexity:.1f}, after {spent}"
    said = ["", table, line]
    if budget.least_steps and result.seconds > 1.1 * (budget.seconds or 0):
        # What a run that was given more time has made of it.
        made = f"it took {result.seconds:.0f} s instead of {budget.seconds:.0f} s."
        if result.steps < budget.least_steps:
            made = f"{result.steps} of {budget.least_steps} steps were made in {result.seconds:.0f} s, the most that is"
            made += " given. Expect a worse model than on an idle one; more time: --minutes 15"
        said.append(f"The machine was slow or busy: {made}")
    print_all(screen, [*said, text(rule, "dim")])


def _show_comparison(screen: Console, compared: Comparison) -> None:
    from rich.markup import escape

    before, after = compared.before, compared.after
    changed = ", ".join(f"{a.name}: {a.value} -> {b.value}" for a, b in compared.difference.axes)
    axes = f"{compared.difference.headline}{f' ({changed})' if changed else ''}"
    names = ("parameters", "budget", "steps", "tokens/s", "loss", "[bold]bits per byte[/]")
    columns = [
        (f"{run.params:,}", run.budget, f"{run.steps:,}", f"{run.tokens / run.seconds:,.0f}", f"{run.loss:.3f}", bits)
        for run, bits in ((before, f"{before.bits_per_byte:.3f}"), (after, f"[bold]{after.bits_per_byte:.3f}[/]"))
    ]
    table = ruled(("", "before", "this run"), zip(names, *columns, strict=True))
    verdict = "The two had different budgets or machines, so the figures don't say which model is better."
    if compared.fair:
        word = "better" if compared.gain > 0 else "worse"
        verdict = f"{abs(compared.gain):.1%} {word}. One run each: differences of about 1% may be chance."
    print_all(screen, [f"[bold]Beside {escape(compared.difference.names[0])}[/]: {escape(axes)}", table, verdict, ""])


COMMAND = Command(
    "quickstart", "train a small language model in two minutes, and let it speak", __doc__, _arguments, _run
)
