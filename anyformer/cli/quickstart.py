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
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from anyformer.cli.parser import Command, add_set, flag, number, option, whole
from anyformer.cli.terminal import console, errors, live_bar, print_all, print_json, ruled, say, text

if TYPE_CHECKING:
    from rich.console import Console

    from anyformer.lab.plan import Plan
    from anyformer.lab.quickstart import Quickstart
    from anyformer.lab.result import Comparison, Result
    from anyformer.train.events import Budget
    from anyformer.train.loop import StepRecord

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
    words = "learn from this text (- is standard input, .gz is read) instead of the source of Python's standard library"
    option(parser, "--text", words, "FILE")
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
    parser.add_argument("--seed", type=whole(0), default=0, metavar="N", help="of weights, batches and sample")
    flag(parser, "--json", "print nothing but the result, as JSON")


def _run(given: argparse.Namespace) -> int:
    """Train, measure, keep, sample."""
    began = time.perf_counter()
    # torch takes a second to load; a name that is wrong should not have to wait for it.
    plan = _plan(given)
    plan.spec()
    from anyformer.lab.quickstart import Quickstart
    from anyformer.lab.result import compare, earlier, read_result

    screen = console()
    made = Quickstart(plan, began=began)
    replaced = read_result(plan.place)
    try:
        with made.folder:
            _prepare(screen, made, replaced, quiet=given.json)
            for _ in _progress(screen, made, quiet=given.json):
                pass
            if made.late and not given.json:
                why = "getting ready and measuring take most of it"
                _line(screen, "time", f"longer than the budget: {why}; give more --minutes")
            with contextlib.nullcontext() if given.json else screen.status("measuring on the held-out text"):
                result = made.measure()
                place = made.keep()
    except KeyboardInterrupt:
        sys.stderr.write(f"anyformer: stopped; {plan.place} is as it was before\n")
        return 130
    before = earlier(plan.base, place)
    compared = None if before is None else compare(before, place)
    if given.json:
        print_json(_data(result, str(place), compared) | {"rule": made.rule})
        return 0
    _show_result(screen, result, made.rule, made.allotted)
    for piece in ("\n", *made.sample(), "\n\n"):
        say(piece)
    if compared is not None:
        _show_comparison(screen, compared)
    quoted = shlex.quote(str(place))
    hints = [f"Kept in {place}: spec, tokenizer, weights, metrics and loss.png."]
    begin = "" if plan.text else ' "def "'
    hints.append(f"Go on: anyformer generate {quoted}{begin}")
    if not plan.changes and plan.out is None:
        again = f" --text {shlex.quote(plan.text)}" if plan.text else ""
        hints.append(f"   or: anyformer quickstart{again} --position alibi    (compares itself with this run)")
    for hint in hints:
        screen.print(hint, markup=False, soft_wrap=True)
    return 0


def _plan(given: argparse.Namespace) -> Plan:
    from anyformer.lab.plan import Plan
    from anyformer.train.events import Budget

    named = {path: getattr(given, name) for name, (path, _, _) in SHORTCUTS.items()}
    changes = {path: value for path, value in named.items() if value is not None} | dict(given.changes)
    if given.steps:
        budget = Budget(steps=given.steps)
    elif given.minutes is not None:
        budget = Budget(seconds=60 * given.minutes)
    else:
        budget = Budget(seconds=60 * MINUTES, least_steps=LEAST_STEPS, most_seconds=60 * MOST_MINUTES)
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


def _progress(screen: Console, made: Quickstart, *, quiet: bool) -> Iterator[StepRecord]:
    """Train behind a bar on a terminal, with a line for each tenth of the run in a pipe."""
    if quiet:
        # Whoever watches sees the bar; whoever reads standard output gets JSON alone.
        screen = errors()
        if not screen.is_terminal:
            yield from made.train()
            return
    if not screen.is_terminal:
        tenths = 0
        for record in _warning_if_slow(screen, made):
            if int(record.progress * 10) > tenths:
                tenths = int(record.progress * 10)
                screen.print(f"  {_numbers(record, screen.width)}  {_left(record)}")
            yield record
        return
    with live_bar(screen) as bar:
        task = bar.add_task("training", total=1.0, left="")
        for record in _warning_if_slow(screen, made):
            bar.update(task, completed=record.progress, description=_numbers(record, screen.width), left=_left(record))
            yield record


def _warning_if_slow(screen: Console, made: Quickstart) -> Iterator[StepRecord]:
    """The steps of a run; as soon as it is clear that they are slow, say what is done about it."""
    warned = False
    for record in made.train():
        budget = made.allotted
        usual = budget.seconds or 0.0
        if budget.least_steps and not warned and record.seconds >= NOTICE_AFTER * usual:
            expected = budget.expected(record.step, record.seconds)
            if expected > 1.1 * usual:
                warned = True
                screen.print(_slow(record, budget, expected), markup=False, soft_wrap=True)
        yield record


