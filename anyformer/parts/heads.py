"""The heads: what a model answers, from the states that the stack ends with.

`pool_hidden` turns states into what the head reads (`out.hidden`); the head itself needs nothing else, so that
`model.head(out.hidden)` is `out.logits`.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anyformer.errors import InputError
from anyformer.kernels import small_gemm as few
from anyformer.kernels.linear_cross_entropy import linear_cross_entropy
from anyformer.kernels.loss import LossTerms
from anyformer.parts.embedding import Embedding
from anyformer.parts.linear import Linear
from anyformer.parts.norm import Norm
from anyformer.specs.axes import FeedForward
from anyformer.specs.embed_head import Head, LabelHead, NoHead, PairHead, Pool, RegressionHead, SequenceHead, TokenHead
from anyformer.specs.formulas import evaluate
from anyformer.specs.model import ModelSpec


class LossRequest(NamedTuple):
    """A loss that a head is asked for instead of its logits."""

    labels: Tensor
    """-100 where no prediction counts."""
    smoothing: float
    z: float
    few: bool
    """Whether most of them may not count, so that it pays to find out which do."""


class LMHead(nn.Module):
    """A logit for each token of the vocabulary."""

    weight: Tensor
    """Not there if the head is tied: the table's is read instead."""
    bias: Tensor | None
    table: Embedding | None

    def __init__(self, spec: ModelSpec, head: TokenHead, table: Embedding | None) -> None:
        super().__init__()
        width = spec.embed_width if head.tied else spec.out_width
        self.spec = head
        self.dense = Linear(spec.out_width, width, bias=head.transform_bias) if head.transform else None
        self.norm = Norm(spec.stacks[-1].norm.leaf, (width,)) if head.transform else None
        self.project = Linear(spec.out_width, width) if not head.transform and width != spec.out_width else None
        leaf = FeedForward.named(head.activation)
        self.activation = leaf() if head.transform and leaf is not None else None
        self.register_parameter("weight", None if head.tied else nn.Parameter(torch.empty(spec.vocab, width)))
        self.register_parameter("bias", nn.Parameter(torch.empty(spec.vocab)) if head.bias else None)
        self.scale = evaluate(head.scale, {"width": spec.width, "depth": spec.depth})
        self.quantised: nn.Module | None = None
        """The product with the vocabulary in whole numbers, bias included, if the model was quantised."""
        # A reference past nn.Module: the table belongs to the embedding and appears once in the state dict.
        object.__setattr__(self, "table", table if head.tied else None)
        self.shape = (width, spec.vocab)

    def forward(self, hidden: Tensor, asked: LossRequest | None = None) -> Any:
        """Logits (...,V); or, if a loss is asked for, its terms, and the logits are never held."""
        if self.dense is not None and self.norm is not None and self.activation is not None:
            hidden = self.norm(self.activation.combine(self.dense(hidden)))
        if self.project is not None:
            hidden = self.project(hidden)
        if asked is not None:
            return self.loss(hidden, asked)
        if self.quantised is not None:
            logits = self.quantised(hidden)
        else:
            logits = few.norm_linear(hidden, None, *self.product())
        if self.scale != 1.0:
            logits = logits * self.scale
        if self.spec.softcap is not None:
            exact = torch.promote_types(logits.dtype, torch.float32)
            logits = (self.spec.softcap * torch.tanh(logits.to(exact) / self.spec.softcap)).to(logits.dtype)
        return logits

    def product(self) -> tuple[Tensor, Tensor | None]:
        """Weight (V,D) and bias of the product with the vocabulary."""
        bias = self.bias if self.spec.adds_bias else None
        return self.weight if self.table is None else self.table.weight, bias

    def loss(self, read: Tensor, asked: LossRequest) -> LossTerms:
        """The loss of the logits that `read` leads to, chunk by chunk."""
        if self.quantised is not None:
            raise InputError("a quantised head has no weights to learn: read its loss from the logits (return_logits)")
        return linear_cross_entropy(
            read, *self.product(), asked.labels, scale=self.scale, softcap=self.spec.softcap,
            smoothing=asked.smoothing, z=asked.z, drop=asked.few,
        )  # fmt: skip

    def extra_repr(self) -> str:
        more = (", tied" if self.spec.tied else "") + (", bias" if self.spec.bias else "")
        return f"{self.shape[0]} -> {self.shape[1]}{more}"


class ClassifierHead(nn.Module):
    """A linear answer, after an optional dense layer with tanh."""

    def __init__(self, into: int, out: int, *, dense: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.dense = Linear(into, into, bias=True) if dense else None
        self.answer = Linear(into, out, bias=True)
        self.dropout = dropout

    def forward(self, hidden: Tensor) -> Tensor:
        if self.dense is not None:
            hidden = self.dense(hidden).tanh()
        if self.dropout > 0:
            hidden = F.dropout(hidden, self.dropout, self.training)
        return self.answer(hidden)


def head_module(spec: ModelSpec, table: Embedding | None) -> nn.Module | None:
    """The module for a spec's `head`."""
    match spec.head:
        case TokenHead() as head:
            return LMHead(spec, head, table)
        case SequenceHead() as head:
            return ClassifierHead(spec.out_width, head.labels, dense=head.dense, dropout=head.dropout)
        case PairHead() | LabelHead() as head:
            into = (4 if isinstance(head, PairHead) else 1) * spec.out_width
            return ClassifierHead(into, head.labels, dropout=head.dropout)
        case RegressionHead() as head:
            return ClassifierHead(spec.out_width, head.outputs, dropout=head.dropout)
        case NoHead():
            return None
        case _:
            raise TypeError(f"no module for head kind {spec.head.kind!r}")


def pool_hidden(head: Head, states_BTD: Tensor, valid_BT: Tensor | None, types_BT: Tensor | None) -> Tensor:
    """What the head reads: the states themselves, or one vector for each row."""
    match head:
        case SequenceHead(pool=pool) | RegressionHead(pool=pool):
            return pooled(states_BTD, valid_BT, pool)
        case PairHead():
            if types_BT is None:
                raise InputError(
                    "token_types is missing: a pair head reads text A where it is 0 and text B where it is 1"
                )
            real = torch.ones_like(types_BT, dtype=torch.bool) if valid_BT is None else valid_BT
            u, v = (mean_over(states_BTD, real & (types_BT == text)) for text in (0, 1))
            return torch.cat((u, v, (u - v).abs(), u * v), -1)
        case _:
            return states_BTD


def pooled(states_BTD: Tensor, valid_BT: Tensor | None, pool: Pool) -> Tensor:
    """One vector for each row, from its real tokens."""
    if pool == "mean":
        return states_BTD.mean(1) if valid_BT is None else mean_over(states_BTD, valid_BT)
    if valid_BT is None:
        return states_BTD[:, 0 if pool == "first" else -1]
    real = valid_BT.long()
    if pool == "last":
        real = real * torch.arange(1, real.shape[1] + 1, device=real.device)
    return states_BTD[torch.arange(states_BTD.shape[0], device=real.device), real.argmax(-1)]


def mean_over(states_BTD: Tensor, chosen_BT: Tensor) -> Tensor:
    """Mean of the chosen tokens; 0 if a row has none."""
    share = chosen_BT.to(states_BTD.dtype)[..., None]
    return (states_BTD * share).sum(1) / share.sum(1).clamp(min=1)
