"""`anyformer verify resume`: a run that is interrupted ends as one that is not."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from anyformer.cli.model import Bar
from anyformer.cli.parser import Command, whole
from anyformer.cli.terminal import console, finite, print_all, print_json

if TYPE_CHECKING:
    from anyformer.verify.resume import Resume


def arguments(parser: argparse.ArgumentParser) -> None:
    """What `verify resume` takes."""
    parser.add_argument("folder", metavar="RUN", help="the folder of a run, which is only read")
    parser.add_argument("--steps", type=whole(2), default=8, metavar="N", help="to train, twice (%(default)s)")
    parser.add_argument("--scratch", metavar="DIR", help="where two copies of a checkpoint find room for a while")
    parser.add_argument("--json", action="store_true", help="the table as one JSON document")


def run(given: argparse.Namespace) -> int:
    """Check, print, and say by the exit status whether all is the same to the bit."""
    with Bar("training") as bar:
        from anyformer.verify.resume import resume

        answer = resume(given.folder, steps=given.steps, scratch=given.scratch, report=bar)
    if given.json:
        print_json(_data(answer))
    else:
        print_all(console(), _page(answer))
    return 0 if answer.same else 1


def _data(answer: Resume) -> dict[str, Any]:
    return {
        "run": answer.run, "from_step": answer.begin, "interrupted_at": answer.middle, "to_step": answer.end,
        "same": answer.same, "advice": answer.advice or None, "device": answer.device, "notes": list(answer.notes),
        "rows": [
            {"name": row.name, "compared": row.compared, "difference": finite(row.difference), "first": row.first or None}
            for row in answer.rows
        ],
    }  # fmt: skip


def _page(answer: Resume) -> Iterator[Any]:
    from rich.table import Table
    from rich.text import Text

    yield Text(
        f"{answer.run}: steps {answer.begin + 1} to {answer.end}, straight and interrupted after {answer.middle}"
    )
    table = Table.grid(padding=(0, 3, 0, 0))
    for justify in ("left", "right", "right", "left"):
        table.add_column(justify=justify, no_wrap=True)
    table.add_row(*(Text(name, style="dim") for name in ("", "compared", "difference", "")))
    for row in answer.rows:
        verdict = Text("same", style="green") if row.same else Text(f"differs, first at {row.first}", style="red")
        table.add_row(row.name, f"{row.compared:,}", "0" if row.same else f"{row.difference:.2g}", verdict)
    yield table
    for note in answer.notes:
        yield Text(note, style="yellow")
    if answer.same:
        yield Text("\nan interrupted run ends as an uninterrupted one, to the bit", style="bold green")
    else:
        yield Text("\nan interrupted run ends otherwise", style="bold red")
        yield Text(answer.advice)


CHECK = Command(
    name="resume",
    summary="a run that is interrupted ends as one that is not, to the bit",
    example="""
anyformer verify resume runs/shakespeare
anyformer verify resume runs/shakespeare --steps 20 --scratch scratch --json
""",
    arguments=arguments,
    run=run,
)
