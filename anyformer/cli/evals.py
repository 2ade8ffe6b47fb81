"""`anyformer eval`: how well a model predicts texts, or does what it was trained for on a part of its data.

anyformer eval runs/quickstart notes.txt
anyformer eval runs/quickstart a.txt b.txt.gz --stride 64 --json
anyformer eval runs/quickstart notes.txt --quantize int8
cat notes.txt | anyformer eval runs/quickstart -
anyformer eval runs/pos-tagging --part test
anyformer eval runs/roformer-poems --part valid --length 128 --length 512
anyformer eval runs/transformer-2017 --part valid --num-beams 1 --num-beams 4 --limit 500
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from functools import partial, reduce
from operator import add
from typing import TYPE_CHECKING, Any

from anyformer.cli.model import DTYPES, FOLDER, Bar, check_folder, device_of, open_model, working
from anyformer.cli.parser import Command, add_ignore_keys, flag, option, together, whole
from anyformer.cli.terminal import CONTROLS, grid, show, text
from anyformer.errors import InputError

if TYPE_CHECKING:
    from anyformer.evals.eval_setup import EvalSetup
    from anyformer.evals.quality import Quality
    from anyformer.evals.tasks import Measured
    from anyformer.evals.translation import Translated
    from anyformer.train.perplexity import Score

TEXT_ONLY, PART_ONLY = ("stride", "context", "quantize"), ("data", "length", "num_beams", "limit")
"""Options that mean something with a text, and with a part of the data."""
SHOWN = 5
"""Translations that are printed."""
PAIR = ("source", "target")
"""Columns of data that can be translated freely."""


def _arguments(parser: argparse.ArgumentParser) -> None:
    option(parser, "model", FOLDER, "MODEL")
    option(parser, "texts", "a file of UTF-8 text, also .gz, or - for standard input", "TEXT", nargs="*", default=[])
    option(parser, "--device", "cpu, cuda, cuda:1 (cuda where there is one)", "NAME")
    option(parser, "--dtype", "of the weights (float32 on a CPU, else their own)", DTYPES)
    add_ignore_keys(parser)
    flag(parser, "--json", "the figures as one JSON document")
    texts = parser.add_argument_group("a text", "perplexity and bits per byte of a decoder")
    option(texts, "--stride", "tokens by which a window moves on (half of the context)", whole(1))
    option(texts, "--context", "tokens that are read at once (the model's context)", whole(1))
    option(texts, "--quantize", "say also what it loses with weights of 8 or 4 bits", ("int8", "int4"))
    part = parser.add_argument_group("a part of its data", "what the model was trained for: its run's objective")
    option(part, "--part", "train, valid or test, instead of a text", "NAME")
    option(part, "--data", "a folder of anyformer tokenize (that of the run's config)", "DIR")
    option(part, "--length", "tokens of a row (those of the run); again for more", whole(1), action="append")
    option(part, "--num-beams", "of translations; 0: none made (1, greedy); again for more", whole(0), action="append")
    option(part, "--limit", "sentences that are translated (all)", whole(1))


def _run(given: argparse.Namespace) -> int:
    """Score texts, or measure on a part of the data."""
    if (given.part is None) == (not given.texts):
        both = "give one of TEXT and --part, not both" if given.texts else "nothing to measure on"
        raise InputError(f"{both}: a file (TEXT), or a part of the data such as --part valid")
    others, what = (PART_ONLY, "--part") if given.part is None else (TEXT_ONLY, "a TEXT")
    wrong = [f"--{name.replace('_', '-')}" for name in others if getattr(given, name) is not None]
    if wrong:
        raise InputError(f"{', '.join(wrong)}: of use only with {what}; leave it out")
    return _run_texts(given) if given.part is None else _run_part(given)


def _place(given: argparse.Namespace) -> dict[str, Any]:
    """Device, dtype and keys to ignore, as `load` takes them."""
    import torch

    dtype = None if given.dtype is None else getattr(torch, given.dtype)
    return {"device": device_of(given.device), "dtype": dtype, "ignore_keys": given.ignore_keys}


def _run_texts(given: argparse.Namespace) -> int:
    """Score each text, and all of them together."""
    from anyformer.data.corpus import read_text
    from anyformer.families.io import load

    # All that can be wrong before anything is read.
    folder, place, *texts = together(
        lambda: check_folder(given.model), lambda: _place(given), *(partial(read_text, path) for path in given.texts)
    )
    model, tokenizer = open_model(given.model, **place)
    changed = load(folder, **place, quantize=given.quantize) if given.quantize else None
    from anyformer.evals.quality import compare
    from anyformer.train.perplexity import score

    def each(what: str, measure: Callable[..., Any]) -> Iterator[Any]:
        for path, content in zip(given.texts, texts, strict=True):
            with Bar(f"{path}{what}") as bar:
                yield measure(tokenizer, content, stride=given.stride, context=given.context, report=bar)

    began = time.perf_counter()
    named: list[tuple[str, Score]] = list(zip(given.texts, each("", partial(score, model)), strict=True))
    seconds, loss = time.perf_counter() - began, None
    total = reduce(add, (found for _, found in named))
    if changed is not None:
        loss = reduce(add, each(f", {given.quantize}", partial(compare, model, changed)))

    def data() -> dict[str, Any]:
        found = _score_data(total) | {
            "context": total.context, "stride": total.stride, "rule": total.rule, "seconds": round(seconds, 3),
            "texts": [{"text": path} | _score_data(each) for path, each in named],
        }  # fmt: skip
        return found if loss is None else found | {"quantized": {"kind": given.quantize} | loss.data()}

    show(given.json, data, _texts_page(named, total, given.quantize, loss))
    return 0


def _score_data(score: Score) -> dict[str, Any]:
    names = ("tokens", "bytes", "documents", "nats", "nats_per_token", "perplexity", "bits_per_byte")
    return {name: getattr(score, name) for name in names}


def _texts_page(scores: list[tuple[str, Score]], total: Score, quantize: str, loss: Quality | None) -> Iterator[Any]:
    table = grid(("text", "tokens", "bytes", "perplexity", "bits per byte"), "lrrrr")
    table.columns[0].no_wrap, table.columns[0].overflow = False, "fold"
    for name, each in scores if len(scores) == 1 else [*scores, ("all", total)]:
        bits = text("-" if each.bits_per_byte is None else f"{each.bits_per_byte:.4f}", "bold")
        table.add_row(text(name), f"{each.tokens:,}", f"{each.bytes:,}", f"{each.perplexity:,.3f}", bits)
    yield table
    yield text(f"\n{total.rule}", "dim")
    if loss is not None:
        yield text(f"{quantize}: {loss.line()}")


def _run_part(given: argparse.Namespace) -> int:
    """Measure in rows of each length that is given, and translate where that is the task."""
    place, folder = _place(given), check_folder(given.model)
    with working(f"reading {given.model}"):
        from anyformer.evals.eval_setup import open_setup
        from anyformer.evals.tasks import measure
        from anyformer.evals.translation import judge, translate

        setup = open_setup(folder, given.part, data=given.data, **place)
    beams = _beams(given, setup)
    if any(beams):
        judge()
    measured, translated = list["Measured"](), list["Translated"]()
    for length in dict.fromkeys(given.length or [None]):
        with Bar(given.part) as bar:
            measured.append(measure(setup, length=length, report=bar))
    for each in filter(None, beams):
        with Bar(f"{given.part}, {each} beams") as bar:
            translated.append(translate(setup, beams=each, limit=given.limit, report=bar))
    show(given.json, lambda: _part_data(setup, measured, translated), _part_page(setup, measured, translated))
    return 0


def _beams(given: argparse.Namespace, setup: EvalSetup) -> list[int]:
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


def _part_data(setup: EvalSetup, measured: list[Measured], translated: list[Translated]) -> dict[str, Any]:
    first = next(setup.model.parameters())
    translations = [each.data() | {"samples": list(_samples(each))} for each in translated]
    return {
        "part": setup.part, "data": str(setup.data), "objective": setup.objective.kind,
        "examples": len(setup.examples), "device": str(first.device), "dtype": str(first.dtype).removeprefix("torch."),
        "measured": [each.data() for each in measured],
    } | ({"translations": translations} if translations else {})  # fmt: skip


def _samples(found: Translated) -> Iterator[dict[str, Any]]:
    """A few sentences, spread over all."""
    count = min(SHOWN, len(found.sources))
    for i in (k * len(found.sources) // count for k in range(count)):
        yield {"source": found.sources[i], "translation": found.translations[i], "references": found.references[i]}


def _part_page(setup: EvalSetup, measured: list[Measured], translated: list[Translated]) -> Iterator[Any]:
    yield text(f"{setup.part} of {setup.data}: {len(setup.examples):,} examples, objective {setup.objective.kind}")
    rows = [_row(each) for each in measured]
    yield grid([*rows[0]], "r" * len(rows[0]), (row.values() for row in rows))
    for line in dict.fromkeys(line for each in measured for line in _notes(each)):
        yield text(line, "dim")
    for each in translated:
        counted = f"{len(each.sources):,} sentences with {sum(map(len, each.references)):,} references"
        cut = f", {each.unfinished:,} did not end and were cut" if each.unfinished else ""
        left_out = f", {each.left_out:,} too long for the model" if each.left_out else ""
        scores = f"{_search(each)}: BLEU {each.bleu.bleu:.2f}, chrF {each.bleu.chrf:.2f}"
        yield text(f"\n{scores}, {counted}, {each.seconds:.1f} s{cut}{left_out}", "bold")
        yield text(f"{each.bleu.signature}\n{each.bleu.chrf_signature}", "dim")
    if measured[0].figures.get("accuracy") is not None and translated:
        whole = ", ".join(f"{_search(each)} {100 * each.equal:.1f}%" for each in translated)
        yield text(
            f"\nof the tokens {100 * measured[0].figures['accuracy']:.1f}% are right after a right beginning; of whole "
            f"sentences, decoded freely, a reference word for word: {whole}"
        )
    for sample in (sample for each in translated[-1:] for sample in _samples(each)):
        lines = [sample["source"], f"  = {sample['translation']}", f"  ? {' / '.join(sample['references'][:3])}"]
        yield text("\n" + "\n".join(line.translate(CONTROLS) for line in lines))


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


def _search(found: Translated) -> str:
    return f"{found.beams} beams" if found.beams > 1 else "greedy"


COMMAND = Command("eval", "perplexity on a text, or figures on a part of the data", __doc__, _arguments, _run)
