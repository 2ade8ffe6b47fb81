"""What a training pass keeps for the backward pass, counted on a model without memory.

The pass runs on the `meta` device, where tensors have shapes and no numbers, and every tensor that autograd saves is
noted once. Two things are there otherwise than on a real device, and are played here: attention, which a real device
computes without storing its scores, and autocast, which `meta` does not know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from anyformer.data.objectives import Objective
from anyformer.kernels.linear_cross_entropy.chunks import SHARE
from anyformer.model.block import Block
from anyformer.model.model import Model
from anyformer.model.native_checkpoint import empty_model
from anyformer.specs.model import ModelSpec
from anyformer.train.activation_checkpointing import DEAR

VALUES = ("segments", "attention_mask", "positions")
"""Ends of the names of arguments that say who sees whom. Only their values matter, which are not there."""


@dataclass(frozen=True, kw_only=True)
class Kept:
    """Bytes that a pass keeps."""

    outside: int
    """By embedding, last norm and head."""
    loss: int
    """The head's gradient, which the loss makes at once, its copy on the way back, and a chunk of logits."""
    blocks: tuple[int, ...]
    """By each block."""
    inputs: tuple[int, ...]
    """The residual that each block reads: what it keeps if it is recomputed."""
    dear: tuple[int, ...]
    """What products and attention of each block give: what it keeps if only the rest is recomputed."""
    widest: int
    """The largest single tensor that is saved inside a block."""

    def activations(self, recompute: str) -> int:
        """Bytes at the moment when all blocks were passed and the last one is about to be gone through backwards."""
        kept = {"none": sum(self.blocks), "block": sum(self.inputs), "selective": sum(self.inputs) + sum(self.dear)}
        # What a block keeps of dear things is not made again.
        dear = self.dear if recompute == "selective" else (0,) * len(self.blocks)
        again = max((block - kept for block, kept in zip(self.blocks, dear, strict=True)), default=0)
        again = 0 if recompute == "none" else max(again, 0)
        # Gradients on their way through a block: two of its widest tensors at once.
        return self.outside + kept[recompute] + again + 2 * self.widest


def kept_by(
    spec: ModelSpec,
    objective: Objective,
    inputs: Mapping[str, Any],
    *,
    dtype: torch.dtype = torch.float32,
    autocast: bool = False,
    device: str = "cpu",
) -> Kept:
    """Count one pass with arguments of these shapes, given as arrays; their numbers are not read.

    `device` is where the pass will run: kernels keep different things there.
    """
    model = empty_model(spec, torch.device("meta"), dtype)
    model.train()
    model.return_logits = False
    given = {
        name: torch.empty(array.shape, dtype=torch.from_numpy(array[:0]).dtype, device="meta")
        for name, array in inputs.items()
        if not name.endswith(VALUES)
    }
    notes = _Notes(model)
    with ExitStack() as modes:
        modes.enter_context(notes.watching())
        modes.enter_context(notes)
        modes.enter_context(_Played(autocast=autocast, device=device))
        objective.loss(model, given)
    rows = given["labels"].numel() if "labels" in given else 0
    return notes.kept(*_loss_bytes(model, rows, torch.bfloat16 if autocast else dtype, device))


