"""Which kernel serves a request: a pure function of the request, with the refusals of those before it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from anyformer.errors import CapabilityError
from anyformer.specs.axes import Mixer

Phase = Literal["train", "prefill", "decode"]
MaskClass = Literal["none", "causal", "dense"]


@dataclass(frozen=True)
class Request:
    """All that the choice of an attention kernel depends on. No tensor and no length is among it."""

    device: str
    dtype: torch.dtype
    phase: Phase
    mask: MaskClass
    mixer: Mixer
    bias: bool = False
    softcap: bool = False
    reads_probs: bool = False
    dropout: bool = False


class Values(Protocol):
    """What a position scheme adds to each head's output, given the weights."""

    def __call__(self, probs_BHTS: Tensor) -> Tensor:
        """(B,T,H,K) from (B,H,T,S)."""
        ...


Own = Mapping[str, Tensor]


class Terms(NamedTuple):
    """What turns queries and keys into weights, beside the tensors themselves."""

    scale: float
    mixer: Mixer
    own: Own
    """The mixer's parameters."""
    causal: bool = False
    """Query t sees keys 0 to t of as many keys."""
    mask: Tensor | None = None
    """True where a key may be seen, broadcastable to (B,H,T,S)."""
    bias: Tensor | None = None
    """Added to the scaled scores, broadcastable to (B,H,T,S)."""
    softcap: float | None = None
    dropout: float = 0.0
    values: Values | None = None
    """What a position scheme adds to each head's output."""


class Kernel(NamedTuple):
    """One way to compute attention: (B,T,H,K) from q (B,T,H,K), k and v (B,S,G,K), and terms."""

    name: str
    why_not: Callable[[Request], str | None]
    run: Callable[[Tensor, Tensor, Tensor, Terms], Tensor]


class Choice(NamedTuple):
    """The kernel that serves, and why those before it in order do not."""

    kernel: Kernel
    refusals: tuple[tuple[str, str], ...]


def choose(request: Request, kernels: Sequence[Kernel]) -> Choice:
    """The first kernel that does not refuse."""
    refusals: list[tuple[str, str]] = []
    for kernel in kernels:
        reason = kernel.why_not(request)
        if reason is None:
            return Choice(kernel, tuple(refusals))
        refusals.append((kernel.name, reason))
    raise CapabilityError("no kernel serves this request: " + "; ".join(f"{n}: {why}" for n, why in refusals))
