"""`anyformer verify`: checks that a person can run on a model of their own.

anyformer verify parity path/to/llama
anyformer verify packing llama-3-8b
anyformer verify generation runs/quickstart
anyformer verify resume runs/shakespeare
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from anyformer.cli.model import Bar, working
from anyformer.cli.parser import Command, add_ignore_keys, flag, option, subcommands, whole
from anyformer.cli.terminal import finite, grid, show, text, verdict
from anyformer.cli.verify_model import GENERATION, PACKING

if TYPE_CHECKING:
    from anyformer.verify.parity import Comparison, Parity
    from anyformer.verify.resume import Resume

PARITY_EXAMPLES = """
anyformer verify parity path/to/llama
anyformer verify parity path/to/llama --text notes.txt --dtype float32
anyformer verify parity converted --against path/to/original --json
"""
RESUME_EXAMPLES = """
anyformer verify resume runs/shakespeare
anyformer verify resume runs/shakespeare --steps 20 --scratch scratch --json
"""


def _parity_arguments(parser: argparse.ArgumentParser) -> None:
    option(parser, "folder", "a Hugging Face directory or org/name, or a folder of anyformer's", "DIR")
    option(parser, "--against", "what transformers loads instead of DIR", "DIR2")
    option(parser, "--text", "compare on this text too, besides random ids (- reads standard input)", "FILE")
    words = "what both sides compute in (%(default)s: 16 bytes for each parameter, limit 1e-7; float32: 8 bytes, limit 1e-3)"
    option(parser, "--dtype", words, ("float64", "float32"), default="float64")
    option(parser, "--length", "tokens of a row (128, or the context if shorter)", whole(1))
    option(parser, "--seed", "of the random ids", whole(0), default=0)
    add_ignore_keys(parser)
    flag(parser, "--json", "the table as one JSON document")


def _run_parity(given: argparse.Namespace) -> int:
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

        words = None if text is None else tokenizer(folder)
        found = parity(
            folder, against=against, text=text, tokenizer=words, dtype=getattr(torch, given.dtype),
            length=given.length, seed=given.seed, ignore_keys=given.ignore_keys,
        )  # fmt: skip
    show(given.json, lambda: _parity_data(found), _parity_page(found))
    return 0 if found.same else 1


def _parity_data(found: Parity) -> dict[str, Any]:
    return {
        "model": found.title, "reference": found.reference, "dtype": found.dtype, "limit": found.limit,
        "reference_settings": list(found.settings), "same": found.same, "inputs": [_input(each) for each in found.comparisons],
    }  # fmt: skip


def _input(found: Comparison) -> dict[str, Any]:
    rows = [
        {"place": row.place, "theirs": row.theirs, "max": finite(row.max), "mean": finite(row.mean)}
        | ({} if row.top1 is None else {"top1": row.top1})
        | {"same": row.same}
        for row in found.rows
    ]
    return {
        "input": found.given, "tokens": found.tokens, "same": found.first is None,
        "first_difference": found.first and found.first.place, "rows": rows, "not_compared": list(found.notes),
    }  # fmt: skip


def _parity_page(found: Parity) -> Iterator[Any]:
    yield text(f"{found.title} against {found.reference}, {found.dtype}, limit {found.limit:g}")
    yield text("; ".join(("the reference is in eval mode, as from_pretrained gives it", *found.settings)), "dim")
    for each in found.comparisons:
        yield text(f"\n{each.given}, {each.tokens} tokens", "bold")
        table = grid(("place", "max", "mean", "top-1", ""), "lrrrl")
        for row in each.rows:
            top1 = "" if row.top1 is None else f"{row.top1:.1%}"
            table.add_row(row.place, f"{row.max:.1e}", f"{row.mean:.1e}", top1, verdict(same=row.same))
        yield table
        for note in each.notes:
            yield text(f"not compared: {note}", "dim")
    wrong = [(each.given, each.first) for each in found.comparisons if each.first is not None]
    if not wrong:
        yield text("\nthe same computation", "bold green")
    for given, row in wrong[:1]:
        where = f"{row.place} ({row.theirs} of the public class)"
        yield text(f"\ndiffers, first at {where}, by {row.max:.2g} on {given}", "bold red")


def _resume_arguments(parser: argparse.ArgumentParser) -> None:
    option(parser, "folder", "the folder of a run, which is only read", "RUN")
    option(parser, "--steps", "to train, twice", whole(2), default=8)
    option(parser, "--scratch", "where two copies of a checkpoint find room for a while", "DIR")
    flag(parser, "--json", "the table as one JSON document")


def _run_resume(given: argparse.Namespace) -> int:
    """Check, print, and say by the exit status whether all is the same to the bit."""
    with Bar("training") as bar:
        from anyformer.verify.resume import resume

        found = resume(given.folder, steps=given.steps, scratch=given.scratch, report=bar)
    show(given.json, lambda: _resume_data(found), _resume_page(found))
    return 0 if found.same else 1


def _resume_data(found: Resume) -> dict[str, Any]:
    return {
        "run": found.run, "from_step": found.begin, "interrupted_at": found.middle, "to_step": found.end,
        "same": found.same, "advice": found.advice or None, "device": found.device, "notes": list(found.notes),
        "rows": [
            {"name": row.name, "compared": row.compared, "difference": finite(row.difference), "first": row.first or None}
            for row in found.rows
        ],
    }  # fmt: skip


def _resume_page(found: Resume) -> Iterator[Any]:
    yield text(f"{found.run}: steps {found.begin + 1} to {found.end}, straight and interrupted after {found.middle}")
    table = grid(("", "compared", "difference", ""), "lrrl", gap=3)
    for row in found.rows:
        gap = "0" if row.same else f"{row.difference:.2g}"
        table.add_row(
            row.name, f"{row.compared:,}", gap, verdict(same=row.same, otherwise=f"differs, first at {row.first}")
        )
    yield table
    for note in found.notes:
        yield text(note, "yellow")
    if found.same:
        yield text("\nan interrupted run ends as an uninterrupted one, to the bit", "bold green")
    else:
        yield text("\nan interrupted run ends otherwise", "bold red")
        yield text(found.advice)


SUMMARY = "a checkpoint here and in transformers, compared layer by layer (needs anyformer[hf])"
CHECKS = (
    Command("parity", SUMMARY, PARITY_EXAMPLES, _parity_arguments, _run_parity),
    PACKING,
    GENERATION,
    Command("resume", "a run that is interrupted ends as one that is not, to the bit", RESUME_EXAMPLES, _resume_arguments, _run_resume),
)  # fmt: skip
COMMAND = Command(
    "verify", "checks: parity, packing, generation, exact resume", __doc__, subcommands("checks", "CHECK", CHECKS),
    lambda given: given.run(given),
)  # fmt: skip
