"""`anyformer verify`: checks that a person can run on a model of their own."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyformer.cli.model import Bar, device_of, working
from anyformer.cli.parser import Command, add_ignore_keys, add_set, flag, group, option, whole
from anyformer.cli.terminal import grid, show, text, verdict
from anyformer.errors import InputError

if TYPE_CHECKING:
    from anyformer.model.model import Model
    from anyformer.specs.model import ModelSpec
    from anyformer.verify.generation import Equality
    from anyformer.verify.packing import Packing
    from anyformer.verify.parity import Parity
    from anyformer.verify.resume import Resume

PARITY_EXAMPLES = """
anyformer verify parity path/to/llama
anyformer verify parity path/to/llama --text notes.txt --dtype float32
anyformer verify parity converted --against path/to/original --json
"""
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
RESUME_EXAMPLES = """
anyformer verify resume runs/shakespeare
anyformer verify resume runs/shakespeare --steps 20 --scratch scratch --json
"""
BYTES = {"float64": 8, "float32": 4, "bfloat16": 2}


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
    from anyformer.families.io import find_folder

    text = None if given.text is None else read_text(given.text)
    folder = find_folder(given.folder)
    against = None if given.against is None else find_folder(given.against)
    with working(f"comparing {given.folder} with transformers"):
        import torch

        from anyformer.data.tokenizer import tokenizer
        from anyformer.verify.parity import parity

        found = parity(
            folder, against=against, text=text, tokenizer=None if text is None else tokenizer(folder),
            dtype=getattr(torch, given.dtype), length=given.length, seed=given.seed, ignore_keys=given.ignore_keys,
        )  # fmt: skip
    show(given.json, lambda: _parity_data(found), _parity_page(found))
    return 0 if found.same else 1


def _parity_data(found: Parity) -> dict[str, Any]:
    inputs = [
        {
            "input": each.given, "tokens": each.tokens, "same": each.first is None,
            "first_difference": each.first and each.first.place,
            "rows": [{k: value for k, value in asdict(row).items() if value is not None} for row in each.rows],
            "not_compared": each.notes,
        }
        for each in found.comparisons
    ]  # fmt: skip
    return {
        "model": found.title, "reference": found.reference, "dtype": found.dtype, "limit": found.limit,
        "reference_settings": found.settings, "same": found.same, "inputs": inputs,
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
    for each in found.comparisons:
        if each.first is not None:
            where = f"{each.first.place} ({each.first.theirs} of the public class)"
            yield text(f"\ndiffers, first at {where}, by {each.first.max:.2g} on {each.given}", "bold red")
            return
    yield text("\nthe same computation", "bold green")


def _model_arguments(parser: argparse.ArgumentParser) -> None:
    option(parser, "spec", "the name of a preset, a .toml file or a directory", "SPEC")
    add_set(parser)
    add_ignore_keys(parser)
    flag(parser, "--full", "in its own size; otherwise a large spec without weights is made small")
    option(parser, "--length", "tokens of the longest (past windows, chunks and blocks)", whole(1))
    flag(parser, "--json", "the figures as one JSON document")


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
    option(parser, "--seed", "of tokens and weights", whole(0), default=0)


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
        "limit": SAME, "leak_limit": LEAK, "leaks": found.leaks,
        "documents": [
            {"tokens": lengths, "difference": apart, "moved_by": [row[i] for row in found.moved]}
            for i, (lengths, apart) in enumerate(zip(found.lengths, found.answers, strict=True))
        ],
        "loss": found.loss, "gradient": found.gradient, "gradient_of": found.worst, "repeated": found.repeated,
        "notes": found.notes,
    }  # fmt: skip


def _packing_page(name: str, origin: str, found: Packing) -> Iterator[Any]:
    from anyformer.verify.packing import LEAK, SAME

    total, count = sum(max(lengths) for lengths in found.lengths), len(found.lengths)
    yield text(f"{name}, {origin}, float64")
    yield text(f"{count} documents in one row of {total} tokens, no dropout, no auxiliary losses")
    held = f"limit {SAME:g}" if found.exact else "for information: its mixer is approximate"
    yield text(f"\npacked against alone ({held})", "bold")
    lengths = [" + ".join(map(str, each)) for each in found.lengths]
    rows = list(zip((f"document {i}" for i in range(count)), lengths, found.answers, strict=True))
    rows += [("summed loss", "", found.loss), ("gradients", "", found.gradient)]
    table = grid(("", "tokens", "max", ""), "lrrr", gap=3)
    for label, tokens, apart in rows:
        table.add_row(label, tokens, f"{apart:.1e}", verdict(same=apart <= SAME) if found.exact else "")
    if found.exact and not found.gradient <= SAME:
        table.add_row(text(f"  most in {found.worst}", "red"))
    yield table
    yield text(f"\nhow far each document moves when one is changed (limit {LEAK:g} for the others)", "bold")
    table = grid(("changed", *map(str, range(count))), "l" + "r" * count, gap=3)
    for i, row in enumerate(found.moved):
        fine = [moved > SAME if i == j else moved <= LEAK for j, moved in enumerate(row)]
        styles = ["red" if not right else "green" if i == j else "" for j, right in enumerate(fine)]
        table.add_row(
            f"document {i}", *(text("0" if m == 0 else f"{m:.1e}", s) for m, s in zip(row, styles, strict=True))
        )
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
    option(parser, "--new", "new tokens of each", whole(1), default=16)
    words = "%(default)s: not one token may differ; narrower: near-ties are counted, and are no mismatch"
    option(parser, "--dtype", words, tuple(BYTES), default="float64")
    option(parser, "--device", "where to run", "NAME", default="cpu")
    option(parser, "--seed", "of prompts, draws and weights", whole(0), default=0)


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
        "passed": found.passed, "prompts": found.lengths, "new_tokens": found.new, "temperatures": TEMPERATURES,
        "limit": SAME if strict else None, "tie": None if strict else TIE,
        "ways": [
            {"way": row.mode, "absent": row.absent}
            if row.absent is not None
            else {
                "way": row.mode, "answers": row.cases, "tokens": row.tokens, "mismatches": row.mismatches,
                "near_ties": row.ties, "difference": row.difference, "first_mismatch": row.first,
            }
            for row in found.rows
        ],
        "notes": found.notes,
    }  # fmt: skip


def _generation_page(name: str, origin: str, device: str, found: Equality) -> Iterator[Any]:
    from anyformer.verify.generation import SAME, TIE

    yield text(f"{name}, {origin}, {found.dtype} on {device}")
    lengths = ", ".join(map(str, found.lengths))
    yield text(f"prompts of {lengths} random tokens, {found.new} new ones each, the likeliest and drawn with seeds")
    held = f"limit: no mismatch; a near-tie was decided by less than {TIE:g} of the range, and is none"
    if found.dtype == "float64":
        held = f"limits: no mismatch, and log-probabilities within {SAME:g}"
    if not found.exact:
        held = "for information: its mixer is approximate, and groups tokens by what is read at once"
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
    if not found.wrong:
        cases, ties = sum(row.cases for row in found.rows), sum(row.ties for row in found.rows)
        also = f", {ties} near-tie{'s' * (ties != 1)}" if found.dtype != "float64" else ""
        yield text(f"\nthe same tokens in every way: {cases} answers, 0 mismatches{also}", "bold green")
    elif not found.exact:
        yield text("\nsome ways differ, as an approximate mixer may", "bold")
    else:
        lines = [f"{r.mode}: {r.first or f'log-probabilities differ by {r.difference:.2g}'}" for r in found.wrong]
        yield text("\ndiffers\n" + "\n".join(lines), "bold red")
        if found.dtype == "bfloat16":
            yield text(
                "a product of other shapes rounds otherwise in 8 bits; float32 and float64 are held to more", "dim"
            )


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
        "same": found.same, "advice": found.advice or None, "device": found.device, "notes": found.notes,
        "rows": [asdict(row) for row in found.rows],
    }  # fmt: skip


def _resume_page(found: Resume) -> Iterator[Any]:
    yield text(f"{found.run}: steps {found.begin + 1} to {found.end}, straight and interrupted after {found.middle}")
    table = grid(("", "compared", "difference", ""), "lrrl", gap=3)
    for row in found.rows:
        said = verdict(same=row.same, otherwise=f"differs, first at {row.first}")
        table.add_row(row.name, f"{row.compared:,}", "0" if row.same else f"{row.difference:.2g}", said)
    yield table
    for note in found.notes:
        yield text(note, "yellow")
    if found.same:
        yield text("\nan interrupted run ends as an uninterrupted one, to the bit", "bold green")
    else:
        yield text("\nan interrupted run ends otherwise", "bold red")
        yield text(found.advice)


CHECKS = (
    Command(
        "parity", "a checkpoint here and in transformers, compared layer by layer (needs anyformer[hf])",
        PARITY_EXAMPLES, _parity_arguments, _run_parity,
    ),
    Command(
        "packing", "documents in one row leave each other alone: the same numbers, and no leak", PACKING_EXAMPLES,
        _packing_arguments, _run_packing,
    ),
    Command(
        "generation", "the same tokens alone, in batches, cached or not, streamed, in pieces and in pages",
        GENERATION_EXAMPLES, _generation_arguments, _run_generation,
    ),
    Command(
        "resume", "a run that is interrupted ends as one that is not, to the bit", RESUME_EXAMPLES, _resume_arguments,
        _run_resume,
    ),
)  # fmt: skip
COMMAND = group("verify", "checks: parity, packing, generation, exact resume", "checks", "CHECK", CHECKS)
