"""`anyformer verify packing`: documents in one row leave each other alone."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from anyformer.cli.model import Bar, working
from anyformer.cli.parser import Command, whole
from anyformer.cli.terminal import console, finite, print_all, print_json
from anyformer.cli.verify_model import add_model, checked_model

if TYPE_CHECKING:
    from anyformer.verify.packing import Packing


def arguments(parser: argparse.ArgumentParser) -> None:
    """What `verify packing` takes."""
    add_model(parser)
    parser.add_argument("--documents", type=whole(2), default=4, metavar="N", help="how many share a row (%(default)s)")
    parser.add_argument(
        "--length", type=whole(1), metavar="N", help="tokens of the longest (past windows, chunks and blocks)"
    )
    parser.add_argument("--seed", type=whole(0), default=0, metavar="N", help="of tokens and weights (%(default)s)")
    parser.add_argument("--json", action="store_true", help="the figures as one JSON document")


def run(given: argparse.Namespace) -> int:
    """Check, print, and say by the exit status whether documents in one row leave each other alone."""
    import anyformer

    spec = anyformer.spec(given.spec, dict(given.changes), ignore_keys=given.ignore_keys)
    with working(f"building {given.spec}"):
        from anyformer.verify.packing import check_packs, packing

        check_packs(spec)
        # Weights, and twice their gradients.
        model, origin = checked_model(given, spec, each=24, what=" with gradients")
    with Bar("packing") as bar:
        answer = packing(model, documents=given.documents, length=given.length, seed=given.seed, report=bar)
    if given.json:
        print_json(_data(given.spec, origin, answer))
    else:
        print_all(console(), _page(given.spec, origin, answer))
    return 0 if answer.passed else 1


def _data(name: str, origin: str, answer: Packing) -> dict[str, Any]:
    from anyformer.verify.packing import LEAK, SAME

    return {
        "model": name, "weights": origin, "dtype": "float64", "exact": answer.exact, "passed": answer.passed,
        "limit": SAME, "leak_limit": LEAK, "leaks": [list(pair) for pair in answer.leaks],
        "documents": [
            {"tokens": list(lengths), "difference": finite(found), "moved_by": [finite(row[i]) for row in answer.moved]}
            for i, (lengths, found) in enumerate(zip(answer.lengths, answer.answers, strict=True))
        ],
        "loss": finite(answer.loss), "gradient": finite(answer.gradient), "gradient_of": answer.worst,
        "repeated": finite(answer.repeated), "notes": list(answer.notes),
    }  # fmt: skip


def _page(name: str, origin: str, answer: Packing) -> Iterator[Any]:
    from rich.text import Text

    from anyformer.verify.packing import LEAK, SAME

    tokens = sum(max(lengths) for lengths in answer.lengths)
    yield Text(f"{name}, {origin}, float64")
    yield Text(f"{len(answer.lengths)} documents in one row of {tokens} tokens, no dropout, no auxiliary losses")
    held = f"limit {SAME:g}" if answer.exact else "for information: its mixer is approximate"
    yield Text(f"\npacked against alone ({held})", style="bold")
    yield _alone_table(answer)
    yield Text(f"\nhow far each document moves when one is changed (limit {LEAK:g} for the others)", style="bold")
    yield _leak_table(answer)
    if not answer.exact:
        why = "an approximate mixer sorts the tokens of a whole row, so packed need not equal alone"
        yield Text(f"\n{why}; it is held to no leak, and to the same output twice", style="dim")
    for note in answer.notes:
        yield Text(f"\n{note}", style="yellow")
    wrong = _wrong(answer)
    if wrong:
        yield Text("\n" + "\n".join(wrong), style="bold red")
    else:
        yield Text(f"\n{'packed equals alone, and nothing' if answer.exact else 'nothing'} leaks", style="bold green")


def _wrong(answer: Packing) -> list[str]:
    found = [f"document {i} leaks into document {j}, which moves by {answer.moved[i][j]:.2g}" for i, j in answer.leaks]
    found += [f"document {i} does not move when it is changed itself, so nothing is shown of it" for i in answer.deaf]
    if answer.exact and not answer.same:
        found.append("packed differs from alone")
    if answer.repeated != 0:
        found.append(f"the same row gives another output the second time, by {answer.repeated:.2g}")
    return found


def _grid(columns: int) -> Any:
    from rich.table import Table

    table = Table.grid(padding=(0, 3, 0, 0))
    table.add_column(no_wrap=True)
    for _ in range(columns):
        table.add_column(justify="right", no_wrap=True)
    return table


def _alone_table(answer: Packing) -> Any:
    from rich.text import Text

    from anyformer.verify.packing import SAME

    def verdict(found: float) -> Text:
        if not answer.exact:
            return Text("")
        return Text("same", style="green") if found <= SAME else Text("differs", style="red")

    table = _grid(3)
    table.add_row(*(Text(name, style="dim") for name in ("", "tokens", "max", "")))
    for i, (lengths, found) in enumerate(zip(answer.lengths, answer.answers, strict=True)):
        table.add_row(f"document {i}", " + ".join(map(str, lengths)), f"{found:.1e}", verdict(found))
    table.add_row("summed loss", "", f"{answer.loss:.1e}", verdict(answer.loss))
    table.add_row("gradients", "", f"{answer.gradient:.1e}", verdict(answer.gradient))
    if answer.exact and not answer.gradient <= SAME:
        table.add_row(Text(f"  most in {answer.worst}", style="red"))
    return table


def _leak_table(answer: Packing) -> Any:
    from rich.text import Text

    from anyformer.verify.packing import LEAK, SAME

    table = _grid(len(answer.moved))
    table.add_row(*(Text(name, style="dim") for name in ("changed", *map(str, range(len(answer.moved))))))
    for i, row in enumerate(answer.moved):
        right = [found > SAME if i == j else found <= LEAK for j, found in enumerate(row)]
        cells = [
            Text("0" if found == 0 else f"{found:.1e}", style="red" if not fine else "green" if i == j else "")
            for j, (found, fine) in enumerate(zip(row, right, strict=True))
        ]
        table.add_row(f"document {i}", *cells)
    return table


CHECK = Command(
    name="packing",
    summary="documents in one row leave each other alone: the same numbers, and no leak",
    example="""
anyformer verify packing llama-3-8b
anyformer verify packing gemma-3-4b --set position.kind=alibi --documents 6
anyformer verify packing runs/quickstart --length 300 --json
""",
    arguments=arguments,
    run=run,
)
