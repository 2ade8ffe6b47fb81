"""`anyformer eval --part`: a model on a part of its data, by the objective that it was trained for."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from anyformer.cli.model import Bar, check_folder, working
from anyformer.cli.terminal import CONTROLS, console, print_all, print_json
from anyformer.errors import InputError

if TYPE_CHECKING:
    from anyformer.evals.eval_setup import EvalSetup
    from anyformer.evals.tasks import Measured
    from anyformer.evals.translation import Translated

SHOWN = 5
"""Translations that are printed."""
PAIR = ("source", "target")
"""Columns of data that can be translated freely."""


def run_part(given: argparse.Namespace, place: dict[str, Any]) -> int:
    """Measure in rows of each length that is asked for, and translate where that is the task."""
    folder = check_folder(given.model)
    with working(f"reading {given.model}"):
        from anyformer.evals.eval_setup import open_setup
        from anyformer.evals.tasks import measure
        from anyformer.evals.translation import translate

        setup = open_setup(folder, given.part, data=given.data, **place)
    beams = beams_of(given, setup)
    if any(beams):
        from anyformer.evals.bleu import judge

        judge()
    measured: list[Measured] = []
    for length in dict.fromkeys(given.length or [None]):
        with Bar(given.part) as bar:
            measured.append(measure(setup, length=length, report=bar))
    translated: list[Translated] = []
    for each in filter(None, beams):
        with Bar(f"{given.part}, {each} beams") as bar:
            translated.append(translate(setup, beams=each, limit=given.limit, report=bar))
    if given.json:
        print_json(_data(setup, measured, translated))
    else:
        print_all(console(), _page(setup, measured, translated))
    return 0


def beams_of(given: argparse.Namespace, setup: EvalSetup) -> list[int]:
    """By how many hypotheses each translation is searched; none for data that are no pairs."""
    if setup.objective.columns == PAIR:
        beams = list(dict.fromkeys(given.num_beams or [1]))
        if given.limit is not None and not any(beams):
            raise InputError("--limit: with --num-beams 0 nothing is translated; leave one of them out")
        return beams
    wrong = [name for name, value in (("--num-beams", given.num_beams), ("--limit", given.limit)) if value is not None]
    if wrong:
        raise InputError(f"{', '.join(wrong)}: only for translations, and the objective is {setup.objective.kind!r}")
    return []


def _data(setup: EvalSetup, measured: list[Measured], translated: list[Translated]) -> dict[str, Any]:
    first = next(setup.model.parameters())
    found: dict[str, Any] = {
        "part": setup.part, "data": str(setup.data), "objective": setup.objective.kind,
        "examples": len(setup.examples), "device": str(first.device), "dtype": str(first.dtype).removeprefix("torch."),
        "measured": [each.data() for each in measured],
    }  # fmt: skip
    if translated:
        found["translations"] = [each.data() | {"samples": list(_samples(each))} for each in translated]
    return found


def _samples(found: Translated) -> Iterator[dict[str, Any]]:
    """A few sentences, spread over all."""
    count = min(SHOWN, len(found.sources))
    for i in (k * len(found.sources) // count for k in range(count)):
        yield {
            "source": found.sources[i], "translation": found.translations[i], "references": list(found.references[i]),
        }  # fmt: skip


def _page(setup: EvalSetup, measured: list[Measured], translated: list[Translated]) -> Iterator[Any]:
    from rich.table import Table
    from rich.text import Text

    count = len(setup.examples)
    yield Text(f"{setup.part} of {setup.data}: {count:,} examples, objective {setup.objective.kind}")
    table = Table.grid(padding=(0, 2, 0, 0))
    rows = [_row(each) for each in measured]
    for name in rows[0]:
        table.add_column(Text(name, style="dim"), justify="right", no_wrap=True)
    table.show_header = True
    for row in rows:
        table.add_row(*row.values())
    yield table
    for line in dict.fromkeys(line for each in measured for line in _notes(each)):
        yield Text(line, style="dim")
    for each in translated:
        yield Text(f"\n{_line(each)}", style="bold")
        yield Text(f"{each.bleu.signature}\n{each.bleu.chrf_signature}", style="dim")
    if measured[0].figures.get("accuracy") is not None and translated:
        told = ", ".join(f"{_way(each)} {100 * each.equal:.1f}%" for each in translated)
        yield Text(
            f"\nof the tokens {100 * measured[0].figures['accuracy']:.1f}% are right after a right beginning; of whole "
            f"sentences, decoded freely, a reference word for word: {told}"
        )
    for each in translated[-1:]:
        for sample in _samples(each):
            lines = [sample["source"], f"  = {sample['translation']}", f"  ? {' / '.join(sample['references'][:3])}"]
            yield Text("\n" + "\n".join(line.translate(CONTROLS) for line in lines))


def _row(found: Measured) -> dict[str, str]:
    """Names and figures of one line."""
    row = {"length": f"{found.length:,}", "labels": f"{found.labels:,}", "loss": f"{found.loss:.4f}"}
    if found.perplexity is not None:
        row["perplexity"] = f"{found.perplexity:,.3f}"
    if found.bits_per_byte is not None:
        row["bits per byte"] = f"{found.bits_per_byte:.4f}"
    for name, value in found.figures.items():
        row[name] = f"{100 * value:.2f}%" if name == "accuracy" else f"{value:.4f}"
    if found.majority is not None and found.margin is not None:
        row |= {"majority": f"{100 * found.majority.accuracy:.2f}%", "margin": f"{100 * found.margin:+.2f}"}
    if found.unigram is not None and found.factor is not None:
        row |= {"unigram's perplexity": f"{found.unigram:,.1f}", "factor": f"{found.factor:.2f}"}
    return row


def _notes(found: Measured) -> Iterator[str]:
    if found.perplexity is not None:
        yield found.rule
    if found.majority is not None:
        yield f"the majority always says {found.majority.name!r}, the most frequent class of what was learned from"
    if found.unigram is not None:
        yield "the unigram knows how often each token occurs in what was learned from; factor: times the perplexity"
    if found.left_out:
        yield f"rows of {found.length}: {found.left_out:,} examples are left out: they are empty, or don't fit"
    if found.shortened:
        yield f"rows of {found.length}: {found.shortened:,} examples are cut"


def _way(found: Translated) -> str:
    return f"{found.beams} beams" if found.beams > 1 else "greedy"


def _line(found: Translated) -> str:
    references = sum(map(len, found.references))
    words = [
        f"{_way(found)}: BLEU {found.bleu.bleu:.2f}", f"chrF {found.bleu.chrf:.2f}",
        f"{len(found.sources):,} sentences with {references:,} references", f"{found.seconds:.1f} s",
    ]  # fmt: skip
    if found.unfinished:
        words.append(f"{found.unfinished:,} did not end and were cut")
    if found.left_out:
        words.append(f"{found.left_out:,} too long for the model")
    return ", ".join(words)
