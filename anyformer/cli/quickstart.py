"""`anyformer quickstart`."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from anyformer.cli.parser import Command, add_set, number, whole
from anyformer.cli.terminal import console, print_all, print_json, say

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from anyformer.lab.plan import Plan
    from anyformer.lab.quickstart import Quickstart
    from anyformer.lab.result import Comparison, Result
    from anyformer.train.loop import StepRecord

MINUTES = 1.75
SHORTCUTS = {
    "position": ("position.kind", "KIND", "how it knows where a token is: alibi, learned, t5, none, ..."),
    "norm_placement": ("norm.placement", "WHERE", "where norms stand: pre, post, sandwich, output"),
    "ffn": ("ffn.kind", "KIND", "the feed-forward: relu, gelu, geglu, ..."),
}
"""Options for the changes that people try first: the field of the spec, and words for --help."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("--text", metavar="FILE", help="learn from this text (- is standard input, .gz is read) "
                        "instead of the source of Python's standard library")  # fmt: skip
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--minutes", type=number(above=0), default=None, metavar="M",
                        help=f"how long to train (default {MINUTES})")  # fmt: skip
    length.add_argument("--steps", type=whole(1), default=None, metavar="N",
                        help="train so many steps instead: the same on every run, to the bit")  # fmt: skip
    for option, (_, metavar, words) in SHORTCUTS.items():
        parser.add_argument(f"--{option.replace('_', '-')}", metavar=metavar, help=words)
    add_set(parser)
    parser.add_argument("--out", metavar="DIR", help="the run folder (default: runs/quickstart, and one for each "
                        "set of changes)")  # fmt: skip
    parser.add_argument("--device", metavar="NAME", help="cpu or cuda (default: cuda if there is one)")
    parser.add_argument("--seed", type=whole(0), default=0, metavar="N", help="of weights, batches and sample")
    parser.add_argument("--json", action="store_true", help="print nothing but the result, as JSON")


def run(given: argparse.Namespace) -> int:
    """Train, measure, keep, speak."""
    # torch takes a second to load; a name that is wrong should not have to wait for it.
    plan = _plan(given)
    plan.spec()
    from anyformer.lab.quickstart import Quickstart
    from anyformer.lab.result import compare

    screen = console()
    made = Quickstart(plan)
    with made.folder:
        _prepare(screen, made, quiet=given.json)
        for _ in _progress(screen, made, quiet=given.json):
            pass
        with contextlib.nullcontext() if given.json else screen.status("measuring on the held-out text"):
            result = made.measure()
            place = made.keep()
    compared = compare(plan.base, place)
    if given.json:
        print_json(_data(result, str(place), compared))
        return 0
    _show_result(screen, result)
    _show_sample(made)
    if compared is not None:
        _show_comparison(screen, compared)
    screen.print(f"Kept in [bold]{place}[/]: spec, tokenizer, weights, metrics and [bold]loss.png[/].", soft_wrap=True)
    begin = "" if plan.text else ' "def "'
    screen.print(f"Go on: anyformer generate {place}{begin}", soft_wrap=True)
    if not plan.changes and compared is None:
        again = f" --text {plan.text}" if plan.text else ""
        screen.print(f"   or: anyformer quickstart{again} --position alibi    (compares itself with this run)")
    return 0


def _plan(given: argparse.Namespace) -> Plan:
    from anyformer.lab.plan import Plan
    from anyformer.train.budget import Budget

    changes: dict[str, Any] = {}
    for option, (path, _, _) in SHORTCUTS.items():
        if getattr(given, option) is not None:
            changes[path] = getattr(given, option)
    changes |= dict(given.changes)
    minutes = MINUTES if given.minutes is None else given.minutes
    budget = Budget(steps=given.steps) if given.steps else Budget(seconds=60 * minutes)
    return Plan(text=given.text, budget=budget, changes=changes, out=given.out, device=given.device, seed=given.seed)


def _prepare(screen: Console, made: Quickstart, *, quiet: bool) -> None:
    """Read the text and make the model, each shown as soon as it is there."""
    corpus = made.read()
    if quiet:
        made.prepare()
        return
    learn, held = corpus.train_bytes / 1e6, corpus.held_out_bytes / 1e6
    files = f" ({len(corpus.train)} and {len(corpus.held_out)} documents)" if len(corpus.train) > 1 else ""
    _line(screen, "text", f"{corpus.title}: {learn:.2f} MB to learn from, {held:.2f} MB held out{files}")
    with screen.status("training a tokenizer"):
        spec = made.prepare()
    from anyformer.explain.summary import summary

    per_token = corpus.train_bytes / len(made.tokens)
    _line(screen, "tokens", f"byte-level BPE, {spec.vocab:,} tokens of {per_token:.2f} bytes on average")
    _line(screen, "model", summary(spec))


