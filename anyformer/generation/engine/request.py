"""A request from its arrival to its last output, and its sequences: one for each answer, or for each beam of a search."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from torch import Tensor

from anyformer.generation.guided.guide import Guide
from anyformer.generation.params.stop import StopText
from anyformer.generation.params.validate import ResolvedParams
from anyformer.parts.kv_pool import CachedSequence

if TYPE_CHECKING:
    from anyformer.generation.engine.search import Search

FinishReason = Literal["length", "stop", "abort", "failed"]
TopLogprobs = tuple[tuple[int, float], ...]
"""The likeliest tokens of a step and their log-probabilities, the likeliest first."""


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """What a step did for one sequence."""

    request: Hashable
    """The id of its request."""
    index: int = 0
    """Its number among the sequences of the request."""
    ids: tuple[int, ...] = ()
    """New tokens."""
    logprobs: tuple[float, ...] | None = None
    """Of the new tokens, in the model's own distribution before any sampler; None: they were not asked for."""
    top: tuple[TopLogprobs, ...] | None = None
    """The likeliest tokens at each new token."""
    prompt_logprobs: tuple[tuple[float, TopLogprobs] | None, ...] | None = None
    """With the first new token: of each token of the prompt; None for the first one, before which nothing stands."""
    finish_reason: FinishReason | None = None
    """Why the sequence ended; None: it goes on. Each sequence has one output with a reason, its last."""
    error: Exception | None = None
    """What failed."""


@dataclass(eq=False, slots=True)
class Sequence:
    """One row: the tokens so far, and what the pool holds of them."""

    request: Request
    index: int
    key: int
    """Of its draws."""
    tokens: list[int]
    """The prompt (of an encoder-decoder: what its decoder begins with) and the new tokens."""
    prompt_length: int
    stop_text: StopText | None = None
    """Where its text is searched for stop strings."""
    guide: Guide | None = None
    """Where it is in the grammar of the answer."""
    allocation: CachedSequence | None = None
    """What the pool holds of it; None: it waits."""
    forks: list[Sequence] = field(default_factory=list)
    """Further answers of the same request, which are forked off after this one's prefill."""
    isolated: bool = False
    """A pass with others failed, so it shares none any more."""
    finish_reason: FinishReason | None = None
    error: Exception | None = None
    logprobs: list[float] = field(default_factory=list)
    top: list[TopLogprobs] = field(default_factory=list)

    @property
    def age(self) -> tuple[int, int]:
        """The smaller, the earlier it came."""
        return self.request.arrival, self.index

    @property
    def new(self) -> list[int]:
        """The new tokens."""
        return self.tokens[self.prompt_length :]

    @property
    def num_new_tokens(self) -> int:
        """How many tokens were sampled so far."""
        return len(self.tokens) - self.prompt_length

    @property
    def sampling(self) -> tuple[float, ...]:
        """The arguments of `samplers.batched.sample` for its next token."""
        params = self.request.params
        return params.temperature, params.top_k, params.top_p, params.min_p, self.key, self.num_new_tokens

    @property
    def kv(self) -> CachedSequence:
        """What the pool holds, of a sequence that runs."""
        if self.allocation is None:
            raise RuntimeError("a sequence that waits was asked for its keys and values")
        return self.allocation

    @property
    def group(self) -> list[Sequence]:
        """Sequences that are admitted and preempted as one: the beams of a search, or this one alone."""
        return [self] if self.request.search is None else self.request.sequences


@dataclass(eq=False, slots=True)
class Request:
    """What was asked, and what has been answered so far."""

    id: Hashable
    arrival: int
    params: ResolvedParams
    prompt: tuple[int, ...]
    """Of an encoder-decoder: the source."""
    max_new_tokens: int
    rope_length: int | None
    """The length that length-dependent positions read."""
    source_rope_length: int | None = None
    """The same for the source of an encoder-decoder; None: its own length."""
    source_S: Tensor | None = None
    global_T: Tensor | None = None
    """Which tokens of the prompt (or source) are global."""
    logprobs: int | None = None
    """So many of the likeliest tokens are reported with each new one's log-probability; None: none is."""
    search: Search | None = None
    """Chooses for all sequences together; None: each is sampled by itself."""
    sequences: list[Sequence] = field(default_factory=list)
    prompt_logprobs: list[tuple[float, TopLogprobs] | None] | None = None
    """Filled by prefill; None: not asked for."""
    cache_salt: str | None = None
    """Its prompt shares cached blocks only with requests that have the same salt."""
    scheduled: float | None = None
    """When it was first admitted, by time.monotonic(); None: it waits."""
    num_cached_tokens: int = 0
    """Tokens of its prompt that cached blocks held when it was first admitted."""

    @property
    def done(self) -> bool:
        """Whether all of its sequences ended."""
        return all(sequence.finish_reason is not None for sequence in self.sequences)

    @property
    def prefills_alone(self) -> bool:
        """Whether its prompt can't share a prefill, or the blocks of another prompt."""
        alone = self.prompt_logprobs is not None or self.source_S is not None or self.global_T is not None
        return alone or (self.search is not None and self.search.reads_hidden)

    @property
    def sampled_on_device(self) -> bool:
        """Whether the next token needs nothing of the host: neither text nor log-probabilities, and no processor."""
        params = self.params
        return params.batchable and not params.stop_texts and self.logprobs is None and self.search is None
