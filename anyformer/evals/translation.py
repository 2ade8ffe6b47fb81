"""Translation: each source decoded freely, against every reference that the data have; BLEU and chrF by sacrebleu."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch

from anyformer.data.dataset import Examples
from anyformer.data.objectives import source_eos
from anyformer.errors import CapabilityError, DataError, InputError
from anyformer.evals.eval_setup import EvalSetup
from anyformer.generation.generate import generate
from anyformer.generation.params.generation_request import context_length
from anyformer.model.model import Model
from anyformer.registry import installed
from anyformer.verify.differences import Progress, Report

LONGER = 50
"""A translation has at most so many tokens more than its source (Vaswani et al. 2017, section 6.1)."""
CELLS, MANY = {"cpu": 1024}, 16_384
"""Source tokens that are decoded beside each other, times hypotheses; and the same on an accelerator."""


@dataclass(frozen=True, kw_only=True)
class Bleu:
    """How near translations come to their references. Figures are from 0 to 100."""

    bleu: float
    precisions: tuple[float, ...]
    """Of runs of one to four tokens."""
    brevity_penalty: float
    chrf: float
    signature: str
    """What sacrebleu did, for who wants to do the same."""
    chrf_signature: str


def judge() -> Any:
    """The package that judges; an error that says what to install if it is not there."""
    try:
        return installed("sacrebleu.metrics")
    except ImportError as error:
        raise CapabilityError(
            f"BLEU needs a package that is not here ({error}): pip install sacrebleu, or translate nothing, with "
            "--num-beams 0"
        ) from error


def bleu(translations: Sequence[str], references: Sequence[Sequence[str]]) -> Bleu:
    """Translations against one reference or more for each."""
    if len(translations) != len(references) or not translations or not all(references):
        raise InputError(
            f"{len(translations)} translations and references for {sum(map(bool, references))}; each needs at least one"
        )
    metrics = judge()
    most = max(map(len, references))
    # One list for each reference of a sentence; None where a sentence has no more of them.
    columns = [[some[i] if i < len(some) else None for some in references] for i in range(most)]
    counted, spelled = metrics.BLEU(), metrics.CHRF()
    found, letters = (metric.corpus_score(list(translations), columns) for metric in (counted, spelled))
    return Bleu(
        bleu=float(found.score), precisions=tuple(map(float, found.precisions)), brevity_penalty=float(found.bp),
        chrf=float(letters.score), signature=str(counted.get_signature()), chrf_signature=str(spelled.get_signature()),
    )  # fmt: skip


class Sentence(NamedTuple):
    """A source and all that the data give as its translation."""

    ids: tuple[int, ...]
    references: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Translated:
    """What came of decoding freely."""

    beams: int
    """1: the likeliest token is taken each time."""
    sources: tuple[str, ...]
    translations: tuple[str, ...]
    references: tuple[tuple[str, ...], ...]
    left_out: int
    """Distinct sources that are longer than what the model is made for."""
    unfinished: int
    """Translations that were cut because they did not end."""
    bleu: Bleu
    seconds: float

    @property
    def equal(self) -> float:
        """Share of the translations that are a reference, word for word."""
        pairs = zip(self.translations, self.references, strict=True)
        return sum(said in known for said, known in pairs) / len(self.translations)

    def data(self) -> dict[str, Any]:
        return {
            "num_beams": self.beams, "sentences": len(self.sources), "references": sum(map(len, self.references)),
            "left_out": self.left_out, "unfinished": self.unfinished, **asdict(self.bleu), "equal": self.equal,
            "seconds": round(self.seconds, 3),
        }  # fmt: skip


def sentences(examples: Examples, limit: int | None = None) -> list[Sentence]:
    """Each source once, with its distinct targets, in the order of the data; `limit` of them, spread over all."""
    found: dict[tuple[int, ...], dict[tuple[int, ...], None]] = {}
    for i in range(len(examples)):
        source, target = (tuple(examples.read(column, i).tolist()) for column in ("source", "target"))
        if source and target:
            found.setdefault(source, {})[target] = None
    whole = [Sentence(source, tuple(targets)) for source, targets in found.items()]
    if not whole:
        raise DataError("there is no pair with a source and a target; nothing can be translated")
    if limit is None or limit >= len(whole):
        return whole
    # Files of pairs are often sorted by length: the first ones would be the easiest.
    return [whole[i * len(whole) // limit] for i in range(limit)]


def translate(
    setup: EvalSetup, *, beams: int = 1, limit: int | None = None, report: Report | None = None
) -> Translated:
    """Translate the sources of a part and compare with its references.

    Texts are read back from their ids, which is exact for byte-level tokenizers; others change what they normalise in
    references and translations alike.
    """
    words, model = setup.tokenizer, setup.model
    if words is None:
        raise InputError("the data have no tokenizer, so a translation has no text")
    judge()
    every = sentences(setup.examples, limit)
    fits = [one for one in every if len(one.ids) < model.spec.context]
    if not fits:
        raise DataError(f"every source is longer than the {model.spec.context} tokens that this model is made for")
    began = time.perf_counter()
    decoded, unfinished = decode(model, [one.ids for one in fits], beams=beams, report=report)
    seconds = time.perf_counter() - began
    said = tuple(words.decode(ids) for ids in decoded)
    known = tuple(tuple(words.decode(ids) for ids in one.references) for one in fits)
    reader = setup.source_tokenizer or words
    return Translated(
        beams=beams, sources=tuple(reader.decode(one.ids) for one in fits), translations=said, references=known,
        left_out=len(every) - len(fits), unfinished=unfinished, bleu=bleu(said, known), seconds=seconds,
    )  # fmt: skip


def decode(
    model: Model, sources: Sequence[Sequence[int]], *, beams: int = 1, report: Report | None = None
) -> tuple[list[list[int]], int]:
    """Ids of each translation without the one that ends it, and how many did not end by themselves."""
    end, device = source_eos(model.spec), next(model.parameters()).device
    tail = [] if end is None else [end]
    most = context_length(model)[0] - 1
    cells = max(1, CELLS.get(device.type, MANY) // beams)
    made: list[list[int]] = [[] for _ in sources]
    by_length: dict[int, list[int]] = {}
    for i, source in enumerate(sources):
        by_length.setdefault(len(source), []).append(i)
    unfinished, progress = 0, Progress(report, len(sources))
    # Sources of one length have one limit and need no padding, so who shares a batch can't matter.
    for length, order in sorted(by_length.items(), reverse=True):
        limit, size = max(1, min(length + len(tail) + LONGER, most)), max(1, cells // (length + len(tail)))
        for first in range(0, len(order), size):
            some = order[first : first + size]
            ids_BT = torch.tensor([[*sources[i], *tail] for i in some], device=device)
            found = generate(model, ids_BT, max_new_tokens=limit, num_beams=beams, details=True)
            for i, row, new, reason in zip(some, found.ids.tolist(), found.lengths, found.reasons, strict=True):
                # The decoder's start token is no part of the translation, nor is what ended it.
                made[i] = row[1 : 1 + new - (reason == "stop")]
                unfinished += reason != "stop"
            progress.tick(len(some))
    return made, unfinished
