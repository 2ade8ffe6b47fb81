"""Every decoding mode against generation alone: the same tokens, from the same probabilities."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from anyformer.errors import InputError
from anyformer.generation.params.generation_request import check_model, context_length
from anyformer.model.model import Model
from anyformer.verify.decoding_modes import MODES, Completion, DecodingMode, Task, alone, decision
from anyformer.verify.differences import Progress, Report, difference, is_exact
from anyformer.verify.shrink import span

SAME = 1e-9
"""The largest difference of log-probabilities in fp64, max|a - b| / max|b|: other shapes may add in another order."""
TIE = 1e-4
"""Below fp64, a first mismatch is a near-tie if what decided it was no further apart than this share of its range."""
SHARES = (0.55, 1.0, 0.2, 0.75, 0.35, 0.9, 0.1)
"""Lengths of the prompts, as shares of the longest."""
SHORTEST, LONGEST = 11, 256
"""Tokens of the longest prompt by default: past the span of a pattern, within these."""
TEMPERATURES = (0.0, 1.0)
"""The likeliest token, and draws."""


@dataclass(kw_only=True)
class Row:
    """One mode, over all prompts, greedy and drawn."""

    mode: str
    cases: int = 0
    """Answers that were compared."""
    tokens: int = 0
    """Their tokens, each up to its first mismatch."""
    mismatches: int = 0
    """Answers that differ, near-ties not counted."""
    ties: int = 0
    """Answers whose first difference is a near-tie."""
    difference: float | None = None
    """Of the log-probabilities of tokens that are the same, max|a - b| / max|b|; None: the mode does not tell them."""
    first: str | None = None
    """Where the first mismatch is."""
    absent: str | None = None
    """Why this model has no such mode."""


@dataclass(frozen=True, kw_only=True)
class Equality:
    """The answer: a row for each mode."""

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
        strict = self.dtype == "float64"
        return tuple(row for row in self.rows if row.mismatches or (strict and not (row.difference or 0.0) <= SAME))

    @property
    def passed(self) -> bool:
        """Whether every mode gives the same, if the model is held to it."""
        return not self.exact or not self.wrong


def equality(
    model: Model,
    *,
    prompts: int = 4,
    length: int | None = None,
    new: int = 16,
    seed: int = 0,
    modes: Sequence[DecodingMode] = MODES,
    temperatures: Sequence[float] = TEMPERATURES,
    report: Report | None = None,
) -> Equality:
    """Generate `new` tokens in every mode (some of `MODES`) with a decoder or an encoder-decoder, after random prompts.

    These are each of another length, the longest of `length` tokens (default: past windows, chunks and blocks, as far
    as there are positions). `seed` draws prompts, tokens and the order of rows; temperature 0: the likeliest token.
    """
    check_model(model.spec)
    if prompts < 2:
        raise InputError(f"prompts: {prompts} can't show what a row does to another; give at least 2")
    made, notes = _prompts(model, prompts, length, new, seed)
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    rows = {mode.name: Row(mode=mode.name) for mode in modes}
    progress = Progress(report, len(temperatures) * len(modes))
    for temperature in temperatures:
        seeds = tuple(97 * seed + i for i in range(prompts))
        task = Task(model=model, prompts=made, new=new, temperature=temperature, seeds=seeds)
        known = alone(task)
        for number, mode in enumerate(modes):
            row = rows[mode.name]
            row.absent = mode.absent(task)
            # The likeliest tokens are the same in all copies.
            if row.absent is None and (mode.copies == 1 or temperature > 0):
                want = known if mode.copies == 1 else alone(task, mode.copies)
                # The prompts come in random order; their answers are put back into their own.
                rng = random.Random(1000 * seed + number)
                order = rng.sample(range(prompts), prompts)
                mixed = replace(task, prompts=tuple(made[i] for i in order), seeds=tuple(seeds[i] for i in order))
                given = mode.run(mixed, [known[i] for i in order], rng)
                places = [order.index(i) * mode.copies for i in range(prompts)]
                found = [each for place in places for each in given[place : place + mode.copies]]
                _compare(task, row, found, want, mode.copies, strict=dtype == "float64")
            progress.tick()
    return Equality(
        lengths=tuple(map(len, made)), new=new, dtype=dtype, exact=is_exact(model.spec), rows=tuple(rows.values()),
        notes=notes,
    )  # fmt: skip


def _prompts(
    model: Model, count: int, wanted: int | None, new: int, seed: int
) -> tuple[tuple[Tensor, ...], tuple[str, ...]]:
    """Random prompts of different lengths."""
    spec, device = model.spec, next(model.parameters()).device
    two = spec.topology == "encoder-decoder"
    size, hard = context_length(model)
    reader: Any = model.encoder if two else model.decoder
    decoder: Any = model.decoder
    # The last new token is never read.
    least = 1 if two else max(1, decoder.prefix)
    if hard and least + new - 1 > size:
        raise InputError(f"new: {new} tokens after a prompt need more than the {size} positions of this model")
    limit = reader.limit if two else size - new + 1 if hard else None
    if wanted is not None and limit is not None and wanted > limit:
        raise InputError(f"length: {wanted} is more than the {limit} tokens for which this model has positions")
    reach = span(spec)
    longest = wanted or min(max(SHORTEST, reach + 3), LONGEST, spec.context if limit is None else limit)
    generator = torch.Generator().manual_seed(seed)
    lengths = [max(least, round(SHARES[i % len(SHARES)] * longest)) for i in range(count)]
    made = tuple(torch.randint(spec.input_vocab, (n,), generator=generator).to(device) for n in lengths)
    seen = max(lengths) if two else max(lengths) + new
    return made, () if seen > reach else (f"patterns span {reach} tokens, more than any row has here",)


def _compare(
    task: Task, row: Row, found: list[Completion], known: list[Completion], copies: int, *, strict: bool
) -> None:
    """Add these answers to a row of the table."""
    row.cases += len(found)
    for i, (each, want) in enumerate(zip(found, known, strict=True)):
        shortest = min(len(each.ids), len(want.ids))
        same = next((n for n in range(shortest) if each.ids[n] != want.ids[n]), shortest)
        row.tokens += same
        if same and each.logprobs_N is not None and want.logprobs_N is not None:
            apart = difference(each.logprobs_N[:same], want.logprobs_N[:same])
            row.difference = max(row.difference or 0.0, apart)
        if same == len(want.ids) == len(each.ids):
            continue
        prompt, stream = divmod(i, copies)
        if not strict and same < shortest:
            point_B, logits_V = task.point(prompt, same, stream), decision(task, prompt, want.ids[:same])
            point = None if point_B is None else float(point_B)
            if is_tie(logits_V, want.ids[same], each.ids[same], temperature=task.temperature, point=point):
                row.ties += 1
                continue
        row.mismatches += 1
        kind = f"temperature {task.temperature:g}" if task.temperature else "greedy"
        row.first = row.first or f"prompt {prompt}, {kind}, new token {same}"


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
