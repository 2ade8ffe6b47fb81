"""What a run will take: memory by part, arithmetic, steps and time, before anything is learned."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from anyformer.data.objectives import Objective
from anyformer.model.native_checkpoint import empty_model
from anyformer.specs.model import ModelSpec
from anyformer.train.activation_memory import kept_by
from anyformer.train.config import Compute
from anyformer.train.optim import Optimizers
from anyformer.train.optim_config import Optim

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
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes on one device, by what holds them."""

    weights: int
    gradients: int
    optimizer: int
    """What the optimizer remembers of each weight, and copies in a wider dtype."""
    average: int
    """Of the averaged weights."""
    activations: int
    """What is kept of a pass for the way back, and what is worked on there."""
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
        """The parts that there are, by name."""
        named = {
            "weights": self.weights, "gradients": self.gradients, "optimizer": self.optimizer,
            "averaged weights": self.average, "activations": self.activations, "logits": self.logits,
        }  # fmt: skip
        return {name: size for name, size in named.items() if size}


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
    crew: int = 1
    """Threads that each work on a piece of the rows."""
    shards: int = 1
    """Over how many processes weights, gradients and state are cut."""

    @property
    def pieces(self) -> int:
        """Into how many pieces the rows are cut."""
        asked = -(-self.rows // self.compute.micro) if self.compute.micro else 1
        return max(asked, min(self.crew, self.rows))


def memory(load: Load) -> Memory:
    """Estimate the memory of a step."""
    dtype, compute = DTYPES[load.compute.dtype], load.compute
    model = empty_model(load.spec, torch.device("meta"), dtype)
    weights = sum(parameter.nbytes for parameter in model.parameters())
    state = sum(tensor.nbytes for tensor in Optimizers(model, load.optim).state().values())
    average = sum(p.numel() * max(4, p.element_size()) for p in model.parameters()) if load.averages else 0
    at_once = min(load.crew, load.pieces)
    piece = {name: array[: -(-len(array) // load.pieces)] for name, array in load.inputs.items()}
    kept = kept_by(
        load.spec, load.objective, piece, dtype=dtype, autocast=compute.autocast == "bfloat16", device=load.device
    )
    whole = 0 if load.shards == 1 else weights // max(1, len(kept.blocks))
    return Memory(
        # A block's weights are gathered whole while it computes.
        weights=weights // load.shards + whole,
        gradients=weights // load.shards * at_once + whole,
        optimizer=state // load.shards,
        average=average // load.shards,
        activations=kept.activations(compute.recompute) * at_once,
        logits=kept.loss * at_once,
        added_up=load.pieces > 1,
    )


@dataclass(frozen=True)
class Cure:
    """A change of the config that saves memory."""

    setting: str
    """As it is written in the config."""
    total: int
    """Bytes in all with it."""
    same: bool
    """Whether the run learns the same."""


def cures(load: Load) -> list[Cure]:
    """What helps against a lack of memory, what helps most first; what changes the result after what does not."""
    found: list[Cure] = []
    now = memory(load).total

    def offer(setting: str, same: bool, **changes: Any) -> None:
        total = memory(replace(load, compute=replace(load.compute, **changes))).total
        if total < 0.98 * now:
            found.append(Cure(setting, total, same))

    most = -(-load.rows // load.pieces)
    for micro in dict.fromkeys((most // 2, 1)):
        if 1 <= micro < most and not load.rows % micro:
            # How evenly routers choose is asked of each piece on its own.
            offer(f"compute.micro = {micro}", not load.spec.loss.balance, micro=micro)
    if load.compute.recompute != "block" and not any(stack.reversible for stack in load.spec.stacks):
        offer('compute.recompute = "block"', True, recompute="block")
        if load.compute.recompute == "none":
            offer('compute.recompute = "selective"', True, recompute="selective")
    if load.compute.autocast == "none" and load.compute.dtype == "float32" and load.device != "cpu":
        offer('compute.autocast = "bfloat16"', False, autocast="bfloat16")
        offer('compute.dtype = "bfloat16"', False, dtype="bfloat16")
    shorter = {
        name: array[:, : array.shape[1] // 2] if array.ndim > 1 else array for name, array in load.inputs.items()
    }
    total = memory(replace(load, inputs=shorter)).total
    if total < 0.98 * now:
        found.append(Cure("half the length in [[stages]]", total, False))
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
    while not best or time.perf_counter() < ends:
        _settle(device)
        began = time.perf_counter()
        torch.mm(a, b)
        _settle(device)
        best = max(best, 2 * size**3 / (time.perf_counter() - began))
    return best


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def efficiency(device: str, compute: Compute) -> float:
    """The share of that speed which a step is expected to reach."""
    return EFFICIENCY["cuda compiled" if device == "cuda" and compute.compile != "none" else device]
