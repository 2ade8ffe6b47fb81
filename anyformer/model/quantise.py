"""Quantising a model: the large products of its blocks and of its head in whole numbers, all else as it was."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from anyformer.errors import CapabilityError
from anyformer.model.block import Block
from anyformer.model.lean import lean
from anyformer.model.models import Model
from anyformer.model.stack import Stack
from anyformer.parts.attention import Attention
from anyformer.parts.ffn import FeedForwardNet
from anyformer.parts.heads import TokenLogits
from anyformer.parts.linear import Linear
from anyformer.parts.mixture import Mixture
from anyformer.parts.quantised import QuantisedLinear, Slice, check_kind, is_quantised, merge


@torch.no_grad()
def quantise(model: Model, kind: str) -> Model:
    """The model with weights of "int8" or "int4" (CUDA only), ready to read; `model` itself is used up.

    Embeddings, norms, biases, and projections that few tokens use stay as they are. What it costs in quality is
    measured by `anyformer.measure.quality`.
    """
    like = next(model.parameters())
    check_kind(kind, like.device, like.dtype)
    if is_quantised(model):
        raise CapabilityError("quantize: this model is quantised already; load it again")
    if any(isinstance(module, Mixture) for module in model.modules()):
        raise CapabilityError(
            "quantize: the experts of a mixture (ffn.kind 'moe') have no product in whole numbers, and they are most of "
            "the model; read it in a smaller dtype, such as bfloat16"
        )
    for stack in model._modules.values():
        if isinstance(stack, Stack):
            for block in stack.blocks:
                if isinstance(block, Block):
                    _quantise_block(block, kind, whole=not stack.reversible)
    head = model.head
    if isinstance(head, TokenLogits):
        bias = head.bias if head.spec.adds_bias else None
        head.quantised = QuantisedLinear(head.weight if head.table is None else head.table.weight, bias, kind)
        if head.table is None:
            # The table of a tied head is still looked up; one of its own is of no more use.
            head.register_parameter("weight", None)
    model.requires_grad_(False).eval()
    return lean(model)


def _quantise_block(block: Block, kind: str, *, whole: bool) -> None:
    """`whole`: maps that read the same input become one, as the lean block runs them."""
    for branch in (block.attention, block.cross, block.ffn):
        if branch is None:
            continue
        body, own = branch.body, branch.body._modules
        if isinstance(body, Attention):
            # Global tokens have projections of their own, which are few; and then a block calls each of the others.
            together, back = whole and not body.cross and not body.spec.global_projections, "o"
        elif isinstance(body, FeedForwardNet):
            together, back = whole, "down"
        else:
            continue
        names = {id(m): name for name, m in own.items()}
        inputs = [m for m in body.inputs() if isinstance(m, Linear)]
        groups = [inputs] if together else [[m] for m in inputs]
        last = own[back]
        for maps in [*groups, [last] if isinstance(last, Linear) else []]:
            for m, found in zip(maps, _quantised(maps, kind), strict=True):
                own[names[id(m)]] = found


def _quantised(maps: list[Linear], kind: str) -> list[nn.Module]:
    """What takes the place of maps that read the same input."""
    if not maps:
        return []
    one = merge([(m.weight, m.bias) for m in maps], kind)
    if len(maps) == 1:
        return [one]
    found: list[Any] = []
    at = 0
    for m in maps:
        found.append(Slice(one, at, at + m.weight.shape[0]))
        at += m.weight.shape[0]
    return found
