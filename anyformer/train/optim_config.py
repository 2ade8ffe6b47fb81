"""[optim]: which rule moves which parameters, and how fast. Reading it loads no torch.

Parameters are grouped by the role that the spec's inventory gives them, never by name or shape: matrices inside the
blocks, tables (embeddings of tokens and positions), an untied head, and vectors (gains, biases and the rest).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from anyformer.optim.grouping import GROUPS, Group
from anyformer.optim.schedule import at_least
from anyformer.registry import OpenAxis
from anyformer.specs.axes import Problem
from anyformer.specs.layer import default

if TYPE_CHECKING:
    from anyformer.optim.rule import Rule


@dataclass(frozen=True, kw_only=True)
class OptimKind(OpenAxis, axis="optim", leaves="anyformer.train.optim_config"):
    """What moves the matrices inside the blocks. All else is always moved by AdamW."""

    matrices: float = 0.005
    """Their learning rate at its peak."""

    def problems(self) -> Iterator[Problem]:
        yield from at_least(self, 0, "matrices")

    def rule(self, optim: Optim) -> Rule:
        raise TypeError(f"optim kind {self.kind!r} defines no rule()")


@dataclass(frozen=True, kw_only=True)
class Muon(OptimKind, kind="muon"):
    """Momentum that is made orthogonal (Jordan et al. 2024)."""

    matrices: float = 0.005
    """Held-out loss of 0.8M parameters after 2,000 steps of 12 x 64 characters of Shakespeare: 1.5602 with 0.005, 1.5695
    with 0.01, 1.6052 with 0.02. Where a text is read many times, twice as much is better: see recipes/shakespeare.toml."""
    momentum: float = 0.95
    rounds: int = 5
    """Newton-Schulz steps of each update."""

    def problems(self) -> Iterator[Problem]:
        yield from super().problems()
        if not 0 <= self.momentum < 1:
            yield "momentum", f"{self.momentum:g} is not from 0 to below 1"
        yield from at_least(self, 1, "rounds")

    def rule(self, optim: Optim) -> Rule:
        from anyformer.optim.rule import MuonRule

        return MuonRule(momentum=self.momentum, rounds=self.rounds)


@dataclass(frozen=True, kw_only=True)
class AdamW(OptimKind, kind="adamw"):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019), for the matrices too."""

    matrices: float = 0.002
    """With 0.003 for all else it takes 10.6M parameters to a held-out loss of 1.4695 on characters of Shakespeare (dropout
    0.2, 1,500 steps of 64 x 256); no other rate was tried."""

    def rule(self, optim: Optim) -> Rule:
        return optim.adamw()


@dataclass(frozen=True, kw_only=True)
class Decay:
    """[optim.decay]: weight decay by group. In a step a weight loses this share of itself times its learning rate."""

    matrices: float = 0.1
    tables: float = 0.0
    head: float = 0.0
    vectors: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Optim:
    """[optim]: learning rates at their peak by group, and what the rules need."""

    leaf: OptimKind = default(OptimKind, "muon", inline=True)
    tables: float = 0.012
    """Learning rate of embeddings, and of a head that is tied to them."""
    head: float | None = None
    """Of an untied head; unset: as tables."""
    vectors: float = 0.004
    """Of gains, biases and the rest."""
    betas: tuple[float, float] = (0.9, 0.95)
    """How much of its running means of gradients and of their squares AdamW keeps in a step."""
    eps: float = 1e-8
    decay: Decay = field(default_factory=Decay)
    master: bool = True
    """Weights narrower than float32 are moved in float32 copies, and all state is float32 too: a step is smaller than
    what separates two numbers of bfloat16, and would be lost. Costs 4 bytes a parameter, and 2 for each mean."""

    def rate(self, group: Group) -> float:
        """The peak of a group's learning rate."""
        rates = {"matrices": self.leaf.matrices, "tables": self.tables, "vectors": self.vectors}
        return rates.get(group, self.tables if self.head is None else self.head)

    def adamw(self) -> Rule:
        """The rule for all that the kind leaves over."""
        from anyformer.optim.rule import AdamWRule

        return AdamWRule(betas=self.betas, eps=self.eps)

    def problems(self) -> Iterator[Problem]:
        yield from self.leaf.problems()
        yield from at_least(self, 0, "tables", "head", "vectors")
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            yield "betas", f"{list(self.betas)} are not two numbers from 0 to below 1, such as [0.9, 0.95]"
        if self.eps <= 0:
            yield "eps", f"{self.eps:g} is not above 0"
        yield from ((f"decay.{group}", problem) for group, problem in at_least(self.decay, 0, *GROUPS))
