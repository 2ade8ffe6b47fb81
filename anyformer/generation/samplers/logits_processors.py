"""Logits processors: penalties, bans and filters, each a small frozen dataclass that turns logits into logits."""

import abc
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Self

import torch
from torch import Tensor

NEVER = float("-inf")
"""The logit of a token that is ruled out."""
FEW, MANY = 256, 4096
"""Of more than MANY tokens only the FEW likeliest are sorted, as long as they are enough."""


@dataclass(frozen=True)
class TokenHistory:
    """The tokens of each row so far, from column 0 on without a gap: first its prompt, then what is new."""

    ids_BL: Tensor
    """-1 where there is no token."""
    prompt_B: Tensor
    """How many of them are prompt; of an encoder-decoder: the decoder's own beginning."""
    new_B: Tensor
    """How many are new."""

    def rows(self, rows_R: Tensor) -> Self:
        """That of some rows."""
        return type(self)(self.ids_BL[rows_R], self.prompt_B[rows_R], self.new_B[rows_R])

    def fresh_BL(self) -> Tensor:
        """The same ids, with -1 for the prompt too."""
        column_L = torch.arange(self.ids_BL.shape[1], device=self.ids_BL.device)
        return self.ids_BL.masked_fill(column_L < self.prompt_B[:, None], -1)

    def tail_BN(self, count: int) -> Tensor:
        """The last `count` ids of each row; -1 where a row has fewer."""
        back_N = torch.arange(-count, 0, device=self.ids_BL.device)
        place_BN = (self.prompt_B + self.new_B)[:, None] + back_N
        return self.ids_BL.gather(1, place_BN.clamp(min=0)).masked_fill(place_BN < 0, -1)


class LogitsProcessor(abc.ABC):
    """One of the steps between the model's logits and a draw."""

    reads_history: ClassVar[bool] = True
    """Whether it looks at the tokens so far; where no processor does, nobody keeps them."""

    @abc.abstractmethod
    def apply(self, logits_BV: Tensor, history: TokenHistory) -> Tensor:
        """New logits, `NEVER` where a token is ruled out. The given ones stay as they are."""


def process(logits_BV: Tensor, processors: Sequence[LogitsProcessor], history: TokenHistory) -> Tensor:
    """The same processors for all rows, one after the other."""
    for processor in processors:
        logits_BV = processor.apply(logits_BV, history)
    return logits_BV


def process_rows(
    logits_BV: Tensor, processors_B: Sequence[tuple[LogitsProcessor, ...]], history: TokenHistory
) -> Tensor:
    """Processors for each row; rows with equal ones go through them together."""
    groups: dict[tuple[LogitsProcessor, ...], list[int]] = {}
    for row, processors in enumerate(processors_B):
        groups.setdefault(processors, []).append(row)
    if len(groups) == 1:
        return process(logits_BV, processors_B[0], history)
    found_BV = logits_BV.clone()
    for processors, rows in groups.items():
        if processors:
            rows_R = torch.tensor(rows, device=logits_BV.device)
            found_BV[rows_R] = process(logits_BV[rows_R], processors, history.rows(rows_R))
    return found_BV


@lru_cache(maxsize=64)
def tensor_of(values: tuple[float, ...], device: torch.device, dtype: torch.dtype = torch.long) -> Tensor:
    """Ids or biases as a tensor, made once: a processor is asked in every step."""
    return torch.tensor(values, dtype=dtype, device=device)


def counts_BV(ids_BL: Tensor, like_BV: Tensor) -> Tensor:
    """How often each token of the vocabulary occurs in each row."""
    found = torch.zeros_like(like_BV)
    return found.scatter_add_(1, ids_BL.clamp(min=0), (ids_BL >= 0).to(like_BV.dtype))


def own_logprobs(logits_BV: Tensor) -> Tensor:
    """The model's own log-probabilities, never below fp32."""
    return logits_BV.to(torch.promote_types(logits_BV.dtype, torch.float32)).log_softmax(-1)


def why_not(logits_V: Tensor, left_V: Tensor) -> str | None:
    """Why no token of a row can be sampled, given its logits before and after the processors; None: one can."""
    damaged = "are the weights damaged, or is the dtype too narrow? Try dtype=torch.float32"
    for row_V, what in ((logits_V, damaged), (left_V, "the samplers rule out every token; loosen one")):
        best = row_V.max()
        if not bool(best.isfinite()):
            bad = int(row_V.isnan().sum())
            which = f"{bad} of {len(row_V)} logits are NaN" if bad else f"the largest logit is {float(best)}"
            return f"{which}, so no token can be chosen; {what}"
    return None


