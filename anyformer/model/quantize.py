"""Quantising a model: the large products of its blocks and of its head in whole numbers, all else as it was."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from anyformer.errors import CapabilityError
from anyformer.model.block import Branch
from anyformer.model.model import Model
from anyformer.parts.fused_linear import FusedInputs
from anyformer.parts.heads import LMHead
from anyformer.parts.linear import Linear
from anyformer.parts.moe import MoE
from anyformer.parts.quantized import Numbers, QuantizedLinear, Slice, check_kind, is_quantized, numbers_of, stacked

HEAD = "head.weight"
"""The name that the numbers of the product with the vocabulary go by; of a tied head too, whose table stays beside."""


class Maps(NamedTuple):
    """Maps of a body that read the same input, and run as one product if all of them are quantised."""

    body: nn.Module
    names: list[str]
    """Under which the body knows them."""
    weights: list[str]
    """Names of their weights in the model."""


@torch.no_grad()
def quantize(model: Model, kind: str) -> Model:
    """The model with weights of "int8" or "int4", ready to read; `model` itself is used up.

    Embeddings, norms, biases, and projections that few tokens use stay as they are. What it costs in quality is
    measured by `anyformer.evals.quality`.
    """
    check_kind(kind, next(model.parameters()).device)
    if is_quantized(model):
        raise CapabilityError("quantize: this model is quantised already; load it again")
    if any(isinstance(module, MoE) for module in model.modules()):
        raise CapabilityError(
            "quantize: the experts of a mixture (ffn.kind 'moe') have no product in whole numbers, and they are most of "
            "the model; read it in a smaller dtype, such as bfloat16"
        )
    numbers: dict[str, Numbers] = {}
    for maps in products(model):
        for name, weight in zip(maps.names, maps.weights, strict=True):
            numbers[weight] = numbers_of(maps.body.get_submodule(name).get_parameter("weight"), kind)
    head = model.head
    if isinstance(head, LMHead):
        numbers[HEAD] = numbers_of(head.product()[0], kind)
    return install(model, numbers)


def products(model: Model) -> Iterator[Maps]:
    """The large products of all blocks. Maps that read the same input are one, where a block runs them so."""
    for path, branch in model.named_modules():
        body = branch.body if isinstance(branch, Branch) else None
        if not isinstance(body, FusedInputs):
            continue
        names = {id(m): name for name, m in body.named_children()}
        inputs, back = ([names[id(m)] for m in ms if isinstance(m, Linear)] for ms in (body.inputs(), [body.output()]))
        reversible = model.get_submodule(path.split(".")[0]).reversible
        # Global tokens have projections of their own, which are few; and then a block calls each of the others.
        groups = [inputs] if body.apart is None and not reversible else [[name] for name in inputs]
        for group in (*groups, back):
            if group:
                yield Maps(body, group, [f"{path}.body.{name}.weight" for name in group])


@torch.no_grad()
def install(model: Model, numbers: Mapping[str, Numbers]) -> Model:
    """The model with these numbers, by names of weights, instead of its own weights, which may be missing."""
    for maps in list(products(model)):
        chosen = [pair for pair in zip(maps.names, maps.weights, strict=True) if pair[1] in numbers]
        # A few of several stay apart, and the block then calls each.
        for group in [chosen] if len(chosen) == len(maps.names) else [[pair] for pair in chosen]:
            _exchange(maps.body, [name for name, _ in group], [numbers[weight] for _, weight in group])
    head = model.head
    if isinstance(head, LMHead) and HEAD in numbers:
        head.quantised = QuantizedLinear(numbers[HEAD], head.bias if head.spec.adds_bias else None)
        if head.table is None:
            # The table of a tied head is still looked up; one of its own is of no more use.
            head.register_parameter("weight", None)
    model.requires_grad_(False).eval()
    return model


def _exchange(body: nn.Module, names: list[str], parts: list[Numbers]) -> None:
    """Quantised maps in the place of those that read the same input."""
    maps: list[Any] = [body.get_submodule(name) for name in names]
    one = stacked(parts, [m.bias for m in maps])
    at = 0
    for name, part in zip(names, parts, strict=True):
        end = at + part.data_OI.shape[0]
        body._modules[name] = one if len(names) == 1 else Slice(one, at, end)
        at = end
