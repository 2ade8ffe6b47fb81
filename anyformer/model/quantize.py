"""Quantising a model: the large products of its blocks and of its head in whole numbers, all else as it was."""

from collections.abc import Iterator, Mapping
from typing import Any

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


@torch.no_grad()
def quantize(model: Model, kind: str, known: Mapping[str, Numbers] | None = None) -> Model:
    """The model with weights of "int8" or "int4", ready to read; `model` itself is used up.

    Embeddings, norms, biases, and projections that few tokens use stay as they are. What it costs in quality is
    measured by `anyformer.evals.quality`. `known` are numbers of this kind, by names of weights, that need not be found.
    """
    known = known or {}
    check_kind(kind, next(model.parameters()).device)
    if is_quantized(model):
        raise CapabilityError("quantize: this model is quantised already; load it again")
    if any(isinstance(module, MoE) for module in model.modules()):
        raise CapabilityError(
            "quantize: the experts of a mixture (ffn.kind 'moe') have no product in whole numbers, and they are most of "
            "the model; read it in a smaller dtype, such as bfloat16"
        )
    numbers: dict[str, Numbers] = {}
    for body, names in products(model):
        found = [known.get(weight) for weight in names.values()]
        alike = None not in found and len({(part.group, part.scale.dtype) for part in found if part is not None}) == 1
        for name, weight in names.items():
            own = body.get_submodule(name).get_parameter("weight")
            # Maps that are one product have scales of one kind.
            numbers[weight] = known[weight].to(own.device) if alike else numbers_of(own, kind)
    head = model.head
    if isinstance(head, LMHead):
        own = head.product()[0]
        numbers[HEAD] = known[HEAD].to(own.device) if HEAD in known else numbers_of(own, kind)
    return install(model, numbers)


def products(model: Model) -> Iterator[tuple[nn.Module, dict[str, str]]]:
    """The large products of all blocks: a body, and under the names that it has for them, those that the weights of some
    maps have in the model. Maps that read the same input are one product, where a block runs them so.
    """
    for path, branch in model.named_modules():
        body = branch.body if isinstance(branch, Branch) else None
        if not isinstance(body, FusedInputs):
            continue
        maps = {name for name, m in body.named_children() if isinstance(m, Linear)}
        inputs, back = ([name for name in names if name in maps] for names in (body.reads, [body.back]))
        reversible = model.get_submodule(path.split(".")[0]).reversible
        # Global tokens have projections of their own, which are few; and then a block calls each of the others.
        groups = [inputs] if body.apart is None and not reversible else [[name] for name in inputs]
        for group in (*groups, back):
            if group:
                yield body, {name: f"{path}.body.{name}.weight" for name in group}


@torch.no_grad()
def install(model: Model, numbers: Mapping[str, Numbers]) -> Model:
    """The model with these numbers, by names of weights, instead of its own weights, which may be missing."""
    for body, names in list(products(model)):
        chosen = [name for name in names if names[name] in numbers]
        # A few of several stay apart, and the block then calls each.
        for group in [chosen] if len(chosen) == len(names) else [[name] for name in chosen]:
            parts = [numbers[names[name]] for name in group]
            biases: list[Any] = [body.get_submodule(name).bias for name in group]
            one, at = stacked(parts, biases), 0
            for name, part in zip(group, parts, strict=True):
                end = at + part.data_OI.shape[0]
                body._modules[name] = one if len(group) == 1 else Slice(one, at, end)
                at = end
    head = model.head
    if isinstance(head, LMHead) and HEAD in numbers:
        head.quantised = QuantizedLinear(numbers[HEAD], head.bias if head.spec.adds_bias else None)
        if head.table is None:
            # The table of a tied head is still looked up; one of its own is of no more use.
            head.register_parameter("weight", None)
    model.requires_grad_(False).eval()
    return model