def _line(screen: Console, label: str, text: str) -> None:
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(width=6, no_wrap=True)
    grid.add_row(Text(label, style="bold"), Text(text))
    print_all(screen, [grid])


def _progress(screen: Console, made: Quickstart, *, quiet: bool) -> Iterator[StepRecord]:
    """Train behind a bar on a terminal, with a line for each tenth of the run in a pipe."""
    if quiet:
        yield from made.train()
        return
    if not screen.is_terminal:
        tenths = 0
        for record in made.train():
            if int(record.progress * 10) > tenths:
                tenths = int(record.progress * 10)
                screen.print(f"  {_numbers(record, screen.width)}  {_left(record)}")
            yield record
        return
    from rich.progress import BarColumn, Progress, TextColumn

    bar = Progress(TextColumn("{task.description}"), BarColumn(bar_width=None), TextColumn("{task.fields[left]}"),
                   console=screen)  # fmt: skip
    with bar:
        task = bar.add_task("training", total=1.0, left="")
        for record in made.train():
            bar.update(task, completed=record.progress, description=_numbers(record, screen.width), left=_left(record))
            yield record


def _numbers(record: StepRecord, width: int) -> str:
    speed = record.tokens / record.seconds
    steps = f"step {record.step:4}"
    return f"{steps}  loss {record.loss:.3f}  {speed:,.0f} tokens/s" if width >= 60 else f"{steps} {record.loss:.2f}"


def _left(record: StepRecord) -> str:
    left = record.seconds * (1 - record.progress) / max(record.progress, 1e-6)
    return f"{int(left) // 60}:{int(left) % 60:02} left"


def _show_result(screen: Console, result: Result) -> None:
    gain = 1 - result.bits_per_byte / result.gzip_bits_per_byte
    beside = f"{abs(gain):.1%} {'below' if gain >= 0 else 'above'} gzip"
    table = _table("held out", "bits per byte", "")
    table.add_row("unigram model", f"{result.unigram_bits_per_byte:.3f}", "tokens by their frequency")
    table.add_row("gzip -9", f"{result.gzip_bits_per_byte:.3f}", "")
    table.add_row("[bold]this model[/]", f"[bold]{result.bits_per_byte:.3f}[/]", f"[bold]{beside}[/]")
    spent = f"{result.steps:,} steps, {result.tokens / 1e6:.2f}M tokens, {result.seconds:.0f} s"
    line = f"loss {result.loss:.3f} nats per token, perplexity {result.perplexity:.1f}, after {spent}"
    print_all(screen, ["", table, line])


def _show_sample(made: Quickstart) -> None:
    say("\n")
    for piece in made.speak():
        say(piece)
    say("\n\n")


def _show_comparison(screen: Console, compared: Comparison) -> None:
    names, before, after = compared.difference.names, compared.before, compared.after
    changed = ", ".join(f"{a.name}: {a.value} -> {b.value}" for a, b in compared.difference.axes)
    screen.print(f"[bold]Beside {names[0]}[/]: {compared.difference.headline}{f' ({changed})' if changed else ''}")
    table = _table("", names[0], names[1])
    table.add_row("parameters", f"{before.params:,}", f"{after.params:,}")
    table.add_row("steps", f"{before.steps:,}", f"{after.steps:,}")
    table.add_row("tokens/s", f"{before.tokens / before.seconds:,.0f}", f"{after.tokens / after.seconds:,.0f}")
    table.add_row("loss", f"{before.loss:.3f}", f"{after.loss:.3f}")
    table.add_row("[bold]bits per byte[/]", f"{before.bits_per_byte:.3f}", f"[bold]{after.bits_per_byte:.3f}[/]")
    word = "better" if compared.gain > 0 else "worse"
    print_all(
        screen, [table, f"{abs(compared.gain):.1%} {word}. One run each: differences of about 1% may be chance.", ""]
    )


def _table(*columns: str) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if 0 < i < 3 and column else "left", overflow="fold")
    return table


def _data(result: Result, place: str, compared: Comparison | None) -> dict[str, Any]:
    from dataclasses import asdict

    beside = None
    if compared is not None:
        beside = {"difference": compared.difference.data(), "before": asdict(compared.before), "gain": compared.gain}
    return {"folder": place, **asdict(result), "compared": beside}


COMMAND = Command(
    name="quickstart",
    summary="train a small language model in two minutes, and let it speak",
    example="""
anyformer quickstart
anyformer quickstart --position alibi
anyformer quickstart --norm-placement post --ffn relu --set attention.kv_heads=1
anyformer quickstart --text my-notes.txt --minutes 5
""",
    arguments=arguments,
    run=run,
)