def _loss_bytes(model: Model, rows: int, dtype: torch.dtype, device: str) -> tuple[int, int]:
    """Of the loss over a vocabulary: the gradient that autograd saves, and what else is there beside it."""
    spec = model.spec
    if not spec.head.predicts_tokens:
        return 0, 0
    weight = next(model.parameters()).element_size() * spec.vocab * spec.embed_width
    room = SHARE.get(device, SHARE["cuda"]) // (spec.vocab * dtype.itemsize)
    chunk = min(rows, max(64, 1 << max(room, 1).bit_length() - 1)) * spec.vocab * dtype.itemsize
    # Products in another dtype read a copy of the weight.
    return weight, weight + chunk + (0 if dtype == next(model.parameters()).dtype else weight // 2)


class _Notes(TorchDispatchMode):
    """Which storages are saved, and in which block."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.own = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
        self.model = model
        self.block: int | None = None
        # Held, so that no number is given twice.
        self.seen: dict[int, tuple[Any, int | None]] = {}
        self.inputs: list[int] = []
        self.dear: list[int] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Blocks say when they begin and end, and autograd what it saves."""
        with ExitStack() as hooks:
            for part in self.model.modules():
                if isinstance(part, Block):
                    hooks.callback(part.register_forward_pre_hook(self._begin).remove)
                    hooks.callback(part.register_forward_hook(self._end).remove)
            hooks.enter_context(torch.autograd.graph.saved_tensors_hooks(self._saved, lambda tensor: tensor))
            yield

    def _begin(self, _: Any, args: tuple[Any, ...]) -> None:
        self.block = len(self.inputs)
        streams = args[0] if isinstance(args[0], tuple) else (args[0],)
        self.inputs.append(sum(stream.nbytes for stream in streams))
        self.dear.append(0)

    def _end(self, *_: Any) -> None:
        self.block = None

    def _saved(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in self.own:
            self.seen.setdefault(storage._cdata, (storage, self.block))
        return tensor

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if func in DEAR:
            self.given(made)
        return made

    def given(self, made: Any) -> None:
        """Something dear was computed."""
        if self.block is not None:
            self.dear[self.block] += made.nbytes

    def kept(self, saved: int, beside: int) -> Kept:
        """All of it. `saved` and `beside` are bytes of the loss, of which autograd has noted the first."""
        blocks = [0] * len(self.inputs)
        outside = widest = 0
        for storage, block in self.seen.values():
            if block is None:
                outside += storage.nbytes()
            else:
                blocks[block] += storage.nbytes()
                widest = max(widest, storage.nbytes())
        return Kept(
            outside=max(outside - saved, 0), loss=saved + beside, blocks=tuple(blocks), inputs=tuple(self.inputs),
            dear=tuple(self.dear), widest=widest,
        )  # fmt: skip


class _Fused(Function):
    """Attention as far as memory goes: it keeps what it read and gave, and one number for each row of scores."""

    @staticmethod
    def forward(ctx: Any, q_BHTK: Tensor, k_BHSK: Tensor, v_BHSV: Tensor) -> Tensor:
        batch, heads, tokens, _ = q_BHTK.shape
        # Laid out as the next product reads it: heads beside each other.
        out_BHTV = q_BHTK.new_empty(batch, tokens, heads, v_BHSV.shape[-1]).transpose(1, 2)
        ctx.save_for_backward(
            q_BHTK, k_BHSK, v_BHSV, out_BHTV, q_BHTK.new_empty(q_BHTK.shape[:-1], dtype=torch.float32)
        )
        return out_BHTV

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> tuple[None, None, None]:
        return None, None, None


PRODUCTS: frozenset[Callable[..., Any]] = frozenset({F.linear, torch.matmul, torch.bmm, torch.mm, torch.einsum})


class _Played(TorchFunctionMode):
    """Plays what `meta` has not: fused attention, and products in bfloat16 under autocast."""

    def __init__(self, *, autocast: bool, device: str) -> None:
        super().__init__()
        self.autocast, self.device = autocast, device

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        attends = func is F.scaled_dot_product_attention
        if self.autocast and (attends or func in PRODUCTS):
            args = tuple(_narrow(arg) for arg in args)
            kwargs = {name: _narrow(arg) for name, arg in kwargs.items()}
        if attends:
            named = dict(zip(("query", "key", "value", "attn_mask", "dropout_p"), args, strict=False)) | kwargs
            mask = named.get("attn_mask")
            # A mask that is learned has a gradient, for which every device stores the scores; a CPU also drops from them.
            learned = mask is not None and mask.requires_grad
            if not learned and not (self.device == "cpu" and named.get("dropout_p")):
                return _Fused.apply(named["query"], named["key"], named["value"])
        return func(*args, **kwargs)


def _narrow(value: Any) -> Any:
    if isinstance(value, Tensor) and value.dtype == torch.float32:
        return value.to(torch.bfloat16)
    return value
