"""Compilation and activation checkpointing, put around the blocks of a model from outside.

Compiled, one block's code serves all layers that are alike, or the whole pass is one graph. Recomputed, a block gives the
gradients of the plain pass to the bit, dropout included: it starts again from the same generators.
"""

import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch._higher_order_ops.flex_attention import flex_attention
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from anyformer.errors import InputError
from anyformer.model.block import Block
from anyformer.model.model import Model
from anyformer.model.stack import Stack

aten = torch.ops.aten
DEAR: list[Any] = [
    aten.mm.default, aten.addmm.default, aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_flash_attention_for_cpu.default, aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_cudnn_attention.default, flex_attention,
]  # fmt: skip
"""Kept results: products with weights, and attention; not batched products, which attention may overwrite."""
GRAPHS = 64
"""Shapes of input that each kind of layer may be compiled for, before torch gives up."""


def recompute(model: Model, kind: Literal["none", "block", "selective"], *, every: int = 1) -> None:
    """Let every so many-th block of each stack be recomputed; "none" undoes it. Before blocks are compiled.

    block: a block keeps its input; selective: also what its products and its attention gave, which is dear to make.
    """
    wrappers = {"none": None, "block": whole, "selective": selective}
    if kind not in wrappers:
        raise InputError(f"recompute: {kind!r} is unknown (known: {', '.join(wrappers)})")
    if every < 1:
        raise InputError(f"recompute: every {every} is not at least 1")
    if kind != "none" and any(stack.reversible for stack in model.spec.stacks):
        raise InputError("recompute: a reversible stack recomputes every block already; leave recompute out")
    for stack in (part for part in model.modules() if isinstance(part, Stack)):
        for i, block in enumerate(_blocks(stack)):
            block.wrapper = wrappers[kind] if i % every == 0 else None


def whole(block: Block, x_BTD: torch.Tensor, *args: Any) -> Any:
    """The block, of which only the input is kept."""
    return checkpoint(lambda x: block.compute(x, *args), x_BTD, use_reentrant=False)


def selective(block: Block, x_BTD: torch.Tensor, *args: Any) -> Any:
    """The block, of which products and attention are kept too."""
    kept = functools.partial(create_selective_checkpoint_contexts, DEAR)
    return checkpoint(lambda x: block.compute(x, *args), x_BTD, use_reentrant=False, context_fn=kept)


@dataclass
class Graphs:
    """What was compiled so far. A number that grows from step to step says that something changes in each."""

    made: int = 0


def compiled(model: Model, kind: Literal["none", "block", "model"], *, backend: str = "inductor") -> Graphs:
    """Have a model's training pass compiled when it is next called; "none" undoes it. After `recompute`.

    block: once for each kind of layer and shape of input, however deep the model; model: the whole pass. Of the two,
    blocks are ready in seconds and measured as fast (H200, GPT-2 124M and Llama 1B: within 0.5%). A copy of the model
    (deepcopy, pickle, torch.save) is not compiled: call this for it too.
    """
    if kind not in ("none", "block", "model"):
        raise InputError(f"compile: {kind!r} is unknown (known: none, block, model)")
    graphs, blocks = Graphs(), _blocks(model)
    if kind == "none":
        for block in blocks:
            block.wrapper = getattr(block.wrapper, "plain", block.wrapper)
        model._compiled_call_impl = None
        return graphs
    lower: Any = torch._dynamo.lookup_backend(backend)

    def count(graph: Any, inputs: Any, **named: Any) -> Any:
        graphs.made += 1
        return lower(graph, inputs, **named)

    if kind == "model":
        model.compile(backend=count, dynamic=False)
        return graphs
    if any(stack.reversible for stack in model.spec.stacks):
        warnings.warn(
            "compile: a reversible stack runs its blocks in a way of its own, which is not compiled; use compile = model",
            stacklevel=2,
        )
        return graphs
    config: Any = torch._dynamo.config
    # Layers that differ take their own graphs from one count, and hitting it would end the run.
    config.recompile_limit = max(config.recompile_limit, GRAPHS * len(blocks))
    config.accumulated_recompile_limit = max(config.accumulated_recompile_limit, GRAPHS * len(blocks))
    wrappers: dict[Any, Callable[..., Any]] = {}
    for block in blocks:
        plain = getattr(block.wrapper, "plain", block.wrapper)
        if plain not in wrappers:
            wrappers[plain] = _compiled_wrapper(plain, count)
        block.wrapper = wrappers[plain]
    return graphs


def _blocks(model: torch.nn.Module) -> list[Block]:
    return [part for part in model.modules() if isinstance(part, Block)]


def _compiled_wrapper(plain: Callable[..., Any] | None, backend: Callable[..., Any]) -> Callable[..., Any]:
    """One function for all blocks: the block is an argument, and layers that are alike share its graph."""

    def wrapper(block: Block, *args: Any) -> Any:
        return block.compute(*args) if plain is None else plain(block, *args)

    made: Any = torch.compile(wrapper, backend=backend, fullgraph=True, dynamic=False)
    made.plain = plain
    return made
