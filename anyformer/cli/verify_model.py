"""`anyformer verify packing` and `generation`: checks of any spec, with its own weights or with random ones."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyformer.cli.model import Bar, device_of, working
from anyformer.cli.parser import Command, add_ignore_keys, add_set, flag, option, whole
from anyformer.cli.terminal import finite, grid, show, text, verdict
from anyformer.errors import InputError

if TYPE_CHECKING:
    from anyformer.model.model import Model
    from anyformer.specs.model import ModelSpec
    from anyformer.verify.generation import Equality
    from anyformer.verify.packing import Packing

PACKING_EXAMPLES = """
anyformer verify packing llama-3-8b
anyformer verify packing gemma-3-4b --set position.kind=alibi --documents 6
anyformer verify packing runs/quickstart --length 300 --json
"""
GENERATION_EXAMPLES = """
anyformer verify generation path/to/checkpoint
anyformer verify generation runs/quickstart --dtype float32 --new 64 --json
anyformer verify generation gemma-3-4b --set position.kind=alibi
"""
BYTES = {"float64": 8, "float32": 4, "bfloat16": 2}


def _model_arguments(parser: argparse.ArgumentParser) -> None:
    option(parser, "spec", "the name of a preset, a .toml file or a directory", "SPEC")
    add_set(parser)
    add_ignore_keys(parser)
    flag(parser, "--full", "in its own size; otherwise a large spec without weights is made small")


def _model(
    given: argparse.Namespace, check: Callable[[ModelSpec], None], *, each: int, what: str = "", dtype: str = "float64",
    device: str = "cpu",
) -> tuple[Model, str]:  # fmt: skip
    """The model, if its spec passes a check, and what it is: its own weights if it has some, else random ones, in small
    if need be. `each` is how many bytes a parameter takes in all, and `what` says of what.
    """
    import torch

    import anyformer
    from anyformer.families.io import load
    from anyformer.families.shards import INDEX, SINGLE
    from anyformer.kernels.memory import free
    from anyformer.model.build import build
    from anyformer.verify.packing import randomise
    from anyformer.verify.shrink import is_large, size_of, small

    spec, folder = anyformer.spec(given.spec, dict(given.changes), ignore_keys=given.ignore_keys), Path(given.spec)
    check(spec)
    stored = folder.suffix != ".toml" and any((folder / name).is_file() for name in (SINGLE, INDEX))
    if stored and given.changes:
        raise InputError(f"--set: {given.spec} holds weights, which fit its own spec only; name a preset or a .toml")
    shrinks = not stored and not given.full and is_large(spec)
    made = small(spec) if shrinks else spec
    params, room = made.count().params, free()
    if device == "cpu" and each * params > room:
        advice = "leave out --full" if given.full else "check its spec alone, without weights"
        raise InputError(
            f"{given.spec}: {params / 1e9:.3g} B parameters{what} take {each * params / 1e9:.3g} GB in fp"
            f"{dtype.removeprefix('float')}, but {room / 1e9:.3g} GB are free; {advice}"
        )
    kind = getattr(torch, dtype)
    if stored:
        return load(folder, device, kind, ignore_keys=given.ignore_keys), "its own weights"
    model = randomise(build(made, dtype=kind, seed=given.seed), given.seed).to(device)
    return model, f"{f'made small: {size_of(made)}; ' if shrinks else ''}random weights"


def _packing_arguments(parser: argparse.ArgumentParser) -> None:
    _model_arguments(parser)
    option(parser, "--documents", "how many share a row", whole(2), default=4)
    option(parser, "--length", "tokens of the longest (past windows, chunks and blocks)", whole(1))
    option(parser, "--seed", "of tokens and weights", whole(0), default=0)
    flag(parser, "--json", "the figures as one JSON document")


def _run_packing(given: argparse.Namespace) -> int:
    """Check, print, and say by the exit status whether documents in one row leave each other alone."""
    with working(f"building {given.spec}"):
        from anyformer.verify.packing import check_packs, packing

        # Weights, and twice their gradients.
        model, origin = _model(given, check_packs, each=24, what=" with gradients")
    with Bar("packing") as bar:
        found = packing(model, documents=given.documents, length=given.length, seed=given.seed, report=bar)
    show(given.json, lambda: _packing_data(given.spec, origin, found), _packing_page(given.spec, origin, found))
    return 0 if found.passed else 1


def _packing_data(name: str, origin: str, found: Packing) -> dict[str, Any]:
    from anyformer.verify.packing import LEAK, SAME

    return {
        "model": name, "weights": origin, "dtype": "float64", "exact": found.exact, "passed": found.passed,
        "limit": SAME, "leak_limit": LEAK, "leaks": [list(pair) for pair in found.leaks],
        "documents": [
            {"tokens": list(lengths), "difference": finite(apart), "moved_by": [finite(row[i]) for row in found.moved]}
            for i, (lengths, apart) in enumerate(zip(found.lengths, found.answers, strict=True))
        ],
        "loss": finite(found.loss), "gradient": finite(found.gradient), "gradient_of": found.worst,
        "repeated": finite(found.repeated), "notes": list(found.notes),
    }  # fmt: skip


def _packing_page(name: str, origin: str, found: Packing) -> Iterator[Any]:
    from anyformer.verify.packing import LEAK, SAME

    tokens, count = sum(max(lengths) for lengths in found.lengths), len(found.lengths)
    yield text(f"{name}, {origin}, float64")
    yield text(f"{count} documents in one row of {tokens} tokens, no dropout, no auxiliary losses")
    held = f"limit {SAME:g}" if found.exact else "for information: its mixer is approximate"
    yield text(f"\npacked against alone ({held})", "bold")
    table = grid(("", "tokens", "max", ""), "lrrr", gap=3)
    rows = [
        (f"document {i}", " + ".join(map(str, lengths)), apart)
        for i, (lengths, apart) in enumerate(zip(found.lengths, found.answers, strict=True))
    ]
    for label, lengths, apart in (*rows, ("summed loss", "", found.loss), ("gradients", "", found.gradient)):
        table.add_row(label, lengths, f"{apart:.1e}", verdict(same=apart <= SAME) if found.exact else "")
    if found.exact and not found.gradient <= SAME:
        table.add_row(text(f"  most in {found.worst}", "red"))
    yield table
    yield text(f"\nhow far each document moves when one is changed (limit {LEAK:g} for the others)", "bold")
    table = grid(("changed", *map(str, range(count))), "l" + "r" * count, gap=3)
    for i, row in enumerate(found.moved):
        fine = [moved > SAME if i == j else moved <= LEAK for j, moved in enumerate(row)]
        styles = ["red" if not right else "green" if i == j else "" for j, right in enumerate(fine)]
        cells = [text("0" if m == 0 else f"{m:.1e}", style) for m, style in zip(row, styles, strict=True)]
        table.add_row(f"document {i}", *cells)
    yield table
    if not found.exact:
        why = "an approximate mixer sorts the tokens of a whole row, so packed need not equal alone"
        yield text(f"\n{why}; it is held to no leak, and to the same output twice", "dim")
    for note in found.notes:
        yield text(f"\n{note}", "yellow")
    wrong = [f"document {i} leaks into document {j}, which moves by {found.moved[i][j]:.2g}" for i, j in found.leaks]
    wrong += [f"document {i} does not move when it is changed itself, so nothing is shown of it" for i in found.deaf]
    wrong += ["packed differs from alone"] if found.exact and not found.same else []
    if found.repeated != 0:
        wrong.append(f"the same row gives another output the second time, by {found.repeated:.2g}")
    passed = f"{'packed equals alone, and nothing' if found.exact else 'nothing'} leaks"
    yield text("\n" + "\n".join(wrong or [passed]), f"bold {'red' if wrong else 'green'}")


def _generation_arguments(parser: argparse.ArgumentParser) -> None:
    _model_arguments(parser)
    option(parser, "--prompts", "how many", whole(2), default=4)
    option(parser, "--length", "tokens of the longest (past windows, chunks and blocks)", whole(1))
    option(parser, "--new", "new tokens of each", whole(1), default=16)
    words = "%(default)s: not one token may differ; narrower: near-ties are counted, and are no mismatch"
    option(parser, "--dtype", words, tuple(BYTES), default="float64")
    option(parser, "--device", "where to run", "NAME", default="cpu")
    option(parser, "--seed", "of prompts, draws and weights", whole(0), default=0)
    flag(parser, "--json", "the table as one JSON document")


def _run_generation(given: argparse.Namespace) -> int:
    """Check, print, and say by the exit status whether every decoding mode gives the same tokens."""
    with working(f"building {given.spec}"):
        from anyformer.generation.params.generation_request import check_model
        from anyformer.verify.generation import equality

        device = device_of(given.device)
        model, origin = _model(given, check_model, each=BYTES[given.dtype], dtype=given.dtype, device=device)
    with Bar("generating") as bar:
        found = equality(model, prompts=given.prompts, length=given.length, new=given.new, seed=given.seed, report=bar)
    named = (given.spec, origin, device, found)
    show(given.json, lambda: _generation_data(*named), _generation_page(*named))
    return 0 if found.passed else 1


def _generation_data(name: str, origin: str, device: str, found: Equality) -> dict[str, Any]:
    from anyformer.verify.generation import SAME, TEMPERATURES, TIE

    strict = found.dtype == "float64"
    return {
        "model": name, "weights": origin, "device": device, "dtype": found.dtype, "exact": found.exact,
        "passed": found.passed, "prompts": list(found.lengths), "new_tokens": found.new,
        "temperatures": list(TEMPERATURES), "limit": SAME if strict else None, "tie": None if strict else TIE,
        "ways": [
            {"way": row.mode, "absent": row.absent}
            if row.absent is not None
            else {
                "way": row.mode, "answers": row.cases, "tokens": row.tokens, "mismatches": row.mismatches,
                "near_ties": row.ties, "difference": None if row.difference is None else finite(row.difference),
                "first_mismatch": row.first,
            }
            for row in found.rows
        ],
        "notes": list(found.notes),
    }  # fmt: skip


def _generation_page(name: str, origin: str, device: str, found: Equality) -> Iterator[Any]:
    from anyformer.verify.generation import SAME, TIE

    yield text(f"{name}, {origin}, {found.dtype} on {device}")
    lengths = ", ".join(map(str, found.lengths))
    yield text(f"prompts of {lengths} random tokens, {found.new} new ones each, the likeliest and drawn with seeds")
    if not found.exact:
        held = "for information: its mixer is approximate, and groups tokens by what is read at once"
    elif found.dtype == "float64":
        held = f"limits: no mismatch, and log-probabilities within {SAME:g}"
    else:
        held = f"limit: no mismatch; a near-tie was decided by less than {TIE:g} of the range, and is none"
    yield text(f"\nagainst each prompt alone, with a cache ({held})", "bold")
    table = grid(("way", "answers", "tokens", "mismatches", "near-ties", "max", ""), "lrrrrrl")
    for row in found.rows:
        numbers = [f"{n}" for n in (row.cases, row.tokens, row.mismatches, row.ties)]
        apart = "-" if row.difference is None else "0" if row.difference == 0 else f"{row.difference:.1e}"
        cells = [*numbers, apart, verdict(same=row not in found.wrong)]
        table.add_row(row.mode, *(cells if row.absent is None else [text("-", "dim")] * 5))
    yield table
    for row in found.rows:
        if row.absent is not None:
            yield text(f"not compared: {row.mode}: {row.absent}", "dim")
    for note in found.notes:
        yield text(f"\n{note}", "yellow")
    if not found.exact and found.wrong:
        yield text("\nsome ways differ, as an approximate mixer may", "bold")
    elif not found.wrong:
        cases, ties = sum(row.cases for row in found.rows), sum(row.ties for row in found.rows)
        also = f", {ties} near-tie{'s' * (ties != 1)}" if found.dtype != "float64" else ""
        yield text(f"\nthe same tokens in every way: {cases} answers, 0 mismatches{also}", "bold green")
    else:
        lines = [f"{r.mode}: {r.first or f'log-probabilities differ by {r.difference:.2g}'}" for r in found.wrong]
        yield text("\ndiffers\n" + "\n".join(lines), "bold red")
        if found.dtype == "bfloat16":
            yield text(
                "a product of other shapes rounds otherwise in 8 bits; float32 and float64 are held to more", "dim"
            )


PACKING = Command(
    "packing", "documents in one row leave each other alone: the same numbers, and no leak", PACKING_EXAMPLES,
    _packing_arguments, _run_packing,
)  # fmt: skip
GENERATION = Command(
    "generation", "the same tokens alone, in batches, cached or not, streamed, in pieces and in pages",
    GENERATION_EXAMPLES, _generation_arguments, _run_generation,
)  # fmt: skip
