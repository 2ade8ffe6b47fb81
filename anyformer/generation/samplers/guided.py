"""Constrained choice: the answer is exactly one of some sequences of ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from anyformer.generation.samplers.logits_processors import NEVER, LogitsProcessor, TokenHistory, counts_BV, tensor_of


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
    def longest(self) -> int:
        """Tokens of the longest answer, without a stop token."""
        return max(len(answer) for answer in self.answers)

    @property
    def steps(self) -> int:
        """Tokens of the longest answer, with the stop token that one needs which is the beginning of another."""
        begins = [len(a) + 1 for a in self.answers if any(len(b) > len(a) and b[: len(a)] == a for b in self.answers)]
        return max([self.longest, *begins])

    def _next(self, history: TokenHistory) -> tuple[Tensor, Tensor]:
        """(B,C): which answers begin with the new tokens of a row, and the id that comes next in them; else -1."""
        longest, device = self.longest, history.ids_BL.device
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