@dataclass(frozen=True)
class RepetitionPenalty(LogitsProcessor):
    """Tokens that occurred, in the prompt too: positive logits divided by the penalty, negative ones multiplied.

    CTRL, Keskar et al. 2019 (arXiv 1909.05858), section 4.1.
    """

    penalty: float

    def apply(self, logits_BV: Tensor, history: TokenHistory) -> Tensor:
        lowered_BV = torch.where(logits_BV < 0, logits_BV * self.penalty, logits_BV / self.penalty)
        return torch.where(counts_BV(history.ids_BL, logits_BV) > 0, lowered_BV, logits_BV)


@dataclass(frozen=True)
class PresencePenalty(LogitsProcessor):
    """Subtracted from each token that was generated; the prompt does not count."""

    penalty: float

    def apply(self, logits_BV: Tensor, history: TokenHistory) -> Tensor:
        return logits_BV - self.penalty * (counts_BV(history.fresh_BL(), logits_BV) > 0)


@dataclass(frozen=True)
class FrequencyPenalty(LogitsProcessor):
    """Subtracted from a token as often as it was generated; the prompt does not count."""

    penalty: float

    def apply(self, logits_BV: Tensor, history: TokenHistory) -> Tensor:
        return logits_BV - self.penalty * counts_BV(history.fresh_BL(), logits_BV)


@dataclass(frozen=True)
class LogitBias(LogitsProcessor):
    """A number for each of some tokens, added to its logit."""

    pairs: tuple[tuple[int, float], ...]
    reads_history = False

    def apply(self, logits_BV: Tensor, history: TokenHistory) -> Tensor:
        ids, values = zip(*self.pairs, strict=True)
        ids_N, bias_N = tensor_of(ids, logits_BV.device), tensor_of(values, logits_BV.device, logits_BV.dtype)
        return logits_BV.index_add(-1, ids_N, bias_N.expand(len(logits_BV), -1))


@dataclass(frozen=True)
class NoRepeatNgram(LogitsProcessor):
    """No run of `size` tokens occurs twice in a row, the prompt included."""

    size: int

    def apply(self, logits_BV: Tensor, history: TokenHistory) -> Tensor:
        if history.ids_BL.shape[1] < self.size:
            return logits_BV
        # A run that begins as the row ends may not end as it did before.
        runs_BWN = history.ids_BL.unfold(1, self.size, 1)
        tail_BN = history.tail_BN(self.size - 1)
        same_BW = (runs_BWN[..., :-1] == tail_BN[:, None]).all(-1) & (tail_BN >= 0).all(-1, keepdim=True)
        ends_BW = runs_BWN[..., -1].masked_fill(~same_BW, -1)
        return logits_BV.masked_fill(counts_BV(ends_BW, logits_BV) > 0, NEVER)


@dataclass(frozen=True)
class BadWords(LogitsProcessor):
    """Sequences of ids that are never completed, wherever they began."""

    words: tuple[tuple[int, ...], ...]

    def apply(self, logits_BV: Tensor, history: TokenHistory) -> Tensor:
        device = logits_BV.device
        single = tuple(word[0] for word in self.words if len(word) == 1)
        if single:
            logits_BV = logits_BV.index_fill(-1, tensor_of(single, device), NEVER)
        for length in sorted({len(word) for word in self.words} - {1}):
            if history.ids_BL.shape[1] < length - 1:
                continue
            words = tuple(word for word in self.words if len(word) == length)
            ids_WN = tensor_of(sum(words, ()), device).view(len(words), length)
            begun_BW = (history.tail_BN(length - 1)[:, None] == ids_WN[:, :-1]).all(-1)
            ends_BW = torch.where(begun_BW, ids_WN[:, -1], -1)
            logits_BV = logits_BV.masked_fill(counts_BV(ends_BW, logits_BV) > 0, NEVER)
        return logits_BV


@dataclass(frozen=True)
class MinNewTokens(LogitsProcessor):
    """Stop tokens are ruled out until a row has so many new tokens."""

    least: int
    stop: tuple[int, ...]

    def apply(self, logits_BV: Tensor, history: TokenHistory) -> Tensor:
        barred_BV = logits_BV.index_fill(-1, tensor_of(self.stop, logits_BV.device), NEVER)
        return torch.where((history.new_B < self.least)[:, None], barred_BV, logits_BV)


