"""`anyformer verify generation`: the same tokens alone, in a batch, with a cache and without, streamed, in pages."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from anyformer.cli.device_args import device_of
from anyformer.cli.model import Bar, working
from anyformer.cli.parser import Command, whole
from anyformer.cli.terminal import console, finite, print_all, print_json
from anyformer.cli.verify_model import add_model, checked_model

if TYPE_CHECKING:
    from anyformer.verify.generation import Equality, Row

BYTES = {"float64": 8, "float32": 4, "bfloat16": 2}


def arguments(parser: argparse.ArgumentParser) -> None:
    """What `verify generation` takes."""
    add_model(parser)
    parser.add_argument("--prompts", type=whole(2), default=4, metavar="N", help="how many (%(default)s)")
    parser.add_argument(
        "--length", type=whole(1), metavar="N", help="tokens of the longest (past windows, chunks and blocks)"
    )
    parser.add_argument("--new", type=whole(1), default=16, metavar="N", help="new tokens of each (%(default)s)")
    parser.add_argument(
        "--dtype", choices=tuple(BYTES), default="float64",
        help="%(default)s: not one token may differ; narrower: near-ties are counted, and are no mismatch",
    )  # fmt: skip
    parser.add_argument("--device", default="cpu", metavar="NAME", help="where to run (%(default)s)")
    parser.add_argument(
        "--seed", type=whole(0), default=0, metavar="N", help="of prompts, draws and weights (%(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="the table as one JSON document")


def run(given: argparse.Namespace) -> int:
    """Check, print, and say by the exit status whether every way gives the same tokens."""
    import anyformer

    spec = anyformer.spec(given.spec, dict(given.changes), ignore_keys=given.ignore_keys)
    with working(f"building {given.spec}"):
        from anyformer.generation.asking.request import check_model
        from anyformer.verify.generation import equality

        check_model(spec)
        device = device_of(given.device)
        model, origin = checked_model(given, spec, each=BYTES[given.dtype], what="", dtype=given.dtype, device=device)
    with Bar("generating") as bar:
        answer = equality(model, prompts=given.prompts, length=given.length, new=given.new, seed=given.seed, report=bar)
    if given.json:
        print_json(_data(given.spec, origin, device, answer))
    else:
        print_all(console(), _page(given.spec, origin, device, answer))
    return 0 if answer.passed else 1


def _data(name: str, origin: str, device: str, answer: Equality) -> dict[str, Any]:
    from anyformer.verify.generation import HEATS, SAME, TIE

    strict = answer.dtype == "float64"
    return {
        "model": name, "weights": origin, "device": device, "dtype": answer.dtype, "exact": answer.exact,
        "passed": answer.passed,
        "prompts": list(answer.lengths), "new_tokens": answer.new, "temperatures": list(HEATS),
        "limit": SAME if strict else None, "tie": None if strict else TIE,
        "ways": [
            {"way": row.way, "absent": row.absent}
            if row.absent is not None
            else {
                "way": row.way, "answers": row.cases, "tokens": row.tokens, "mismatches": row.mismatches,
                "near_ties": row.ties, "difference": None if row.difference is None else finite(row.difference), "first_mismatch": row.first,
            }
            for row in answer.rows
        ],
        "notes": list(answer.notes),
    }  # fmt: skip


def _page(name: str, origin: str, device: str, answer: Equality) -> Iterator[Any]:
    from rich.text import Text

    from anyformer.verify.generation import SAME, TIE

    yield Text(f"{name}, {origin}, {answer.dtype} on {device}")
    lengths = ", ".join(map(str, answer.lengths))
    yield Text(f"prompts of {lengths} random tokens, {answer.new} new ones each, the likeliest and drawn with seeds")
    if not answer.exact:
        held = "for information: its mixer is approximate, and groups tokens by what is read at once"
    elif answer.dtype == "float64":
        held = f"limits: no mismatch, and log-probabilities within {SAME:g}"
    else:
        held = f"limit: no mismatch; a near-tie was decided by less than {TIE:g} of the range, and is none"
    yield Text(f"\nagainst each prompt alone, with a cache ({held})", style="bold")
    yield _table(answer)
    for note in answer.notes:
        yield Text(f"\n{note}", style="yellow")
    if not answer.exact and answer.wrong:
        yield Text("\nsome ways differ, as an approximate mixer may", style="bold")
        return
    if not answer.wrong:
        cases, ties = sum(row.cases for row in answer.rows), sum(row.ties for row in answer.rows)
        also = f", {ties} near-tie{'s' * (ties != 1)}" if answer.dtype != "float64" else ""
        yield Text(f"\nthe same tokens in every way: {cases} answers, 0 mismatches{also}", style="bold green")
        return
    lines = [f"{row.way}: {row.first or f'log-probabilities differ by {row.difference:.2g}'}" for row in answer.wrong]
    yield Text("\ndiffers\n" + "\n".join(lines), style="bold red")
    if answer.dtype == "bfloat16":
        yield Text("a product of other shapes rounds otherwise in 8 bits; float32 and float64 are held to more", "dim")


def _table(answer: Equality) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2, 0, 0))
    for justify in ("left", "right", "right", "right", "right", "right", "left"):
        table.add_column(justify=justify, no_wrap=True)
    names = ("way", "answers", "tokens", "mismatches", "near-ties", "max", "")
    table.add_row(*(Text(name, style="dim") for name in names))
    for row in answer.rows:
        if row.absent is not None:
            table.add_row(row.way, *([Text("-", style="dim")] * 5))
            continue
        verdict = Text("differs", style="red") if row in answer.wrong else Text("same", style="green")
        numbers = (row.cases, row.tokens, row.mismatches, row.ties)
        table.add_row(row.way, *map(str, numbers), _shown(row), verdict)
    absent = [f"{row.way}: {row.absent}" for row in answer.rows if row.absent is not None]
    if not absent:
        return table
    from rich.console import Group

    return Group(table, *(Text(f"not compared: {line}", style="dim") for line in absent))


def _shown(row: Row) -> str:
    return "-" if row.difference is None else "0" if row.difference == 0 else f"{row.difference:.1e}"


CHECK = Command(
    name="generation",
    summary="the same tokens alone, in batches, cached or not, streamed, in pieces and in pages",
    example="""
anyformer verify generation path/to/checkpoint
anyformer verify generation runs/quickstart --dtype float32 --new 64 --json
anyformer verify generation gemma-3-4b --set position.kind=alibi
""",
    arguments=arguments,
    run=run,
)