def _slow(record: StepRecord, budget: Budget, expected: float) -> str:
    needed = f"{budget.least_steps / (budget.seconds or 1):.2g}"
    pace = f"{record.step / record.seconds:.2g} steps/s where {needed} are needed"
    return (
        f"slow: the machine is busy or small, or the model large: {pace}. Training takes about {_clock(expected)} instead of "
        f"{_clock(budget.seconds or 0)}, so that it makes {budget.least_steps} steps, and at most "
        f"{_clock(budget.most_seconds or 0)}; --minutes sets another time"
    )


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def _numbers(record: StepRecord, width: int) -> str:
    speed = record.tokens / record.seconds
    steps = f"step {record.step:4}"
    return f"{steps}  loss {record.loss:.3f}  {speed:,.0f} tokens/s" if width >= 60 else f"{steps} {record.loss:.2f}"


def _left(record: StepRecord) -> str:
    left = record.seconds * (1 - record.progress) / max(record.progress, 1e-6)
    return f"{_clock(left)} left"


def _show_result(screen: Console, result: Result, rule: str, budget: Budget) -> None:
    gain = 1 - result.bits_per_byte / result.gzip_bits_per_byte
    beside = f"{abs(gain):.1%} {'below' if gain >= 0 else 'above'} gzip"
    table = ruled("held out", "bits per byte", "")
    table.add_row("unigram model", f"{result.unigram_bits_per_byte:.3f}", "tokens by their frequency")
    table.add_row("gzip -9", f"{result.gzip_bits_per_byte:.3f}", "")
    table.add_row("[bold]this model[/]", f"[bold]{result.bits_per_byte:.3f}[/]", f"[bold]{beside}[/]")
    spent = f"{result.steps:,} steps, {result.tokens / 1e6:.2f}M tokens, {result.seconds:.0f} s"
    line = f"loss {result.loss:.3f} nats per token, perplexity {result.perplexity:.1f}, after {spent}"
    print_all(screen, ["", table, line, *_after(result, budget), text(rule, "dim")])


def _after(result: Result, budget: Budget) -> list[str]:
    """What a run that was given more time has made of it."""
    if not budget.least_steps or result.seconds <= 1.1 * (budget.seconds or 0):
        return []
    if result.steps >= budget.least_steps:
        return [f"The machine was slow or busy: it took {result.seconds:.0f} s instead of {budget.seconds:.0f} s."]
    return [
        f"The machine was slow or busy: {result.steps} of {budget.least_steps} steps were made in {result.seconds:.0f} s, the "
        "most that is given. Expect a worse model than on an idle one; more time: --minutes 15"
    ]


def _show_comparison(screen: Console, compared: Comparison) -> None:
    from rich.markup import escape

    before, after = compared.before, compared.after
    changed = ", ".join(f"{a.name}: {a.value} -> {b.value}" for a, b in compared.difference.axes)
    axes = f"{compared.difference.headline}{f' ({changed})' if changed else ''}"
    table = ruled("", "before", "this run")
    for name, show in {
        "parameters": lambda run: f"{run.params:,}",
        "budget": lambda run: run.budget,
        "steps": lambda run: f"{run.steps:,}",
        "tokens/s": lambda run: f"{run.tokens / run.seconds:,.0f}",
        "loss": lambda run: f"{run.loss:.3f}",
    }.items():
        table.add_row(name, show(before), show(after))
    table.add_row("[bold]bits per byte[/]", f"{before.bits_per_byte:.3f}", f"[bold]{after.bits_per_byte:.3f}[/]")
    verdict = "The two had different budgets or machines, so the figures don't say which model is better."
    if compared.fair:
        word = "better" if compared.gain > 0 else "worse"
        verdict = f"{abs(compared.gain):.1%} {word}. One run each: differences of about 1% may be chance."
    print_all(screen, [f"[bold]Beside {escape(compared.difference.names[0])}[/]: {escape(axes)}", table, verdict, ""])


def _data(result: Result, place: str, compared: Comparison | None) -> dict[str, Any]:
    from dataclasses import asdict

    beside = None
    if compared is not None:
        beside = {"difference": compared.difference.data(), "before": asdict(compared.before), "gain": compared.gain}
    return {"folder": place, **asdict(result), "compared": beside}


COMMAND = Command(
    "quickstart", "train a small language model in two minutes, and let it speak", __doc__, _arguments, _run
)
