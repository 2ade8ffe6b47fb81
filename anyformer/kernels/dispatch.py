"""Which kernel serves a request: a pure function of the request, with the refusals of those before it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from anyformer.errors import CapabilityError
from anyformer.kernels.attention_mask import AttentionMask, Shape
from anyformer.kernels.block_table import BlockTable
from anyformer.specs.axes import Mixer, ScoreBias, ValueTerms
from anyformer.specs.patterns import Pattern

Phase = Literal["train", "prefill", "decode"]


@dataclass(frozen=True)
class KernelRequest:
    """All that the choice of an attention kernel depends on. No tensor and no length is among it."""

    device: str
    dtype: torch.dtype
    phase: Phase
    shape: Shape
    pattern: Pattern
    mixer: Mixer
    plain: bool = True
    """Rows are alike: nothing is padded, packed or given other positions."""
    bias: bool = False
    """The position scheme adds to scores."""
    reads_content: bool = False
    """What it adds depends on queries or keys, not on their distance alone."""
    products: bool = False
    """What it adds holds a product of further vectors, or a table for each key."""
    softcap: bool = False
    reads_probs: bool = False
    """The position scheme adds to values."""
    dropout: bool = False
    compiling: bool = False
    """Code is traced: a kernel may not look at values on the host."""
    recorded: bool = False
    """Work is recorded as a CUDA graph: a kernel may not look at values on the host, and copy nothing from there."""
    learned_bias: bool = False
    """What the position scheme adds to scores has a gradient."""
    deterministic: bool = False
    """Gradients must have the same bits each time (torch.use_deterministic_algorithms)."""
    cached: bool = False
    """A prompt or its continuation is read, of a length that may never come again."""
    paged: bool = False
    """Keys lie in pages of a pool, and few queries meet them."""
    masked: bool = False
    """A mask of the caller's own stands for the pattern."""


class AttentionArgs(NamedTuple):
    """What turns queries and keys into weights, beside the tensors themselves."""

    scale: float
    mixer: Mixer
    own: Mapping[str, Tensor]
    """The mixer's parameters."""
    mask: AttentionMask
    """Who may see whom."""
    scores: ScoreBias | None = None
    """What a position scheme adds to the scaled scores."""
    values: ValueTerms | None = None
    """What it adds to the values."""
    softcap: float | None = None
    dropout: float = 0.0
    cached: bool = False
    """As in a request: the shapes of this pass may never come again."""
    pages: BlockTable | None = None
    """Where keys and values lie, if those that are given are a pool; only for a kernel that reads pages."""


class Kernel(NamedTuple):
    """One way to compute attention: (B,T,H,K) from q (B,T,H,K), k and v (B,S,G,K), and terms."""

    name: str
    why_not: Callable[[KernelRequest], str | None]
    run: Callable[[Tensor, Tensor, Tensor, AttentionArgs], Tensor]
    prepare: Callable[[AttentionMask, int | None], None] | None = None
    """Makes what all layers of a pass share, from their mask and the reach of the score table (see `Position.reach`)."""
    reads_pages: bool = False
    """Keys and values are a pool, and `terms.pages` says where those of each row lie."""
    reads_masks: bool = False
    """It serves any mask that a caller gives, and not only patterns (see `AttentionMask.given`)."""


class Dispatch(NamedTuple):
    """The kernel that serves, and why those before it in order do not."""

    kernel: Kernel
    refusals: tuple[tuple[str, str], ...]


def must_repeat() -> bool:
    """Whether torch was told that gradients must have the same bits each time, and there may be gradients here."""
    return torch.are_deterministic_algorithms_enabled() and torch.is_grad_enabled()


def why_no_fused_softmax(request: KernelRequest) -> str | None:
    """What a fused kernel refuses that keeps softmax weights, in fp32, to itself."""
    if request.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        return f"it computes in float32 at most, not {str(request.dtype).removeprefix('torch.')}"
    if request.mixer.kind != "softmax":
        return f"it computes softmax weights, not {request.mixer.kind}"
    if request.dropout:
        return "it has no dropout on the weights"
    if request.reads_probs:
        return "it does not expose the weights, which this position scheme adds to the values"
    return None


def choose(request: KernelRequest, kernels: Sequence[Kernel]) -> Dispatch:
    """The first kernel that does not refuse."""
    refusals: list[tuple[str, str]] = []
    for kernel in kernels:
        reason = kernel.why_not(request)
        if reason is None:
            return Dispatch(kernel, tuple(refusals))
        refusals.append((kernel.name, reason))
    raise CapabilityError("no kernel serves this request: " + "; ".join(f"{n}: {why}" for n, why in refusals))