@dataclass(frozen=True)
class First(LogitsProcessor):
    """The first new token is one of these."""

    ids: tuple[int, ...]

    def apply(self, logits_BV: Tensor, history: TokenHistory) -> Tensor:
        ids_N = tensor_of(self.ids, logits_BV.device)
        only_BV = torch.full_like(logits_BV, NEVER).index_copy(-1, ids_N, logits_BV.index_select(-1, ids_N))
        return torch.where((history.new_B == 0)[:, None], only_BV, logits_BV)


@dataclass(frozen=True)
class Forced(LogitsProcessor):
    """The n-th new token is this one, for sure: a hypothesis pays nothing for it."""

    token: int
    step: int

    def apply(self, logits_BV: Tensor, history: TokenHistory) -> Tensor:
        only_BV = torch.full_like(logits_BV, NEVER)
        only_BV[:, self.token] = 0
        return torch.where((history.new_B == self.step)[:, None], only_BV, logits_BV)


@dataclass(frozen=True)
class Temperature(LogitsProcessor):
    """Logits divided by a number: below 1 the likely tokens gain, above 1 the others do."""

    value: float
    reads_history = False

    def apply(self, logits_BV: Tensor, history: TokenHistory) -> Tensor:
        return divided(logits_BV, self.value)


def divided(logits_BV: Tensor, temperature: float | Tensor) -> Tensor:
    """Logits over a temperature, or one for each row."""
    # From the largest down, so that however small the number is, the likeliest token stays finite.
    return (logits_BV - logits_BV.amax(-1, keepdim=True)) / temperature


@dataclass(frozen=True)
class TopK(LogitsProcessor):
    """The k likeliest tokens, and those that tie with the last of them."""

    k: int
    reads_history = False

    def apply(self, logits_BV: Tensor, history: TokenHistory) -> Tensor:
        if self.k >= logits_BV.shape[-1]:
            return logits_BV
        last_B1 = logits_BV.topk(self.k).values[:, -1:]
        return logits_BV.masked_fill(logits_BV < last_B1, NEVER)


@dataclass(frozen=True)
class TopP(LogitsProcessor):
    """The fewest tokens whose probabilities reach p, the one that crosses it included; of equals the lower id stays."""

    p: float
    reads_history = False

    def apply(self, logits_BV: Tensor, history: TokenHistory) -> Tensor:
        if self.p >= 1:
            return logits_BV
        probs_BV = logits_BV.softmax(-1)
        vocab = probs_BV.shape[-1]
        falling = probs_BV.topk(FEW if vocab > MANY else vocab).values
        if falling.shape[-1] < vocab and bool((falling.cumsum(-1, dtype=torch.float64)[:, -1] < self.p).any()):
            falling = probs_BV.sort(-1, descending=True).values
        return logits_BV.masked_fill(~nucleus(probs_BV, falling, self.p), NEVER)


def nucleus(probs_BV: Tensor, falling_BN: Tensor, p: float | Tensor) -> Tensor:
    """The fewest tokens whose probabilities reach p, given those in falling order; of equals the lower id."""
    total_BN = falling_BN.cumsum(-1, dtype=torch.float64)
    kept_B1 = (total_BN - falling_BN < p).sum(-1, keepdim=True)
    # None of a row without numbers is kept, and a row that can't be chosen from must not harm the others.
    last_B1 = falling_BN.gather(-1, (kept_B1 - 1).clamp(min=0))
    above_BV, equal_BV = probs_BV > last_B1, probs_BV == last_B1
    places_B1 = kept_B1 - above_BV.sum(-1, keepdim=True)
    return above_BV | equal_BV & (equal_BV.cumsum(-1) <= places_B1)


@dataclass(frozen=True)
class MinP(LogitsProcessor):
    """Tokens that are at least p times as likely as the likeliest."""

    p: float
    reads_history = False

    def apply(self, logits_BV: Tensor, history: TokenHistory) -> Tensor:
        return at_least(logits_BV, math.log(self.p)) if self.p > 0 else logits_BV


