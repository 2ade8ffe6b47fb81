"""`generate`: continue token ids, one token at a time."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Generator, Iterator
from typing import Any

import torch
from torch import Tensor

from anyformer.data.tokenizer import Tokenizer
from anyformer.errors import InputError
from anyformer.generation.asking.options import read_options
from anyformer.generation.asking.request import Request, request
from anyformer.generation.asking.stop import StopText
from anyformer.generation.details import Generated, Step, read_prompt_logprobs, take_step, together
from anyformer.generation.means import Means
from anyformer.generation.readers.paged import Paged
from anyformer.generation.running.capture import Draw
from anyformer.generation.samplers.bans import still
from anyformer.generation.samplers.choose import History, choose
from anyformer.generation.samplers.draw import keys, uniform
from anyformer.generation.text.stream import TextStream
from anyformer.model.eval_mode import eval_mode
from anyformer.model.model import Model

OWN = (
    "input_ids", "attention_mask", "global_mask", "tokenizer", "stream", "details", "use_cache", "rope_length", "draft",
    "lookup", "guesses", "compile",
)  # fmt: skip
"""What `generate` reads beside `Options`."""
BLOCK = 64
"""Steps for which numbers are drawn at once."""


def generate(
    model: Model,
    input_ids: Tensor,
    *,
    attention_mask: Tensor | None = None,
    global_mask: Tensor | None = None,
    tokenizer: Tokenizer | None = None,
    stream: bool = False,
    details: bool = False,
    use_cache: bool = True,
    rope_length: int | None = None,
    draft: Model | None = None,
    lookup: bool = False,
    guesses: int = 8,
    compile: bool | str = False,
    **options: Any,
) -> Any:
    """Continue each row of `input_ids` (B,T): the prompt and its new tokens, as one tensor of ids.

    An encoder-decoder reads `input_ids` as its source and answers the decoder's ids, the start token first. With `n`
    answers for each row there are n times as many rows, those of one prompt beside each other. A finished row is filled
    with the pad id (without one: the first eos id, else 0).

    Args:
        model: A decoder or an encoder-decoder with an lm head. It runs in eval mode, and gets its mode back.
        input_ids: Token ids. Rows of different lengths are padded, on either side.
        attention_mask: (B,T), 1 is real; None: all are.
        global_mask: (B,T), 1 is a global token of the prompt (or source), where a pattern has `global_tokens`.
        tokenizer: The model's, needed where an option is a text: stop strings, choices, bad words.
        stream: Yield a (B,) tensor of ids after each step instead; the model is in eval mode until the stream ends.
        details: Answer a `Generated` (each step of a stream: a `Step`), with log-probabilities and finish reasons.
        use_cache: False reads the whole row again in each step: slow, with the same tokens.
        rope_length: What length-dependent RoPE scalings read. None: the longest prompt and its new tokens.
        draft: A smaller model with the same vocabulary, whose guesses are read several at once. The tokens stay the same.
        lookup: Guess by what followed when the last tokens occurred before in the row; it costs no model.
        guesses: So many tokens are guessed at once.
        compile: Single steps go through torch.compile, which takes its time before the first token; a
            text names its backend.
        options: How tokens are chosen and when a row ends, by the names of `Options`: max_new_tokens, min_new_tokens,
            stop, temperature, do_sample, top_k, top_p, min_p, typical_p, seed, repetition_penalty, presence_penalty,
            frequency_penalty, logit_bias, no_repeat_ngram_size, bad_words, choices, first, n, logprobs,
            prompt_logprobs, num_beams, length_penalty, num_beam_groups, diversity_penalty, early_stopping,
            penalty_alpha. Any other name is refused, with the right one. By default the likeliest token is taken.
    """
    asked = request(
        model, input_ids, read_options(options, others=OWN), attention_mask=attention_mask, global_mask=global_mask,
        rope_length=rope_length, tokenizer=tokenizer, stream=stream, details=details, cached=use_cache, stacklevel=3,
    )  # fmt: skip
    means = Means(cached=use_cache, draft=draft, lookup=lookup, guesses=guesses, compiled=compile)
    means.check(model, asked)
    if asked.plan.way != "one":
        found = _search(model, asked)
        return found if details else found.ids
    rows = _Rows(model, asked, means, details=details)
    steps = rows.steps()
    if stream:
        return steps if details else _ids(steps)
    taken = list(steps)
    new_BN = torch.stack([step.ids_B for step in taken], 1)
    ids = torch.cat((asked.begun_BT.repeat_interleave(asked.plan.options.n, 0), new_BN), 1)
    return rows.answer(ids, new_BN, taken) if details else ids


def _search(model: Model, asked: Request) -> Generated:
    """Beams, or contrastive search."""
    with eval_mode(model):
        if asked.plan.way == "beam":
            from anyformer.generation.search.beam import beam_search

            return beam_search(model, asked)
        from anyformer.generation.search.contrastive import contrastive_search

        return contrastive_search(model, asked)


def _ids(steps: Generator[Step]) -> Iterator[Tensor]:
    """The ids of each step. Closing this stream closes the other one, so that the model gets its mode back at once."""
    with contextlib.closing(steps):
        for step in steps:
            yield step.ids_B


class _Rows:
    """Rows that grow together, until all have finished or have enough tokens."""

    def __init__(self, model: Model, asked: Request, means: Means, *, details: bool) -> None:
        self.model, self.asked, self.plan, self.details = model, asked, asked.plan, details
        device, samples = asked.prompt_BT.device, self.plan.options.n
        self.count = asked.prompt_BT.shape[0] * samples
        self.device = device
        self.source_B = torch.arange(asked.prompt_BT.shape[0], device=device).repeat_interleave(samples)
        """The row of the prompt that each row answers."""
        self.keys_B = (
            None if self.plan.greedy else keys(self.plan.seed, len(asked.prompt_BT), samples=samples, device=device)
        )
        self.reader = means.reader(model, asked, self.keys_B)
        self.stops_B = [] if not self.plan.stop_texts else [self._text(int(row)) for row in self.source_B]
        """By row: where its text stops."""
        self.prompt: Any = (None, None)

    def steps(self) -> Generator[Step]:
        """Choose tokens, one in each row at a time."""
        reader, looks = self.reader, self.details or self.plan.stop_texts or not self.plan.usual
        try:
            steps = self._flow(reader) if isinstance(reader, Paged) and not looks else self._steps()
            yield from eval_mode(self.model).handing(steps)
        finally:
            reader.close()

    def _flow(self, reader: Paged) -> Generator[Step]:
        """The same where the device chooses: it is some steps ahead of what is looked at here."""
        plan, device = self.plan, self.device
        stop_S, finished_B = torch.tensor(plan.stop, dtype=torch.long), torch.zeros(self.count, dtype=torch.bool)
        # Where nothing is drawn nobody looks at them.
        keys_B = torch.zeros(self.count, dtype=torch.long, device=device) if self.keys_B is None else self.keys_B
        logits_BV = self._begin()
        ids_B = choose(
            logits_BV, plan.chain, points_B=None if plan.greedy else uniform(keys_B, torch.zeros_like(keys_B))
        )
        rows = ((plan.temperature, plan.top_k, plan.top_p, plan.min_p),) * self.count
        chosen = reader.flow(ids_B, self.asked.new - 1, Draw(rows, keys_B, (1,) * self.count))
        nothing_B = torch.zeros(self.count, device=device)
        each = itertools.chain([(ids_B.cpu(), torch.ones_like(finished_B))], chosen)
        for i, (found_B, whole_B) in enumerate(each):
            if not bool((whole_B | finished_B).all()):
                row = int((whole_B | finished_B).long().argmin())
                raise InputError(
                    f"row {row}: its logits are not finite at new token {i + 1}, so none can be chosen; are the weights "
                    "damaged, or is the dtype too narrow? Try dtype=torch.float32"
                )
            found_B = found_B.masked_fill(finished_B, self.asked.pad) if plan.stop else found_B
            finished_B = finished_B | (found_B[:, None] == stop_S).any(-1)
            yield Step(found_B.to(device), nothing_B, finished_B.to(device))
            if plan.stop and bool(finished_B.all()):
                return

    def _steps(self) -> Generator[Step]:
        """The same where this loop chooses."""
        plan, asked, device = self.plan, self.asked, self.device
        finished_B = torch.zeros(self.count, dtype=torch.bool, device=device)
        stop_S = torch.tensor(plan.stop, dtype=torch.long, device=device)
        ends = bool(plan.stop or plan.stop_texts or plan.choices)
        keys_B = self.keys_B
        logprobs_B, top_ids, top_logprobs = torch.zeros(self.count, device=device), None, None
        points_BN, points_B, chain = None, None, plan.chain
        logits_BV = self._begin()
        history = self._history() if plan.reads_past else None
        for i in range(asked.new):
            chain = still(chain, i)
            if keys_B is not None:
                if i % BLOCK == 0:
                    points_BN = uniform(keys_B[:, None], torch.arange(i, i + BLOCK, device=device))
                points_B = None if points_BN is None else points_BN[:, i % BLOCK]
            past = None if history is None else history.past
            ids_B = choose(logits_BV, chain, past, points_B=points_B, finished_B=finished_B)
            if self.details:
                logprobs_B, top_ids, top_logprobs = take_step(logits_BV, ids_B, finished_B, plan.options.logprobs)
            if ends:
                ids_B = ids_B.masked_fill(finished_B, asked.pad)
            if history is not None:
                history.append(ids_B)
            if plan.stop:
                finished_B = finished_B | (ids_B[:, None] == stop_S).any(-1)
            if plan.choices is not None and history is not None:
                finished_B = finished_B | plan.choices.complete_B(history.past)
            if self.stops_B:
                finished_B = finished_B | self._met(ids_B, finished_B)
            yield Step(ids_B, logprobs_B, finished_B, top_ids, top_logprobs)
            if i == asked.new - 1 or (ends and bool(finished_B.all())):
                return
            logits_BV = self.reader.go_on(ids_B)

    def answer(self, ids: Tensor, new_BN: Tensor, taken: list[Step]) -> Generated:
        """All steps together."""
        # A step counts for a row that had not finished before it.
        counts_B = len(taken) - torch.stack([step.finished_B for step in taken], 1)[:, :-1].sum(-1)
        lengths, done = tuple(counts_B.tolist()), taken[-1].finished_B.tolist()
        prompt_logprobs, prompt_top = self.prompt
        return Generated(
            ids=ids,
            logprobs=torch.stack([step.logprobs_B for step in taken], 1),
            lengths=lengths,
            reasons=tuple("stop" if each else "length" for each in done),
            met=self._endings(new_BN, lengths),
            top=together(taken),
            prompt_logprobs=prompt_logprobs,
            prompt_top=prompt_top,
        )

    def _begin(self) -> Tensor:
        """Logits after the prompt, which is read once however many answers it gets."""
        asked = self.asked
        logits_BV = self.reader.begin()
        if asked.reads_prompt and self.reader.states_BTD is not None:
            top = asked.plan.options.prompt_logprobs or 0
            states, self.reader.states_BTD = self.reader.states_BTD, None
            self.prompt = read_prompt_logprobs(self.model.head, states, asked.prompt_BT, asked.mask_BT, top)
        if asked.plan.options.n == 1:
            return logits_BV
        self.reader.reorder(self.source_B)
        return logits_BV[self.source_B]

    def _history(self) -> History:
        asked, mask_BT = self.asked, self.asked.begun_mask_BT
        return History(asked.begun_BT[self.source_B], None if mask_BT is None else mask_BT[self.source_B], asked.new)

    def _text(self, row: int) -> StopText:
        """The text of a row, which goes on from that of its prompt."""
        asked = self.asked
        if asked.tokenizer is None:
            raise InputError("stop: texts need the model's tokenizer as tokenizer=")
        before: list[int] = []
        if asked.begun_BT is asked.prompt_BT:
            ids_T = asked.prompt_BT[row]
            before = (ids_T if asked.mask_BT is None else ids_T[asked.mask_BT[row] != 0]).tolist()
        return StopText(TextStream(asked.tokenizer, before), self.plan.stop_texts, least=self.plan.least)

    def _met(self, ids_B: Tensor, finished_B: Tensor) -> Tensor:
        """Rows whose text has met a stop string."""
        for text, token, done in zip(self.stops_B, ids_B.tolist(), finished_B.tolist(), strict=True):
            if not done:
                text.push(token)
        return torch.tensor([text.met is not None for text in self.stops_B], device=self.device)

    def _endings(self, new_BN: Tensor, lengths: tuple[int, ...]) -> tuple[str | None, ...]:
        """The stop string or choice with which each row ended."""
        if self.stops_B:
            return tuple(text.met for text in self.stops_B)
        choices, texts = self.plan.choices, list(self.plan.options.choices or ())
        if choices is None:
            return (None,) * self.count
        which = [choices.which(row[:n]) for row, n in zip(new_BN.tolist(), lengths, strict=True)]
        return tuple(None if each is None else texts[each] for each in which)
