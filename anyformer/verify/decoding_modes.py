"""Decoding modes: every way to generate from a model, each of which must give a prompt the tokens that it gets alone."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from collections.abc import Sequence as Rows
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from anyformer.generation.engine import Engine
from anyformer.generation.engine.core import EngineCore
from anyformer.generation.engine.engine import make_requests
from anyformer.generation.engine.model_runner import ModelRunner
from anyformer.generation.engine.request import Sequence
from anyformer.generation.engine.scheduler import Limits
from anyformer.generation.engine.speculative import PromptLookup, Proposer
from anyformer.generation.generate import generate
from anyformer.generation.params.generation_request import check_request
from anyformer.generation.params.sampling_params import read_params
from anyformer.generation.samplers.batched import keys, pick, uniform
from anyformer.generation.samplers.logits_processors import divided, own_logprobs
from anyformer.model.eval_mode import eval_mode, without_head
from anyformer.model.model import Model

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
    declared: int | None
    """The length that length-dependent positions read: one for all modes, as rows of a batch have different ones."""

    @property
    def two(self) -> bool:
        return self.model.spec.topology == "encoder-decoder"

    @property
    def prefix(self) -> int:
        """Tokens that see each other both ways."""
        decoder: Any = self.model.decoder
        return decoder.prefix

    @property
    def starts(self) -> list[list[int]]:
        """What the new tokens of each row are added to."""
        return [[self.model.spec.ids.start or 0] if self.two else ids_T.tolist() for ids_T in self.prompts]

    @property
    def most(self) -> int:
        """Tokens of the longest row when all are there."""
        return max(map(len, self.starts)) + self.new

    @property
    def options(self) -> dict[str, Any]:
        """What `generate` and `submit` are given, but for seeds."""
        options: dict[str, Any] = {"max_new_tokens": self.new, "stop": ()}
        if self.temperature:
            options["temperature"] = self.temperature
        return options | ({} if self.declared is None else {"rope_length": self.declared})

    def points(self, rows: Rows[int], step: int) -> Tensor | None:
        """The numbers that decide the draws of some rows; None: nothing is drawn."""
        if not self.temperature:
            return None
        device = next(self.model.parameters()).device
        keys_B = keys([self.seeds[row] for row in rows], len(rows), device=device)
        return uniform(keys_B, torch.tensor(step, device=device))

    def point(self, row: int, step: int, stream: int) -> float | None:
        """The same for one of several answers to a prompt."""
        if not self.temperature:
            return None
        one = keys([self.seeds[row]], 1, samples=stream + 1, device=torch.device("cpu"))[stream]
        return float(uniform(one, torch.tensor(step)))


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
        seeds = _seeded(task, [seed] if copies == 1 else seed)
        found += _split(task, generate(task.model, ids_T.repeat(copies, 1), details=True, **seeds))
    return found


def batched(task: Task, known: Completions, rng: random.Random, *, left: bool, **more: Any) -> Completions:
    """What `generate` answers to a batch in random order, padded on one side."""
    rows = _order(task, rng)
    ids_BT, mask_BT, given = _batch(task, rows, rng, left=left)
    found = generate(task.model, ids_BT, attention_mask=mask_BT, details=True, **given, **more)
    return _sorted(_split(task, found)[:-1], rows)


def streamed(task: Task, known: Completions, rng: random.Random) -> Completions:
    """Token by token, from a batch. Nothing but ids is wanted, so that a device may choose them by itself."""
    rows = _order(task, rng)
    ids_BT, mask_BT, given = _batch(task, rows, rng, left=True)
    steps = list(generate(task.model, ids_BT, attention_mask=mask_BT, stream=True, **given))
    return _sorted([Completion(tuple(ids)) for ids in torch.stack(steps, 1).tolist()][:-1], rows)


def samples(task: Task, known: Completions, rng: random.Random) -> Completions:
    """Several answers from one reading of each prompt."""
    rows = list(range(len(task.prompts)))
    ids_BT, mask_BT = _padded(task, rows, rng, left=True)
    seeds = _seeded(task, list(task.seeds))
    return _split(task, generate(task.model, ids_BT, attention_mask=mask_BT, n=SAMPLES, details=True, **seeds))


@torch.inference_mode()
def chunks(task: Task, known: Completions, rng: random.Random) -> Completions:
    """A cache that is fed its prompt in pieces."""
    body, head = without_head(task.model), cast(Any, task.model.head)
    found: Completions = []
    for row, start in enumerate(task.starts):
        cache = task.model.new_cache(1, task.most, rope_length=task.declared, chunk=rng.choice((1, CHUNK)))

        def fed(ids_B: Tensor, cache: Any = cache) -> Tensor:
            return head(body(ids_B[:, None], cache=cache).hidden[:, -1])

        with eval_mode(task.model):
            logits_BV = torch.empty(0)
            for piece in _pieces(start, task.prefix):
                logits_BV = head(body(_row(task, piece), cache=cache).hidden[:, -1])
            found += _driven(task, [row], logits_BV, fed)
    return found


def blocks(task: Task, known: Completions, rng: random.Random) -> Completions:
    """Rows in blocks of one pool, each at its own length, their prompts in pieces."""
    rows = _order(task, rng)
    return _sorted(_served(task, rows, chunk=rng.choice((1, CHUNK))), rows)


class HalfRight:
    """Proposes what a row will say, from its own text or from the answer, and is wrong about every third token."""

    most = GUESSES

    def __init__(self, answers: Rows[list[int]], vocab: int, rng: random.Random) -> None:
        self.answers, self.vocab, self.rng, self.lookup = answers, vocab, rng, PromptLookup(GUESSES)

    def propose(self, sequences: Rows[Sequence], most: Rows[int]) -> list[list[int]]:
        from_text = self.lookup.propose(sequences, most)
        from_answer = [
            self.answers[cast(int, each.request.id)][len(each.tokens) : len(each.tokens) + n]
            for each, n in zip(sequences, most, strict=True)
        ]
        return [
            mine if mine and self.rng.random() < 0.5 else [self._spoil(token) for token in right]
            for mine, right in zip(from_text, from_answer, strict=True)
        ]

    def forget(self, sequence: Sequence) -> None:
        self.lookup.forget(sequence)

    def _spoil(self, token: int) -> int:
        return token if self.rng.random() < 0.67 else (token + 1) % self.vocab


def proposals(task: Task, known: Completions, rng: random.Random) -> Completions:
    """Several proposed tokens are read in one pass, some of them wrong."""
    answers = [[*start, *each.ids] for start, each in zip(task.starts, known, strict=True)]
    proposer = HalfRight(answers, task.model.spec.vocab, rng)
    return _served(task, list(range(len(task.prompts))), chunk=2 * GUESSES + 2, proposer=proposer)


def _served(task: Task, rows: list[int], *, chunk: int, proposer: Proposer | None = None) -> Completions:
    """What an engine with room for all rows answers them, in this order."""
    pool = task.model.new_pool(len(rows), task.most, block_size=BLOCK, chunk=chunk, rope_length=task.declared)
    engine = EngineCore(ModelRunner(task.model, pool), Limits(prefill_chunk=CHUNK), proposer=proposer)
    added = []
    for row in rows:
        options = {name: value for name, value in _seeded(task, [task.seeds[row]]).items() if name != "rope_length"}
        prompt_1T = task.prompts[row][None]
        inputs = check_request(task.model, prompt_1T, read_params(options), rope_length=task.declared)
        added += make_requests(task.model, inputs, first=row)
        added[-1].logprobs = 0
        engine.add(added[-1])
    while not engine.idle:
        engine.step()
    return _completions([each.sequences[0] for each in added])


def _completions(sequences: list[Sequence]) -> Completions:
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
    rows = _order(task, rng)
    queue = [*((row, True) for row in rows), *((row, False) for row in rows[:2])]
    rng.shuffle(queue)
    added: dict[int, Any] = {}
    strangers: list[Any] = []
    while queue or not engine.idle:
        while queue and (engine.idle or rng.random() < 0.5):
            row, own = queue.pop()
            if own:
                added[row] = engine.add_request(task.prompts[row], logprobs=1, **_seeded(task, task.seeds[row]))
            else:
                # It samples greedily where others draw, begins like another row, and is gone before it ends.
                other = task.options | {"temperature": 0.0 if task.temperature else 1.0, "seed": row}
                strangers.append(engine.add_request(task.prompts[row], **other))
        engine.step()
        if strangers and rng.random() < 0.3:
            engine.abort(strangers.pop())
    engine.check()
    return _completions([added[row].sequences[0] for row in range(len(task.prompts))])


MODES = (
    DecodingMode("without a cache", partial(batched, left=False, use_cache=False)),
    DecodingMode("in a batch, padded left", partial(batched, left=True)),
    DecodingMode("in a batch, padded right", partial(batched, left=False)),
    DecodingMode("streamed", streamed),
    DecodingMode(
        "prompt in pieces",
        chunks,
        absent=lambda task: "a decoder that begins with one token has no prompt to cut" if task.two else None,
    ),
    DecodingMode("in blocks, in pieces", blocks),
    DecodingMode("samples of one reading", samples, copies=SAMPLES),
    DecodingMode("with proposals", proposals),
    DecodingMode("with look-up", partial(batched, left=False, lookup=True, guesses=GUESSES)),
    DecodingMode("continuous batching", batching),
)
"""All of them, in the order of the table."""


def decision(task: Task, row: int, ids: Rows[int]) -> Tensor:
    """Logits (V,) by which the token after these new ones is chosen, read without a cache."""
    given: dict[str, Any] = {} if task.declared is None else {"rope_length": task.declared}
    start = _row(task, [*task.starts[row], *ids])
    with torch.inference_mode(), eval_mode(task.model):
        if task.two:
            return task.model(task.prompts[row][None], decoder_input_ids=start, **given).logits[0, -1]
        return task.model(start, **given).logits[0, -1]


def _order(task: Task, rng: random.Random) -> list[int]:
    rows = list(range(len(task.prompts)))
    rng.shuffle(rows)
    return rows


def _sorted(found: Completions, rows: list[int]) -> Completions:
    """Answers to prompts that were in another order."""
    return [found[rows.index(row)] for row in range(len(rows))]


def _seeded(task: Task, seed: int | list[int]) -> dict[str, Any]:
    return task.options | ({"seed": seed} if task.temperature else {})


def _batch(task: Task, rows: list[int], rng: random.Random, *, left: bool) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """Prompts in this order with a stranger behind them, their mask, and the options."""
    ids_BT, mask_BT = _padded(task, rows, rng, left=left, strangers=1)
    return ids_BT, mask_BT, _seeded(task, [*(task.seeds[row] for row in rows), 0])


def _padded(
    task: Task, rows: list[int], rng: random.Random, *, left: bool, strangers: int = 0
) -> tuple[Tensor, Tensor]:
    """Prompts beside each other, wider than the longest of them, and the mask of real tokens."""
    others = [max(task.prompts, key=len).flip(0)] * strangers
    parts = [*(task.prompts[row] for row in rows), *others]
    width = max(map(len, parts)) + 2
    ids_BT = torch.full((len(parts), width), rng.randrange(task.model.spec.input_vocab), device=parts[0].device)
    mask_BT = torch.zeros_like(ids_BT)
    for i, ids_T in enumerate(parts):
        place = slice(width - len(ids_T), width) if left else slice(0, len(ids_T))
        ids_BT[i, place], mask_BT[i, place] = ids_T, 1
    return ids_BT, mask_BT


def _split(task: Task, found: Any) -> Completions:
    """The new tokens of each row."""
    rows = found.ids[:, -task.new :].tolist()
    return [Completion(tuple(ids), logprobs_N) for ids, logprobs_N in zip(rows, found.logprobs, strict=True)]


def _row(task: Task, ids: Rows[int]) -> Tensor:
    return torch.tensor([list(ids)], device=task.prompts[0].device)


def _pieces(ids: list[int], prefix: int) -> list[list[int]]:
    """A prompt in pieces; tokens that see each other both ways are in the first."""
    first = max(CHUNK, prefix)
    return [ids[:first], *(ids[begin : begin + CHUNK] for begin in range(first, len(ids), CHUNK))]


def _driven(task: Task, rows: list[int], logits_BV: Tensor, fed: Callable[[Tensor], Tensor]) -> Completions:
    """Choose tokens from logits and feed them, as long as some are wanted."""
    ids: list[Tensor] = []
    logprobs: list[Tensor] = []
    for step in range(task.new):
        if step:
            logits_BV = fed(ids[-1])
        points_B = task.points(rows, step)
        best_B = logits_BV.argmax(-1)
        ids.append(best_B if points_B is None else pick(divided(logits_BV, task.temperature), points_B))
        logprobs.append(own_logprobs(logits_BV).gather(-1, ids[-1][:, None])[:, 0])
    rows_BN, logprobs_BN = torch.stack(ids, 1).tolist(), torch.stack(logprobs, 1)
    return [Completion(tuple(each), logprobs_N) for each, logprobs_N in zip(rows_BN, logprobs_BN, strict=True)]