def at_least(logits_BV: Tensor, log_p: float | Tensor) -> Tensor:
    """Logits that lie no further below the largest than the logarithm of some share of it."""
    return logits_BV.masked_fill(logits_BV < logits_BV.amax(-1, keepdim=True) + log_p, NEVER)


@dataclass(frozen=True)
class Typical(LogitsProcessor):
    """Tokens whose surprise is nearest to the expected one, as many as reach p, and ties with the last of them.

    Locally typical sampling, Meister et al. 2022 (arXiv 2202.00666), section 4.
    """

    p: float
    reads_history = False

    def apply(self, logits_BV: Tensor, history: TokenHistory) -> Tensor:
        if self.p >= 1:
            return logits_BV
        logprobs_BV = logits_BV.log_softmax(-1)
        probs_BV = logprobs_BV.exp()
        # A token that is ruled out adds nothing to the entropy, though its surprise is infinite.
        entropy_B1 = torch.where(probs_BV > 0, -probs_BV * logprobs_BV, 0).sum(-1, keepdim=True)
        strange_BV = (-logprobs_BV - entropy_B1).abs()
        rising, order = strange_BV.sort(-1)
        total = probs_BV.gather(-1, order).cumsum(-1, dtype=torch.float64)
        last_B1 = (total < self.p).sum(-1, keepdim=True).clamp(max=total.shape[-1] - 1)
        return logits_BV.masked_fill(strange_BV > rising.gather(-1, last_B1), NEVER)


@dataclass(frozen=True)
class Choices(LogitsProcessor):
    """In each step only tokens that go on with a sequence whose beginning was generated.

    A sequence that is the beginning of another ends with one of the `stop` ids, any other with its own last id. The
    probability of an answer is the product of the probabilities that its tokens have among those that were left.
    """

    answers: tuple[tuple[int, ...], ...]
    stop: tuple[int, ...]

    def apply(self, logits_BV: Tensor, history: TokenHistory) -> Tensor:
        alive_BC, next_BC = self._next(history)
        goes_on_B1 = (next_BC >= 0).any(-1, keepdim=True)
        left_BV = counts_BV(next_BC, logits_BV) > 0
        if self.stop:
            ended_B1 = (alive_BC & (next_BC < 0)).any(-1, keepdim=True)
            left_BV[:, tensor_of(self.stop, logits_BV.device)] |= ended_B1
        # A row that is complete is not asked any more, so whatever it gets must only be possible.
        return torch.where(left_BV | ~goes_on_B1, logits_BV, NEVER)

    @property
    def steps(self) -> int:
        """Tokens of the longest answer, with the stop token that one needs which is the beginning of another."""
        begins = [len(a) + 1 for a in self.answers if any(len(b) > len(a) and b[: len(a)] == a for b in self.answers)]
        return max([*map(len, self.answers), *begins])

    def _next(self, history: TokenHistory) -> tuple[Tensor, Tensor]:
        """(B,C): which answers begin with the new tokens of a row, and the id that comes next in them; else -1."""
        longest, device = max(map(len, self.answers)), history.ids_BL.device
        # One column more than the longest, in which every answer has ended.
        flat = tuple(i for answer in self.answers for i in (*answer, *([-1] * (longest + 1 - len(answer)))))
        ids_CM = tensor_of(flat, device).view(len(self.answers), longest + 1)
        column_M = torch.arange(longest, device=device)
        place_BM = (history.prompt_B[:, None] + column_M).clamp(max=history.ids_BL.shape[1] - 1)
        later_BM = column_M >= history.new_B[:, None]
        said_BM = history.ids_BL.gather(1, place_BM)
        alive_BC = ((said_BM[:, None] == ids_CM[:, :-1]) | later_BM[:, None]).all(-1)
        alive_BC &= (history.new_B <= longest)[:, None]
        next_BC = ids_CM.T[history.new_B.clamp(max=longest)].masked_fill(~alive_BC, -1)
        return alive_BC, next_BC

    def complete(self, new: Sequence[int]) -> bool:
        """Whether new tokens are an answer that no other one begins with."""
        said = tuple(new)
        return [answer for answer in self.answers if answer[: len(said)] == said] == [said]

    def which(self, new: Sequence[int]) -> int | None:
        """The answer that some new tokens are, a stop token at the end not counted; None: none yet."""
        said = tuple(new)
        if said and said not in self.answers and said[-1] in self.stop:
            said = said[:-1]
        return self.answers.index(said) if said in self.answers else None
