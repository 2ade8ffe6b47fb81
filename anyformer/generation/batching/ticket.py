"""A ticket: one request from its submission to its last event, with an answer for each sample that it asks for."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from anyformer.generation.asking.plan import Plan
from anyformer.generation.asking.stop import StopText
from anyformer.parts.pool import Tenant

Reason = Literal["length", "stop", "cancelled", "failed"]
Top = tuple[tuple[int, float], ...]
"""The likeliest tokens of a step and their log-probabilities, the likeliest first."""


@dataclass(frozen=True, slots=True)
class Event:
    """What a step did for one answer."""

    ticket: Hashable
    """The id of its ticket."""
    answer: int = 0
    """Its number among the answers of the ticket."""
    ids: tuple[int, ...] = ()
    """New tokens."""
    logprobs: tuple[float, ...] | None = None
    """Of the new tokens, in the model's own distribution before any sampler; None: they were not asked for."""
    top: tuple[Top, ...] | None = None
    """The likeliest tokens at each new token."""
    prompt_logprobs: tuple[tuple[float, Top] | None, ...] | None = None
    """With the first new token: of each token of the prompt; None for the first one, before which nothing stands."""
    reason: Reason | None = None
    """Why the answer ended; None: it goes on. Each answer has one event with a reason, its last."""
    error: Exception | None = None
    """What failed."""


@dataclass(eq=False, slots=True)
class Answer:
    """One row: the tokens so far, and who holds what the model keeps of them."""

    ticket: Ticket
    number: int
    key: int
    """Of its draws."""
    tokens: list[int]
    """The prompt (of an encoder-decoder: what its decoder begins with) and the new tokens."""
    begun: int
    """How many of them are given."""
    stream: StopText | None = None
    """Where its text is searched for stop strings."""
    tenant: Tenant | None = None
    twins: list[Answer] = field(default_factory=list)
    """Further answers of the same ticket, which begin where this one has read the prompt."""
    alone: bool = False
    """A pass with others failed, so it shares none any more."""
    reason: Reason | None = None
    error: Exception | None = None
    logprobs: list[float] = field(default_factory=list)
    top: list[Top] = field(default_factory=list)

    @property
    def age(self) -> tuple[int, int]:
        """The smaller, the earlier it came."""
        return self.ticket.arrival, self.number

    @property
    def new(self) -> list[int]:
        """The new tokens."""
        return self.tokens[self.begun :]

    @property
    def count(self) -> int:
        """How many tokens are new."""
        return len(self.tokens) - self.begun

    @property
    def held(self) -> Tenant:
        """Its tenant, of an answer that runs."""
        if self.tenant is None:
            raise RuntimeError("an answer that waits was asked for what it holds")
        return self.tenant

    @property
    def pending(self) -> int:
        """Tokens that the model has to read before the next one is chosen."""
        return len(self.tokens) - (0 if self.tenant is None else self.tenant.count)

    @property
    def goes_on(self) -> bool:
        """Whether nothing but its last token is to be read, and without anything beside it."""
        tenant = self.tenant
        if tenant is None or not tenant.count or len(self.tokens) - tenant.count != 1:
            return False
        return self.ticket.marks_1T is None or tenant.count >= self.begun


@dataclass(eq=False, slots=True)
class Ticket:
    """A request: what was asked, and what has been answered so far."""

    id: Hashable
    arrival: int
    plan: Plan
    prompt: tuple[int, ...]
    """Of an encoder-decoder: the source."""
    most: int
    """New tokens at most."""
    declared: int | None
    """The length that length-dependent positions read."""
    source_declared: int | None = None
    """The same for the source of an encoder-decoder; None: its own length."""
    source_1S: Tensor | None = None
    marks_1T: Tensor | None = None
    """Which tokens of the prompt (or source) are global."""
    answers: list[Answer] = field(default_factory=list)
    prompt_logprobs: list[tuple[float, Top] | None] | None = None
    """Filled while the prompt is read; None: not asked for."""

    @property
    def done(self) -> bool:
        """Whether all of its answers ended."""
        return all(answer.reason is not None for answer in self.answers)

    @property
    def reads_aside(self) -> bool:
        """Whether its prompt can't be read beside others."""
        return self.source_1S is not None or self.marks_1T is not None or self.prompt_logprobs is not None
