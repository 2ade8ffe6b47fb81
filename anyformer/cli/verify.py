"""`anyformer verify`: checks that a person can run on a model of their own."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from anyformer.cli import verify_generation, verify_packing, verify_resume
from anyformer.cli.model import working
from anyformer.cli.parser import Command, Parser, add_command, add_ignore_keys, whole
from anyformer.cli.terminal import console, finite, print_all, print_json

if TYPE_CHECKING:
    from anyformer.verify.parity import Comparison, Parity, Row

DTYPES = ("float64", "float32")


def parity_arguments(parser: argparse.ArgumentParser) -> None:
    """What `verify parity` takes."""
    parser.add_argument(
        "folder", metavar="DIR", help="a Hugging Face directory or org/name, or a folder of anyformer's"
    )
    parser.add_argument("--against", metavar="DIR2", help="what transformers loads instead of DIR")
    parser.add_argument(
        "--text", metavar="FILE", help="compare on this text too, besides random ids (- reads standard input)"
    )
    parser.add_argument(
        "--dtype", choices=DTYPES, default="float64",
        help="what both sides compute in (%(default)s: 16 bytes for each parameter, limit 1e-7; float32: 8 bytes, limit 1e-3)",
    )  # fmt: skip
    parser.add_argument("--length", type=whole(1), metavar="N", help="tokens of a row (128, or the context if shorter)")
    parser.add_argument("--seed", type=whole(0), default=0, metavar="N", help="of the random ids (%(default)s)")
    add_ignore_keys(parser)
    parser.add_argument("--json", action="store_true", help="the table as one JSON document")


def run_parity(given: argparse.Namespace) -> int:
    """Compare, print, and say by the exit status whether all is the same."""
    from anyformer.data.corpus import read_text
    from anyformer.families.hub import find_folder

    text = None if given.text is None else read_text(given.text)
    folder = find_folder(given.folder)
    against = None if given.against is None else find_folder(given.against)
    with working(f"comparing {given.folder} with transformers"):
        import torch

        from anyformer.data.tokenizer import tokenizer
        from anyformer.verify.parity import parity

        answer = parity(
            folder, against=against, text=text, tokenizer=None if text is None else tokenizer(folder),
            dtype=getattr(torch, given.dtype), length=given.length, seed=given.seed,
            ignore_keys=given.ignore_keys,
        )  # fmt: skip
    if given.json:
        print_json(_data(answer))
    else:
        _print(answer)
    return 0 if answer.same else 1


def _data(answer: Parity) -> dict[str, Any]:
    return {
        "model": answer.title, "reference": answer.reference, "dtype": answer.dtype, "limit": answer.limit,
        "reference_settings": list(answer.settings), "same": answer.same, "inputs": [_input(found) for found in answer.comparisons],
    }  # fmt: skip


def _input(found: Comparison) -> dict[str, Any]:
    first = found.first
    rows = [
        {"place": row.place, "theirs": row.theirs, "max": finite(row.max), "mean": finite(row.mean)}
        | ({} if row.top1 is None else {"top1": row.top1})
        | {"same": row.same}
        for row in found.rows
    ]
    return {
        "input": found.given, "tokens": found.tokens, "same": first is None,
        "first_difference": None if first is None else first.place, "rows": rows, "not_compared": list(found.notes),
    }  # fmt: skip


def _print(answer: Parity) -> None:
    from rich.text import Text

    parts: list[Any] = [Text(f"{answer.title} against {answer.reference}, {answer.dtype}, limit {answer.limit:g}")]
    told = "; ".join(("the reference is in eval mode, as from_pretrained gives it", *answer.settings))
    parts.append(Text(told, style="dim"))
    for found in answer.comparisons:
        parts += [Text(f"\n{found.given}, {found.tokens} tokens", style="bold"), _table(found.rows)]
        parts += [Text(f"not compared: {note}", style="dim") for note in found.notes]
    wrong = next((found for found in answer.comparisons if found.first is not None), None)
    if wrong is None or wrong.first is None:
        parts.append(Text("\nthe same computation", style="bold green"))
    else:
        row = wrong.first
        where = f"{row.place} ({row.theirs} of the public class)"
        parts.append(Text(f"\ndiffers, first at {where}, by {row.max:.2g} on {wrong.given}", style="bold red"))
    print_all(console(), parts)


def _table(rows: tuple[Row, ...]) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2, 0, 0))
    for justify in ("left", "right", "right", "right", "left"):
        table.add_column(justify=justify, no_wrap=True)
    table.add_row(*(Text(name, style="dim") for name in ("place", "max", "mean", "top-1", "")))
    for row in rows:
        verdict = Text("same", style="green") if row.same else Text("differs", style="red")
        top1 = "" if row.top1 is None else f"{row.top1:.1%}"
        table.add_row(row.place, f"{row.max:.1e}", f"{row.mean:.1e}", top1, verdict)
    return table


PARITY = Command(
    name="parity",
    summary="a checkpoint here and in transformers, compared layer by layer (needs anyformer[hf])",
    example="""
anyformer verify parity path/to/llama
anyformer verify parity path/to/llama --text notes.txt --dtype float32
anyformer verify parity converted --against path/to/original --json
""",
    arguments=parity_arguments,
    run=run_parity,
)
CHECKS: tuple[Command, ...] = (PARITY, verify_packing.CHECK, verify_generation.CHECK, verify_resume.CHECK)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Each check is a command of its own."""
    checks = parser.add_subparsers(title="checks", metavar="CHECK", dest="check", required=True, parser_class=Parser)
    for check in CHECKS:
        add_command(checks, check)


COMMAND = Command(
    name="verify",
    summary="checks: parity, packing, generation, exact resume",
    example="""
anyformer verify parity path/to/llama
anyformer verify packing llama-3-8b
anyformer verify generation runs/quickstart
anyformer verify resume runs/shakespeare
""",
    arguments=arguments,
    run=lambda given: given.run(given),
)
