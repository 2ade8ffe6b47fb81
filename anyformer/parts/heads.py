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
from anyformer.specs.embed_head import (
    ChoiceHead,
    Classifier,
    Head,
    NoHead,
    PairHead,
    Pool,
    RegressionHead,
    SequenceHead,
    TokenHead,
)
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


class LinearHead(nn.Module):
    """A linear answer, after an optional dense layer with its activation and norm."""

    def __init__(
        self, spec: ModelSpec, into: int, out: int, head: Classifier | None = None, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.dense = self.norm = self.activation = None
        if head is not None and head.dense:
            wide, leaf = head.dense_width or into, FeedForward.named(head.activation)
            self.dense = Linear(into, wide, bias=head.dense_bias)
            self.norm = Norm(spec.stacks[-1].norm.leaf, (wide,)) if head.norm else None
            self.activation = None if leaf is None else leaf()
            into = wide
        self.answer = Linear(into, out, bias=head is None or head.bias)
        self.dropout = dropout

    def forward(self, hidden: Tensor) -> Tensor:
        if self.dense is not None:
            hidden = self.dense(hidden)
            hidden = hidden if self.activation is None else self.activation.combine(hidden)
            hidden = hidden if self.norm is None else self.norm(hidden)
        if self.dropout > 0:
            hidden = F.dropout(hidden, self.dropout, self.training)
        return self.answer(hidden)


def head_module(spec: ModelSpec, table: Embedding | None) -> nn.Module | None:
    """The module for a spec's `head`."""
    match spec.head:
        case TokenHead() as head:
            return LMHead(spec, head, table)
        case Classifier() as head:
            return LinearHead(spec, spec.out_width, head.answers, head, head.dropout)
        case PairHead() as head:
            return LinearHead(spec, 4 * spec.out_width, head.labels, dropout=head.dropout)
        case RegressionHead() as head:
            return LinearHead(spec, spec.out_width, head.outputs, dropout=head.dropout)
        case NoHead():
            return None
        case _:
            raise TypeError(f"no module for head kind {spec.head.kind!r}")


def pool_hidden(
    head: Head, states_BTD: Tensor, valid_BT: Tensor | None, types_BT: Tensor | None, ends_BT: Tensor | None = None
) -> Tensor:
    """What the head reads: the states themselves, or one vector for each row."""
    match head:
        case SequenceHead(pool=pool) | ChoiceHead(pool=pool) | RegressionHead(pool=pool):
            return pooled(states_BTD, valid_BT, pool, ends_BT)
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


def answered(head: Head, answers: Tensor, valid_BT: Tensor | None) -> Tensor:
    """The answer for each row, from what the module of a head made of what it reads."""
    return pooled(answers, valid_BT, "mean") if getattr(head, "pool", "") == "late" else answers


def eos_among(spec: ModelSpec, ids_BT: Tensor | None) -> Tensor | None:
    """Where a row has an eos; None if the head does not ask."""
    if getattr(spec.head, "pool", "") != "eos":
        return None
    if ids_BT is None:
        raise InputError("input_ids is missing: the head reads the state at the last eos of a row (head.pool is 'eos')")
    found_BT = torch.zeros_like(ids_BT, dtype=torch.bool)
    for one in spec.ids.eos:
        found_BT = found_BT | (ids_BT == one)
    return found_BT


def pooled(states_BTD: Tensor, valid_BT: Tensor | None, pool: Pool, ends_BT: Tensor | None = None) -> Tensor:
    """One vector for each row, from its real tokens. Of a row without an eos ("eos") it is that of the last one."""
    if pool == "late":
        return states_BTD
    if pool == "mean":
        return states_BTD.mean(1) if valid_BT is None else mean_over(states_BTD, valid_BT)
    if valid_BT is None and ends_BT is None:
        return states_BTD[:, 0 if pool == "first" else -1]
    real = states_BTD.new_ones(states_BTD.shape[:2], dtype=torch.long) if valid_BT is None else valid_BT.long()
    if pool != "first":
        order = torch.arange(1, real.shape[1] + 1, device=real.device)
        # Every eos comes after all that is none.
        real = real * (order if ends_BT is None else order + ends_BT * real.shape[1])
    return states_BTD[torch.arange(states_BTD.shape[0], device=real.device), real.argmax(-1)]


def mean_over(states_BTD: Tensor, chosen_BT: Tensor) -> Tensor:
    """Mean of the chosen tokens; 0 if a row has none."""
    share = chosen_BT.to(states_BTD.dtype)[..., None]
    return (states_BTD * share).sum(1) / share.sum(1).clamp(min=1)
