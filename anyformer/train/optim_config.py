"""[optim]: which rule moves which parameters, and how fast. Reading it loads no torch.

Parameters are grouped by the role that the spec's inventory gives them, never by name or shape: matrices inside the
blocks, tables (embeddings of tokens and positions), an untied head, and vectors (gains, biases and the rest).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from anyformer.optim.grouping import GROUPS, Group, group_of
from anyformer.optim.schedule import at_least
from anyformer.registry import OpenAxis
from anyformer.specs.axes import Problem, Role
from anyformer.specs.layer import default

if TYPE_CHECKING:
    from anyformer.optim.rule import Rule

READERS: tuple[Role, ...] = ("head", "router", "dense")
"""What AdamW always moves and what sums over the whole width of the residual, as matrices do."""


@dataclass(frozen=True, kw_only=True)
class OptimKind(OpenAxis, axis="optim", leaves="anyformer.train.optim_config"):
    """What moves the matrices inside the blocks. All else is always moved by AdamW."""

    width_power: ClassVar[float | None] = None
    """With `base_width`, their rate goes with (base_width / width) to this power; None: nobody has derived it."""
    matrices: float = 0.005
    """Their learning rate at its peak."""

    def problems(self) -> Iterator[Problem]:
        yield from at_least(self, 0, "matrices")

    def rule(self, optim: Optim) -> Rule:
        raise TypeError(f"optim kind {self.kind!r} defines no rule()")


@dataclass(frozen=True, kw_only=True)
class Muon(OptimKind, kind="muon"):
    """Momentum that is made orthogonal (Jordan et al. 2024)."""

    # An orthogonal update times 0.2 sqrt(max(rows, columns)) has a spectral norm of 0.2 rate sqrt(max(rows, columns)).
    # Features move as much at every width if that stays in proportion to sqrt(rows / columns) (Yang, Simon and Bernstein
    # 2023, condition 1), which does not change where all sizes grow together; so the rate has to go with 1 / sqrt(width).
    width_power = 0.5
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

    # Every entry moves by about the rate, all in the direction of the same few features, so what a row of n entries adds
    # to its output grows with n (Yang et al. 2022, table 3 and appendix J).
    width_power = 1.0
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
    base_width: int | None = None
    """Learning rates are given for a model of this width. At another width those of matrices are multiplied by
    base_width / width with adamw (muP, Yang et al. 2022, table 3) and by its square root with muon, whose updates have
    Adam's root mean square; those of an untied head, of routers and of a head's dense layer, all moved by AdamW, by
    base_width / width; those of tables and vectors by 1. Weight decay shrinks weights at every width as at this one.
    Unset: rates are taken as they are."""

    def width_factor(self, role: Role, width: int) -> float:
        """By what the learning rate of a parameter is multiplied in a model of this width; its decay is divided by it.

        The rates that are best at `base_width` are then meant to be best at `width` (muP: Yang et al. 2022; in terms of
        spectral norms: Yang, Simon and Bernstein 2023), provided that

        - all matrices grow with the width: there are more heads of the same size, and the feed-forward is wider in
          proportion;
        - matrices begin with a variance of about 1 / width (glorot, fan_in, small; not normal or gpt2, whose standard
          deviation is fixed);
        - the head is untied. Its rate falls as 1 / width, so its logits need no multiplier. A tied head is moved with its
          table, at a rate that is right for embeddings, and its logits move faster in a wider model. muP's way with a
          tied head is a table of variance 1 (fan_in) and `head.scale = "N/width"` with the base width for N;
          Where muP would start an untied head with a variance of 1 / width^2, its logits move less at first than here;
        - depth, batch and number of steps are about the same: rates are not scaled by these.

        In a step a weight loses the share rate * decay of itself. It is kept as it is at the base width (Wang and
        Aitchison 2024; MuAdamW of the package mup does the same), so that weights and their updates keep their proportion.
        """
        if self.base_width is None or self.base_width == width:
            return 1.0
        if group_of(role) == "matrices":
            return (self.base_width / width) ** (self.leaf.width_power or 0.0)
        return self.base_width / width if role in READERS else 1.0

    def rate(self, group: Group) -> float:
        """The peak of a group's learning rate, at `base_width` if that is set."""
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
        if self.base_width is not None and self.base_width < 1:
            yield "base_width", f"{self.base_width} is not at least 1"
        elif self.base_width is not None and self.leaf.width_power is None:
            yield (
                "base_width",
                f"nobody has derived how the rates of {self.leaf.kind!r} go with the width; leave it out",
            )
        yield from ((f"decay.{group}", problem) for group, problem in at_least(self.decay, 0, *GROUPS))
