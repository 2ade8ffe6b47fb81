"""Generation in every way against generation alone: the same tokens, from the same probabilities."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from anyformer.errors import InputError
from anyformer.generation.asking.request import check_model, room
from anyformer.model.model import Model
from anyformer.verify.decoding_modes import WAYS, Said, Task, Way, alone, copied, decision
from anyformer.verify.shrink import span

SAME = 1e-9
"""The largest difference of log-probabilities in fp64, max|a - b| / max|b|: other shapes may add in another order."""
TIE = 1e-4
"""Below fp64, a first mismatch is a near-tie if what decided it was no further apart than this share of its range."""
SHARES = (0.55, 1.0, 0.2, 0.75, 0.35, 0.9, 0.1)
"""Lengths of the prompts, as shares of the longest."""
SHORTEST, LONGEST = 11, 256
"""Tokens of the longest prompt unless told otherwise: past the span of a pattern, within these."""
HEATS = (0.0, 1.0)
"""The likeliest token, and draws."""

Report = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One way, over all prompts, greedy and drawn."""

    way: str
    cases: int = 0
    """Answers that were compared."""
    tokens: int = 0
    """Their tokens, each up to its first mismatch."""
    mismatches: int = 0
    """Answers that differ, near-ties not counted."""
    ties: int = 0
    """Answers whose first difference is a near-tie."""
    difference: float | None = None
    """Of the log-probabilities of tokens that are the same, max|a - b| / max|b|; None: the way does not tell them."""
    first: str | None = None
    """Where the first mismatch is."""
    absent: str | None = None
    """Why this model has no such way."""


@dataclass(frozen=True, kw_only=True)
class Equality:
    """The answer: a row for each way."""

    lengths: tuple[int, ...]
    """Tokens of the prompts."""
    new: int
    dtype: str
    exact: bool
    """Whether it is held to this: an approximate mixer groups tokens by what is read at once."""
    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    """What this check could not reach."""

    @property
    def wrong(self) -> tuple[Row, ...]:
        """Ways that differ."""
        strict = self.dtype == "float64"
        return tuple(row for row in self.rows if row.mismatches or (strict and not (row.difference or 0.0) <= SAME))

    @property
    def passed(self) -> bool:
        """Whether every way gives the same, if the model is held to it."""
        return not self.exact or not self.wrong


def equality(
    model: Model,
    *,
    prompts: int = 4,
    length: int | None = None,
    new: int = 16,
    seed: int = 0,
    ways: Sequence[Way] = WAYS,
    heats: Sequence[float] = HEATS,
    report: Report | None = None,
) -> Equality:
    """Generate in every way, with random prompts.

    Args:
        model: A decoder or an encoder-decoder with an lm head.
        prompts: How many, each of another length.
        length: Tokens of the longest (default: past windows, chunks and blocks, as far as there are positions).
        new: New tokens of each.
        seed: Of the prompts, the draws and the order of rows.
        ways: Some of `WAYS`.
        heats: Temperatures; 0 takes the likeliest token.
        report: Called with the ways that are done, and their number.
    """
    check_model(model.spec)
    if prompts < 2:
        raise InputError(f"prompts: {prompts} can't show what a row does to another; give at least 2")
    made, notes = _prompts(model, prompts, length, new, seed)
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    found = {way.name: Row(way=way.name) for way in ways}
    done, total = 0, len(heats) * len(ways)
    for heat in heats:
        task = _task(model, made, new, heat, seed)
        known = alone(task)
        for number, way in enumerate(ways):
            why = way.absent(task)
            if why is not None:
                found[way.name] = Row(way=way.name, absent=why)
            elif way.works(task):
                said = way.run(task, known, random.Random(1000 * seed + number))
                want = known if way.copies == 1 else copied(task, way.copies)
                found[way.name] = _compared(task, found[way.name], said, want, way.copies, strict=dtype == "float64")
            done += 1
            if report is not None:
                report(done, total)
    layers = [layer for stack in model.spec.stacks for layer in stack.layers]
    exact = all(layer.attention.mixer.exact for layer in layers)
    rows = tuple(found.values())
    return Equality(lengths=tuple(map(len, made)), new=new, dtype=dtype, exact=exact, rows=rows, notes=notes)


