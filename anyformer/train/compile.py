"""Compilation: one block's code serves all layers that are alike, or the whole pass is one graph; from outside."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch

from anyformer.errors import InputError
from anyformer.model.block import Block
from anyformer.model.model import Model

Kind = Literal["none", "block", "model"]
"""block: compiled once for each kind of layer and shape of input, however deep the model; model: the whole pass."""

GRAPHS = 64
"""Shapes of input that each kind of layer may be compiled for, before torch gives up."""


@dataclass
class Graphs:
    """What was compiled so far. A number that grows from step to step says that something changes in each."""

    made: int = 0


def compiled(model: Model, kind: Kind, *, backend: str = "inductor") -> Graphs:
    """Have a model's training pass compiled when it is next called; "none" undoes it. After `recompute`.

    Of the two, blocks are ready in seconds and measured as fast (H200, GPT-2 124M and Llama 1B: within 0.5%). A copy of
    the model (deepcopy, pickle, torch.save) is not compiled: call this for it too.
    """
    if kind not in ("none", "block", "model"):
        raise InputError(f"compile: {kind!r} is unknown (known: none, block, model)")
    graphs = Graphs()
    if kind == "none":
        for block in _blocks(model):
            block.way = getattr(block.way, "plain", block.way)
        model._compiled_call_impl = None
        return graphs
    count = _counting(backend, graphs)
    if kind == "model":
        model.compile(backend=count, dynamic=False)
        return graphs
    if any(stack.reversible for stack in model.spec.stacks):
        warnings.warn(
            "compile: a reversible stack runs its blocks in a way of its own, which is not compiled; use compile = model",
            stacklevel=2,
        )
        return graphs
    blocks = _blocks(model)
    config: Any = torch._dynamo.config
    # Layers that differ take their own graphs from one count, and hitting it would end the run.
    config.recompile_limit = max(config.recompile_limit, GRAPHS * len(blocks))
    config.accumulated_recompile_limit = max(config.accumulated_recompile_limit, GRAPHS * len(blocks))
    ways: dict[Any, Callable[..., Any]] = {}
    for block in blocks:
        plain = getattr(block.way, "plain", block.way)
        if plain not in ways:
            ways[plain] = _compiled_way(plain, count)
        block.way = ways[plain]
    return graphs


def _blocks(model: Model) -> list[Block]:
    return [part for part in model.modules() if isinstance(part, Block)]


def _compiled_way(plain: Callable[..., Any] | None, backend: Callable[..., Any]) -> Callable[..., Any]:
    """One function for all blocks: the block is an argument, and layers that are alike share its graph."""

    def way(block: Block, *args: Any) -> Any:
        return block.compute(*args) if plain is None else plain(block, *args)

    made: Any = torch.compile(way, backend=backend, fullgraph=True, dynamic=False)
    made.plain = plain
    return made


def _counting(name: str, graphs: Graphs) -> Callable[..., Any]:
    """A backend that counts what it is given."""
    lower: Any = torch._dynamo.lookup_backend(name)

    def backend(graph: Any, inputs: Any, **named: Any) -> Any:
        graphs.made += 1
        return lower(graph, inputs, **named)

    return backend
