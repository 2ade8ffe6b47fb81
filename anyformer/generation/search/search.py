"""What an engine asks of a search: with which tokens which sequences of a request go on."""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from anyformer.errors import InputError
from anyformer.generation.params.validate import ResolvedParams
from anyformer.generation.samplers.logits_processors import why_not

Moves = list[tuple[int, int]]
"""Of each next sequence: the number of the one that it goes on from, and its new token."""


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """One answer of a search."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """The model's own log-probabilities of its tokens."""
    stopped: bool
    """Whether it ended with a stop token."""
    score: float | None = None
    """By what answers were ranked."""


class Search(abc.ABC):
    """A policy over the sequences of one request, which are forked and dropped as it says."""

    reads_hidden: ClassVar[bool] = False
    """Whether it looks at the states that the head reads, those of the prompt included."""

    def __init__(self, params: ResolvedParams, max_new_tokens: int) -> None:
        self.params, self.max_new_tokens = params, max_new_tokens
        self.results: list[Hypothesis] = []
        """When it has ended: its answers, the best first."""

    @abc.abstractmethod
    def advance(self, logits_RV: Tensor, process: Callable[[Tensor], Tensor], hidden: list[Tensor]) -> Moves:
        """The next sequences: each goes on from one of those before, with a token; none: the search has ended.

        `process` applies the request's logits processors to logits (R,V). `hidden` are the states of what was computed
        of each sequence (T,D): first of the prompt, then of one token; empty unless the search reads them.
        """


def check_finite(logits_RV: Tensor, left_RV: Tensor) -> None:
    """Refuse rows that leave nothing to choose from."""
    for row in (~left_RV.amax(-1).isfinite()).nonzero().flatten().tolist():
        raise InputError(why_not(logits_RV[row], left_RV[row]) or "no token can be chosen")
