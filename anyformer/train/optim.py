"""Which optimizer serves which parameter: Muon for the matrices inside the blocks, AdamW for all else.

Parameters are told apart by the role that the spec's inventory gives them, never by their name or shape.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from anyformer.model.models import Model
from anyformer.specs.axes import Role
from anyformer.specs.weights import weights
from anyformer.train.crew import Crew
from anyformer.train.muon import Muon
from anyformer.train.rates import Rates

INSIDE: frozenset[Role] = frozenset({"query", "key", "value", "attention_out", "ffn_in", "ffn_out"})
"""Matrices that map the residual to itself or to what a branch works on: what Muon was made for."""

TABLES: frozenset[Role] = frozenset({"embedding", "position_embedding", "head"})
"""One row for each token or position, most of them without a gradient of note in any one step."""


class Optimizers:
    """Muon and AdamW as one: a step, a factor on all learning rates, and no gradients left over."""

    def __init__(self, model: Model, rates: Rates) -> None:
        inside: list[torch.nn.Parameter] = []
        tables: list[torch.nn.Parameter] = []
        vectors: list[torch.nn.Parameter] = []
        inventory = weights(model.spec)
        for name, parameter in model.named_parameters():
            role = inventory[name].role
            (inside if role in INSIDE else tables if role in TABLES else vectors).append(parameter)
        self.all: list[torch.optim.Optimizer] = []
        if inside:
            self.all.append(Muon(inside, lr=rates.matrices, weight_decay=rates.decay))
        groups = [{"params": tables, "lr": rates.tables}, {"params": vectors, "lr": rates.vectors}]
        groups = [group for group in groups if group["params"]]
        if groups:
            self.all.append(torch.optim.AdamW(groups, betas=(0.9, 0.95), weight_decay=0.0, fused=True))
        self.peaks = [[group["lr"] for group in optimizer.param_groups] for optimizer in self.all]

    def step(self, factor: float, crew: Crew | None = None) -> None:
        """Move the parameters with all learning rates at `factor` of their peak, and forget the gradients."""
        for optimizer, peaks in zip(self.all, self.peaks, strict=True):
            for group, peak in zip(optimizer.param_groups, peaks, strict=True):
                group["lr"] = peak * factor
            if isinstance(optimizer, Muon) and crew is not None:
                list(crew.map(lambda update: update(), optimizer.updates()))
            else:
                optimizer.step()
        self.forget()

    def forget(self) -> None:
        """Drop all gradients."""
        for optimizer in self.all:
            optimizer.zero_grad(set_to_none=True)

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        """Everything that is moved."""
        for optimizer in self.all:
            for group in optimizer.param_groups:
                yield from group["params"]
