"""Recomputation: what the backward pass computes once more instead of keeping it, chosen from outside of the model.

Gradients are those of the plain pass to the bit, dropout included: a block starts again from the same generators.
"""

import functools
from typing import Any, Literal, cast

import torch
from torch._higher_order_ops.flex_attention import flex_attention
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from anyformer.errors import InputError
from anyformer.model.block import Block
from anyformer.model.model import Model
from anyformer.model.stack import Stack

aten = torch.ops.aten
DEAR: frozenset[Any] = frozenset({
    aten.mm.default, aten.addmm.default, aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_flash_attention_for_cpu.default, aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_cudnn_attention.default, flex_attention,
})  # fmt: skip
"""Kept results: products with weights, and attention; not batched products, which attention may overwrite."""
Kind = Literal["none", "block", "selective"]
"""block: a block keeps its input; selective: also what its products and its attention gave, which is dear to make."""


def recompute(model: Model, kind: Kind, *, every: int = 1) -> None:
    """Let every so many-th block of each stack be recomputed; "none" undoes it. Before blocks are compiled."""
    ways = {"none": None, "block": whole, "selective": selective}
    if kind not in ways:
        raise InputError(f"recompute: {kind!r} is unknown (known: {', '.join(ways)})")
    if every < 1:
        raise InputError(f"recompute: every {every} is not at least 1")
    if kind != "none" and any(stack.reversible for stack in model.spec.stacks):
        raise InputError("recompute: a reversible stack recomputes every block already; leave recompute out")
    for stack in model.modules():
        if isinstance(stack, Stack):
            for i, block in enumerate(stack.blocks):
                cast(Block, block).way = ways[kind] if i % every == 0 else None


def whole(block: Block, x_BTD: torch.Tensor, *args: Any) -> Any:
    """The block, of which only the input is kept."""
    return checkpoint(lambda x: block.compute(x, *args), x_BTD, use_reentrant=False)


def selective(block: Block, x_BTD: torch.Tensor, *args: Any) -> Any:
    """The block, of which products and attention are kept too."""
    kept = functools.partial(create_selective_checkpoint_contexts, _policy)
    return checkpoint(lambda x: block.compute(x, *args), x_BTD, use_reentrant=False, context_fn=kept)


def _policy(_: Any, operation: Any, *args: Any, **named: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operation in DEAR else CheckpointPolicy.PREFER_RECOMPUTE
