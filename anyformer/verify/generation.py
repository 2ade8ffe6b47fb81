"""Every decoding mode against generation alone: the same tokens, from the same probabilities."""

import math
import random
from collections.abc import Callable
from collections.abc import Sequence as Rows
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from anyformer.errors import InputError
from anyformer.generation.engine import Engine
from anyformer.generation.engine.request import Request, Sequence
from anyformer.generation.engine.speculative import PromptLookup
from anyformer.generation.generate import generate
from anyformer.generation.params.generation_request import check_model, context_length
from anyformer.generation.samplers.batched import keys, pick, uniform
from anyformer.generation.samplers.logits_processors import divided, own_logprobs
from anyformer.model.eval_mode import eval_mode, without_head
from anyformer.model.model import Model
from anyformer.verify.differences import Progress, Report, difference, is_exact
from anyformer.verify.shrink import span

CHUNK, BLOCK, GUESSES, SAMPLES = 3, 4, 3, 2
"""Tokens of a prompt read at once, tokens of a block, guesses at once, answers from one reading of a prompt. Small, so
that short prompts cross many borders."""


@dataclass(frozen=True, eq=False)
class Completion:
    """The new tokens of one row."""

    ids: tuple[int, ...]
    logprobs_N: Tensor | None = None
    """In the model's own distribution; None: the mode does not tell them."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Task:
    """Prompts (of an encoder-decoder: sources), and how their tokens are chosen."""

    model: Model
    prompts: tuple[Tensor, ...]
    new: int
    temperature: float
    """0: the likeliest token."""
    seeds: tuple[int, ...]

    @property
    def seq2seq(self) -> bool:
        return self.model.spec.topology == "encoder-decoder"

    @property
    def starts(self) -> list[list[int]]:
        """What the new tokens of each row are added to."""
        return [[self.model.spec.ids.start or 0] if self.seq2seq else ids_T.tolist() for ids_T in self.prompts]

    @property
    def most(self) -> int:
        """Tokens of the longest row when all are there."""
        return max(map(len, self.starts)) + self.new

    @property
    def rope_length(self) -> dict[str, Any]:
        """What length-dependent positions read: one length for all modes, as rows of a batch have different ones."""
        return {"rope_length": max(self.most, *map(len, self.prompts))} if self.model.reads_length else {}

    def options(self, seed: int | list[int]) -> dict[str, Any]:
        """What `generate` and `add_request` are given."""
        drawn = {"temperature": self.temperature, "seed": seed} if self.temperature else {}
        return {"max_new_tokens": self.new, "stop": ()} | drawn | self.rope_length

    def point(self, row: int, step: int, stream: int = 0) -> Tensor | None:
        """The number (1,) that decides a draw, of one of several answers to a prompt; None: nothing is drawn."""
        if not self.temperature:
            return None
        streams = keys([self.seeds[row]], 1, samples=stream + 1, device=torch.device("cpu"))
        return uniform(streams[stream:], torch.tensor(step))


Completions = list[Completion]
"""What each prompt is answered alone."""


@dataclass(frozen=True)
class DecodingMode:
    """One mode: what it answers each prompt, and why it is not for some models."""

    name: str
    run: Callable[[Task, Completions, random.Random], Completions]
    absent: Callable[[Task], str | None] = lambda _: None
    """Why a model has no such mode; None: it has."""
    copies: int = 1
    """Answers to each prompt. More than one are drawn, and held against as many copies of the prompt in one batch."""


def alone(task: Task, copies: int = 1) -> Completions:
    """Each prompt by itself, with a cache: what modes are held against. Copies of a prompt are a batch, all prefilled."""
    found: Completions = []
    for ids_T, seed in zip(task.prompts, task.seeds, strict=True):
        # One seed gives row i the stream i, as it gives to answer i of one row.
        options = task.options([seed] if copies == 1 else seed)
        found += _split(task, generate(task.model, ids_T.repeat(copies, 1), details=True, **options))
    return found


def batched(task: Task, known: Completions, rng: random.Random, *, left: bool, **more: Any) -> Completions:
    """What `generate` answers to a batch that is padded on one side, with a stranger behind the prompts."""
    return _split(task, generate(task.model, **_batch(task, rng, left=left), details=True, **more))[:-1]


def streamed(task: Task, known: Completions, rng: random.Random) -> Completions:
    """Token by token, from a batch. Nothing but ids is wanted, so that a device may choose them by itself."""
    steps = list(generate(task.model, **_batch(task, rng, left=True), stream=True))
    return [Completion(tuple(ids)) for ids in torch.stack(steps, 1).tolist()][:-1]


def samples(task: Task, known: Completions, rng: random.Random) -> Completions:
    """Several answers from one reading of each prompt."""
    return _split(task, generate(task.model, **_batch(task, rng, left=True), n=SAMPLES, details=True))[:-SAMPLES]


@torch.inference_mode()
def chunks(task: Task, known: Completions, rng: random.Random) -> Completions:
    """A cache that is fed its prompt in pieces."""
    body, head, decoder = without_head(task.model), cast(Any, task.model.head), cast(Any, task.model.decoder)
    # Tokens that see each other both ways are in the first piece.
    first, device = max(CHUNK, decoder.prefix), task.prompts[0].device
    found: Completions = []
    for row, start in enumerate(task.starts):
        cache = task.model.new_cache(1, task.most, chunk=rng.choice((1, CHUNK)), **task.rope_length)
        pieces = [start[:first], *(start[begin : begin + CHUNK] for begin in range(first, len(start), CHUNK))]
        ids, logprobs, logits_BV = list[int](), list[Tensor](), torch.empty(0)
        with eval_mode(task.model):
            for step in range(task.new):
                for piece in pieces:
                    logits_BV = head(body(torch.tensor([piece], device=device), cache=cache).hidden[:, -1])
                token_B = logits_BV.argmax(-1)
                if (point_B := task.point(row, step)) is not None:
                    token_B = pick(divided(logits_BV, task.temperature), point_B.to(device))
                ids.append(int(token_B))
                logprobs.append(own_logprobs(logits_BV)[0, ids[-1]])
                pieces = [ids[-1:]]
        found.append(Completion(tuple(ids), torch.stack(logprobs)))
    return found


def blocks(task: Task, known: Completions, rng: random.Random) -> Completions:
    """Rows in blocks of one pool, each at its own length, their prompts in pieces."""
    engine = Engine(
        task.model, max_num_seqs=len(task.prompts), max_model_len=task.most, block_size=BLOCK, prefill_chunk=CHUNK
    )
    return _served(task, engine)


class HalfRight(PromptLookup):
    """Proposes what a row will say, from its own text or from the answer, and is wrong about every third token."""

    def __init__(self, answers: Rows[list[int]], vocab: int, rng: random.Random) -> None:
        super().__init__(GUESSES)
        self.answers, self.vocab, self.rng = answers, vocab, rng

    def propose(self, sequences: Rows[Sequence], most: Rows[int]) -> list[list[int]]:
        from_text = super().propose(sequences, most)
        from_answer = [
            self.answers[cast(int, each.request.id)][len(each.tokens) : len(each.tokens) + n]
            for each, n in zip(sequences, most, strict=True)
        ]
        return [
            mine
            if mine and self.rng.random() < 0.5
            else [token if self.rng.random() < 0.67 else (token + 1) % self.vocab for token in right]
            for mine, right in zip(from_text, from_answer, strict=True)
        ]


def proposals(task: Task, known: Completions, rng: random.Random) -> Completions:
    """Several proposed tokens are read in one pass, some of them wrong."""
    engine = Engine(
        task.model, max_num_seqs=len(task.prompts), max_model_len=task.most, block_size=BLOCK, prefill_chunk=CHUNK,
        lookup=True, guesses=GUESSES,
    )  # fmt: skip
    answers = [[*start, *each.ids] for start, each in zip(task.starts, known, strict=True)]
    engine.proposer = HalfRight(answers, task.model.spec.vocab, rng)
    return _served(task, engine)


def _served(task: Task, engine: Engine) -> Completions:
    rows = zip(task.prompts, task.seeds, strict=True)
    asked = ({"input_ids": ids_T, "id": i, "logprobs": 1, **task.options(s)} for i, (ids_T, s) in enumerate(rows))
    return _completions(engine.run(asked))


def _completions(served: list[Request]) -> Completions:
    sequences = [each.sequences[0] for each in served]
    for each in sequences:
        if each.error is not None:
            raise each.error
    return [Completion(tuple(each.new), torch.tensor(each.logprobs, dtype=torch.float64)) for each in sequences]


def batching(task: Task, known: Completions, rng: random.Random) -> Completions:
    """Requests that join and leave a running batch, with few sequences and blocks, beside strangers that give up."""
    # A little less than two of the longest rows need, so that one has to wait, or to begin again.
    few = max(2, 2 * math.ceil(task.most / BLOCK) - 1)
    engine = Engine(
        task.model, max_num_seqs=3, max_model_len=task.most, num_blocks=few, block_size=BLOCK,
        max_num_batched_tokens=CHUNK + 3, prefill_chunk=CHUNK,
    )  # fmt: skip
    rows = range(len(task.prompts))
    queue = [*((row, True) for row in rows), *((row, False) for row in rows[:2])]
    rng.shuffle(queue)
    added: dict[int, Request] = {}
    strangers: list[Request] = []
    while queue or not engine.idle:
        while queue and (engine.idle or rng.random() < 0.5):
            row, own = queue.pop()
            if own:
                added[row] = engine.add_request(task.prompts[row], logprobs=1, **task.options(task.seeds[row]))
            else:
                # It samples greedily where others draw, begins like another row, and is gone before it ends.
                other = task.options(row) | {"temperature": 0.0 if task.temperature else 1.0, "seed": row}
                strangers.append(engine.add_request(task.prompts[row], **other))
        engine.step()
        if strangers and rng.random() < 0.3:
            engine.abort(strangers.pop())
    engine.check()
    return _completions([added[row] for row in rows])


NO_PROMPT = "a decoder that begins with one token has no prompt to cut"
MODES = (
    DecodingMode("without a cache", partial(batched, left=False, use_cache=False)),
    DecodingMode("in a batch, padded left", partial(batched, left=True)),
    DecodingMode("in a batch, padded right", partial(batched, left=False)),
    DecodingMode("streamed", streamed),
    DecodingMode("prompt in pieces", chunks, absent=lambda task: NO_PROMPT if task.seq2seq else None),
    DecodingMode("in blocks, in pieces", blocks),
    DecodingMode("samples of one reading", samples, copies=SAMPLES),
    DecodingMode("with proposals", proposals),
    DecodingMode("with look-up", partial(batched, left=False, lookup=True, guesses=GUESSES)),
    DecodingMode("continuous batching", batching),
)
"""All of them, in the order of the table."""


def decision(task: Task, row: int, ids: Rows[int]) -> Tensor:
    """Logits (V,) by which the token after these new ones is chosen, read without a cache."""
    ids_BT = torch.tensor([[*task.starts[row], *ids]], device=task.prompts[0].device)
    source = {"input_ids": task.prompts[row][None]} if task.seq2seq else {}
    given = source | {"decoder_input_ids" if task.seq2seq else "input_ids": ids_BT}
    with torch.inference_mode(), eval_mode(task.model):
        return task.model(**given, **task.rope_length).logits[0, -1]


def _batch(task: Task, rng: random.Random, *, left: bool) -> dict[str, Any]:
    """Prompts beside each other with a stranger behind them, wider than the longest; their mask, and the options."""
    parts = [*task.prompts, max(task.prompts, key=len).flip(0)]
    width = max(map(len, parts)) + 2
    ids_BT = torch.full((len(parts), width), rng.randrange(task.model.spec.input_vocab), device=parts[0].device)
    mask_BT = torch.zeros_like(ids_BT)
    for i, ids_T in enumerate(parts):
        place = slice(width - len(ids_T), width) if left else slice(0, len(ids_T))
        ids_BT[i, place], mask_BT[i, place] = ids_T, 1
    return {"input_ids": ids_BT, "attention_mask": mask_BT} | task.options([*task.seeds, 0])


def _split(task: Task, found: Any) -> Completions:
    """The new tokens of each row."""
    rows = found.ids[:, -task.new :].tolist()
    return [Completion(tuple(ids), logprobs_N) for ids, logprobs_N in zip(rows, found.logprobs, strict=True)]


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
    modes: Rows[DecodingMode] = MODES,
    temperatures: Rows[float] = TEMPERATURES,
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
