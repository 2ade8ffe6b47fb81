"""What a run will take: memory by part, arithmetic, steps and time, before anything is learned."""

import functools
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from anyformer.data.objectives import Objective
from anyformer.kernels.linear_cross_entropy import SHARE
from anyformer.model.block import Block
from anyformer.model.model import Model
from anyformer.model.native_checkpoint import empty_model
from anyformer.specs.model import ModelSpec
from anyformer.train.compile import DEAR
from anyformer.train.config import Compute
from anyformer.train.optim import Optimizers
from anyformer.train.optim_config import Optim
from anyformer.train.train_step import DTYPES

EFFICIENCY = {"cpu": 0.35, "cuda": 0.35, "cuda compiled": 0.55}
"""The share of a large product's speed that a training step reaches. On a CPU: of decoders with 0.6M to 10M parameters,
on a busy machine. Compiled: of decoders with 124M and 1.2B on an H200, in bf16; what is not compiled is taken to reach
two thirds of that. Small models on a GPU reach less."""
TRAINING = 3
"""A training step does so many times the arithmetic of a forward pass; what is recomputed does not count as done."""
SPOKEN = {"cpu": 1e-3, "cuda": 2e-4}
"""Seconds in which a layer makes a token of a sample: launching its small products takes most of them."""
SAVED = 0.05, 2e8
"""Seconds that a checkpoint takes at least, and bytes that are hashed, written and synced in each further one."""


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes on one device, by what holds them."""

    weights: int
    gradients: int
    optimizer: int
    """State of the optimizer, and master copies."""
    average: int
    """EMA of the weights."""
    activations: int
    """What a pass keeps for the backward pass, and what is worked on there."""
    logits: int
    """The loss: a chunk of logits, and the gradient of the head."""
    added_up: bool
    """Whether gradients of earlier pieces are there while a pass is kept."""

    @property
    def total(self) -> int:
        """The most at one moment. If a step is one pass, gradients take the place of what the way back lets go of."""
        passing = self.activations + self.logits
        most = passing + self.gradients if self.added_up else max(passing, self.gradients)
        return self.weights + self.optimizer + self.average + most

    def parts(self) -> dict[str, int]:
        sizes = {("averaged weights" if name == "average" else name): size for name, size in vars(self).items()}
        return {name: size for name, size in sizes.items() if size and name != "added_up"}


@dataclass(frozen=True, kw_only=True)
class Load:
    """What decides how much memory a step takes."""

    spec: ModelSpec
    objective: Objective
    optim: Optim
    compute: Compute
    inputs: Mapping[str, Any]
    """Arguments of the model for the rows of one process, as arrays; only their shapes are read."""
    rows: int
    """How many rows, or examples of several rows, these are."""
    averages: bool = False
    device: str = "cpu"
    workers: int = 1
    """Threads that each work on a piece of the rows."""
    shards: int = 1
    """Over how many processes weights, gradients and state are cut."""

    @property
    def pieces(self) -> int:
        asked = -(-self.rows // self.compute.micro) if self.compute.micro else 1
        return max(asked, min(self.workers, self.rows))


def memory(load: Load) -> Memory:
    """Estimate the memory of a step."""
    dtype, autocast = DTYPES[load.compute.dtype], load.compute.autocast == "bfloat16"
    model = empty_model(load.spec, torch.device("meta"), dtype)
    weights = sum(parameter.nbytes for parameter in model.parameters())
    state = sum(tensor.nbytes for tensor in Optimizers(model, load.optim).state().values())
    average = sum(p.numel() * max(4, p.element_size()) for p in model.parameters()) if load.averages else 0
    at_once = min(load.workers, load.pieces)
    # One pass over a piece, with arguments of its shapes, is counted for the device: kernels keep different things on each.
    used = {name: array[: -(-len(array) // load.pieces)] for name, array in load.inputs.items()}
    given = {
        name: torch.empty(array.shape, dtype=torch.from_numpy(array[:0]).dtype, device="meta")
        for name, array in used.items()
        if not name.endswith(VALUES)
    }
    notes = _Notes(model.train())
    with notes.watching(), notes, _Played(autocast=autocast, device=load.device):
        load.objective.loss(model, given)
    rows = given["labels"].numel() if "labels" in given else 0
    saved, beside = _loss_bytes(model, rows, torch.bfloat16 if autocast else dtype, load.device)
    whole = 0 if load.shards == 1 else weights // max(1, len(notes.inputs))
    return Memory(
        # A block's weights are gathered whole while it computes.
        weights=weights // load.shards + whole,
        gradients=weights // load.shards * at_once + whole,
        optimizer=state // load.shards,
        average=average // load.shards,
        activations=notes.activations(load.compute.recompute, saved) * at_once,
        logits=(saved + beside) * at_once,
        added_up=load.pieces > 1,
    )


@dataclass(frozen=True)
class Cure:
    """A change of the config that saves memory: how it is written, bytes with it, whether the run learns the same."""

    setting: str
    total: int
    same: bool


def cures(load: Load) -> list[Cure]:
    """What helps against a lack of memory, what helps most first; what changes the result after what does not."""
    found: list[Cure] = []
    now, compute = memory(load).total, load.compute

    def offer(setting: str, same: bool, inputs: Mapping[str, Any] = load.inputs, **changes: Any) -> None:
        total = memory(replace(load, inputs=inputs, compute=replace(compute, **changes))).total
        if total < 0.98 * now:
            found.append(Cure(setting, total, same))

    most = -(-load.rows // load.pieces)
    for micro in dict.fromkeys((most // 2, 1)):
        if 1 <= micro < most and not load.rows % micro:
            # How evenly routers choose is asked of each piece on its own.
            offer(f"compute.micro = {micro}", not load.spec.loss.balance, micro=micro)
    if compute.recompute != "block" and not any(stack.reversible for stack in load.spec.stacks):
        offer('compute.recompute = "block"', True, recompute="block")
        if compute.recompute == "none":
            offer('compute.recompute = "selective"', True, recompute="selective")
    if compute.autocast == "none" and compute.dtype == "float32" and load.device != "cpu":
        offer('compute.autocast = "bfloat16"', False, autocast="bfloat16")
        offer('compute.dtype = "bfloat16"', False, dtype="bfloat16")
    shorter = {n: array[:, : array.shape[1] // 2] if array.ndim > 1 else array for n, array in load.inputs.items()}
    offer("half the length in [[stages]]", False, shorter)
    return sorted(found, key=lambda cure: (not cure.same, cure.total))


def step_flops(spec: ModelSpec, inputs: Mapping[str, Any]) -> tuple[int, int]:
    """Arithmetic of a training step with arguments of these shapes, and how many tokens they have room for."""
    read = next(inputs[name] for name in ("input_ids", "values", "pixel_values") if name in inputs)
    if "decoder_input_ids" in inputs:
        said = inputs["decoder_input_ids"]
        done = spec.count().flops(said.shape[1], read.shape[1]).total
        return TRAINING * len(read) * done, read.size + said.size
    tokens = read.shape[1] if "pixel_values" not in inputs else spec.context
    return TRAINING * len(read) * spec.count().flops(tokens).total, len(read) * tokens


def product_rate(device: torch.device, dtype: torch.dtype, seconds: float = 0.3) -> float:
    """FLOP/s of a large matrix product, the best of a few."""
    size = 8192 if device.type == "cuda" else 1024
    a, b = (torch.ones(size, size, device=device, dtype=dtype) for _ in range(2))
    best, ends = 0.0, time.perf_counter() + seconds
    synchronize = functools.partial(torch.get_device_module(device).synchronize, device)
    while not best or time.perf_counter() < ends:
        synchronize()
        began = time.perf_counter()
        torch.mm(a, b)
        synchronize()
        best = max(best, 2 * size**3 / (time.perf_counter() - began))
    return best


VALUES = ("segments", "attention_mask", "positions")
"""Ends of the names of arguments that say who sees whom. Only their values matter, which are not there."""


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
    """Which storages a pass saves, and in which block."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.own = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
        self.model = model
        self.block: int | None = None
        # Held, so that no number is given twice.
        self.seen: dict[int, tuple[Any, int | None]] = {}
        self.inputs: list[int] = []
        """The residual that each block reads: what it keeps if it is recomputed."""
        self.dear: list[int] = []
        """What products and attention of each block give: what it keeps if only the rest is recomputed."""

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
        if func in DEAR and self.block is not None:
            self.dear[self.block] += made.nbytes
        return made

    def activations(self, recompute: str, loss: int) -> int:
        """Bytes at the moment when all blocks were passed and the last one is about to be gone through backwards, without
        those of the loss that autograd has noted.
        """
        blocks = [0] * len(self.inputs)
        outside = widest = 0
        for storage, block in self.seen.values():
            if block is None:
                outside += storage.nbytes()
            else:
                blocks[block] += storage.nbytes()
                widest = max(widest, storage.nbytes())
        kept = {"none": sum(blocks), "block": sum(self.inputs), "selective": sum(self.inputs) + sum(self.dear)}
        # What a block keeps of dear things is not made again.
        dear = self.dear if recompute == "selective" else [0] * len(blocks)
        again = max((block - held for block, held in zip(blocks, dear, strict=True)), default=0)
        again = 0 if recompute == "none" else max(again, 0)
        # Gradients on their way through a block: two of its widest tensors at once.
        return max(outside - loss, 0) + kept[recompute] + again + 2 * widest


class _Fused(Function):
    """Attention as far as memory goes: it keeps what it read and gave, and one number for each row of scores."""

    @staticmethod
    def forward(ctx: Any, q_BHTK: Tensor, k_BHSK: Tensor, v_BHSV: Tensor) -> Tensor:
        batch, heads, tokens, _ = q_BHTK.shape
        # Laid out as the next product reads it: heads beside each other.
        out_BHTV = q_BHTK.new_empty(batch, tokens, heads, v_BHSV.shape[-1]).transpose(1, 2)
        lse_BHT = q_BHTK.new_empty(q_BHTK.shape[:-1], dtype=torch.float32)
        ctx.save_for_backward(q_BHTK, k_BHSK, v_BHSV, out_BHTV, lse_BHT)
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
    return value.to(torch.bfloat16) if isinstance(value, Tensor) and value.dtype == torch.float32 else value