def _task(model: Model, prompts: tuple[Tensor, ...], new: int, heat: float, seed: int) -> Task:
    two = model.spec.topology == "encoder-decoder"
    most = (1 if two else max(map(len, prompts))) + new
    return Task(
        model=model, prompts=prompts, new=new, temperature=heat, seeds=tuple(97 * seed + i for i in range(len(prompts))),
        declared=max(most, *map(len, prompts)) if model.reads_length else None,
    )  # fmt: skip


def _prompts(
    model: Model, count: int, asked: int | None, new: int, seed: int
) -> tuple[tuple[Tensor, ...], tuple[str, ...]]:
    """Random prompts of different lengths."""
    spec, device = model.spec, next(model.parameters()).device
    two = spec.topology == "encoder-decoder"
    size, hard = room(model)
    reader: Any = model.encoder if two else model.decoder
    decoder: Any = model.decoder
    # The last new token is never read.
    begun = 1 if two else max(1, decoder.prefix)
    if hard and begun + new - 1 > size:
        raise InputError(f"new: {new} tokens after a prompt need more than the {size} positions of this model")
    limit = reader.limit if two else size - new + 1 if hard else None
    if asked is not None and limit is not None and asked > limit:
        raise InputError(f"length: {asked} is more than the {limit} tokens for which this model has positions")
    reach = span(spec)
    longest = asked or min(max(SHORTEST, reach + 3), LONGEST, spec.context if limit is None else limit)
    least = 1 if two else max(1, decoder.prefix)
    generator = torch.Generator().manual_seed(seed)
    lengths = [max(least, round(SHARES[i % len(SHARES)] * longest)) for i in range(count)]
    made = tuple(torch.randint(spec.input_vocab, (n,), generator=generator).to(device) for n in lengths)
    seen = max(lengths) if two else max(lengths) + new
    notes = () if seen > reach else (f"patterns span {reach} tokens, more than any row has here",)
    return made, notes


def _compared(task: Task, row: Row, said: list[Said], known: list[Said], copies: int, *, strict: bool) -> Row:
    """A row of the table with these answers added."""
    tokens, mismatches, ties, worst, first = row.tokens, row.mismatches, row.ties, row.difference, row.first
    for i, (found, want) in enumerate(zip(said, known, strict=True)):
        same = _same(found.ids, want.ids)
        tokens += same
        if same and found.logprobs_N is not None and want.logprobs_N is not None:
            worst = max(worst or 0.0, _difference(found.logprobs_N[:same], want.logprobs_N[:same]))
        if same == len(want.ids) == len(found.ids):
            continue
        if (
            not strict
            and same < min(len(want.ids), len(found.ids))
            and _tied(task, i, copies, want, found.ids[same], same)
        ):
            ties += 1
            continue
        mismatches += 1
        kind = f"temperature {task.temperature:g}" if task.temperature else "greedy"
        first = first or f"prompt {i // copies}, {kind}, new token {same}"
    return Row(
        way=row.way, cases=row.cases + len(said), tokens=tokens, mismatches=mismatches, ties=ties, difference=worst,
        first=first,
    )  # fmt: skip


def _same(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens are the same before the first that is not."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _difference(a: Tensor, b: Tensor) -> float:
    a, b = a.double().cpu(), b.double().cpu()
    if not (a.isfinite().all() and b.isfinite().all()):
        return float("inf")
    return float((a - b).abs().max() / b.abs().max().clamp(min=1e-300))


def is_tie(logits_V: Tensor, want: int, other: int, *, temperature: float, point: float | None) -> bool:
    """Whether another token was almost chosen too.

    Of the likeliest tokens the gap between their logits counts, as a share of the range of all; of a draw, how far its
    number is from where the other token's probability begins, of which the range is 1.
    """
    logits_V = logits_V.double()
    if point is None:
        best = logits_V.topk(2).values
        return float(best[0] - best[1]) <= TIE * float(logits_V.max() - logits_V.min())
    below_V = (logits_V / temperature).softmax(-1).cumsum(-1)
    apart = below_V[other - 1] - point if want < other else point - below_V[other]
    return float(apart) <= TIE


def _tied(task: Task, answer: int, copies: int, want: Said, other: int, step: int) -> bool:
    row, stream = divmod(answer, copies)
    logits_V = decision(task, row, want.ids[:step])
    point = task.point(row, step, stream)
    return is_tie(logits_V, want.ids[step], other, temperature=task.temperature, point=point)
