"""What `quickstart` is asked for: a small modern decoder unless told otherwise. Reading a plan loads no torch.

The sizes and rates were found by experiment (docs/performance.md); every one of them can be changed from outside.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from anyformer.errors import InputError, SpecError
from anyformer.optim.schedule import Trapezoid
from anyformer.specs.model import ModelSpec
from anyformer.train.optim_config import Optim

SPEC: Mapping[str, Any] = {
    "vocab": 3072, "width": 128, "depth": 4, "context": 256, "attention": {"heads": 4, "kv_heads": 2},
    "position": {"kind": "rope"}, "ffn": {"kind": "swiglu"}, "norm": {"kind": "rmsnorm"},
    "embed": {"kind": "tokens", "scale": "sqrt(width)"}, "head": {"kind": "lm", "tied": True},
    "init": {"kind": "normal", "std": 0.02}, "ids": {"bos": 0, "eos": [0]},
}  # fmt: skip
LEAST_VOCAB = 257
BATCH = 8
"""Rows in a step."""
LEAST = 0.25
"""The share of a run by the clock that belongs to its steps, however long everything else takes."""


def left_for_steps(total: float, before: float, after: float) -> float:
    """Seconds that a run of so many has for its steps and the looks between them, if getting ready took `before` and
    measuring and keeping the model will take `after`.
    """
    return max(total - before - after, LEAST * total)


@dataclass(frozen=True, kw_only=True)
class Budget:
    """How long a run lasts: by the clock, or by a number of steps, which repeats to the bit.

    By the clock it may ask for `least_steps`: a machine that has not made them when the seconds are over goes on until it
    has, for `most_seconds` in all.
    """

    seconds: float | None = None
    steps: int | None = None
    least_steps: int = 0
    most_seconds: float | None = None

    def __post_init__(self) -> None:
        if (self.seconds is None) == (self.steps is None):
            raise TypeError("a budget is either seconds or steps")
        if bool(self.least_steps) != (self.most_seconds is not None) or (self.least_steps and self.seconds is None):
            raise TypeError("least_steps and most_seconds go together, with seconds")

    @property
    def words(self) -> str:
        """The budget for people; equal for equal budgets."""
        if self.seconds is None:
            return f"{self.steps} steps"
        more = f", or {self.least_steps} steps in at most {self.most_seconds:g} s" if self.least_steps else ""
        return f"{self.seconds:g} s{more}"

    def progress(self, step: int, seconds: float) -> float:
        """How much of the run is over before a step, from 0 to 1."""
        if self.seconds is None:
            return min(step / (self.steps or 1), 1.0)
        spent = seconds / self.seconds
        if self.least_steps and self.most_seconds:
            # A slow machine goes by its steps, and one that is slower still by the longer time: each of the three only
            # grows, and so does what is made of them, so that a schedule reaches its end when the run does.
            spent = max(min(spent, step / self.least_steps), seconds / self.most_seconds)
        return min(spent, 1.0)

    def expected(self, step: int, seconds: float) -> float:
        """The seconds of the whole run, at the speed so far."""
        return seconds / max(self.progress(step, seconds), 1e-9)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is asked for."""

    text: str | None = None
    """A text file; None is the Python standard library."""
    budget: Budget = field(default_factory=lambda: Budget(seconds=120.0))
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Dotted names of the spec and their values."""
    out: str | None = None
    """The run folder; None: by `place`."""
    device: str | None = None
    """Where to train; None: on a CUDA device if there is one, else on the CPU."""
    batch: int = BATCH
    optim: Optim = field(default_factory=Optim)
    schedule: Trapezoid = field(default_factory=Trapezoid)
    seed: int = 0

    def spec(self) -> ModelSpec:
        """The architecture that is asked for, if it can be trained to predict the next token of a text, which settles the
        size of its vocabulary.
        """
        spec = ModelSpec.from_data(SPEC).vary(self.changes)
        wrong: list[str] = []
        if spec.topology != "decoder":
            wrong.append(f"topology: {spec.topology!r} can't predict the next token of a text; leave it 'decoder'")
        if not spec.head.predicts_tokens:
            wrong.append(f"head.kind: {spec.head.kind!r} predicts no tokens; leave it 'lm'")
        if spec.embed.reads != "input_ids":
            wrong.append(f"embed.kind: {spec.embed.kind!r} reads no tokens; leave it 'tokens'")
        if spec.vocab < LEAST_VOCAB:
            wrong.append(
                f"vocab: {spec.vocab} is less than {LEAST_VOCAB}: every byte needs a token, and one ends a text"
            )
        if spec.context < 2:
            wrong.append(f"context: {spec.context} leaves nothing to predict; give at least 2")
        if wrong:
            raise SpecError(wrong, "quickstart")
        return spec

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**63:
            raise InputError(f"seed: {self.seed} is not from 0 to 2^63 - 1")

    @property
    def base(self) -> Path:
        """The folder of the plain run on the same text, with which others are compared."""
        stem = "" if self.text is None else f"-{_slug(Path(self.text).name.split('.')[0])}"
        parent = Path("runs") if self.out is None else Path(self.out).parent
        return parent / f"quickstart{stem}"

    @property
    def place(self) -> Path:
        """The run folder. Each set of changes and each seed has its own, so that runs can be compared."""
        if self.out is not None:
            return Path(self.out)
        pieces = [f"{name.removesuffix('.kind')}={value}" for name, value in sorted(self.changes.items())]
        pieces += [f"seed={self.seed}"] if self.seed else []
        shown = [_slug(piece) for piece in pieces]
        name = "+".join([self.base.name, *shown])
        if shown != pieces or len(name) > 120:
            # Two sets of changes must not share a folder because a name can't hold all of them.
            name = f"{name[:100]}-{hashlib.sha256(repr(pieces).encode()).hexdigest()[:6]}"
        return self.base.with_name(name)


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._=]+", "-", text).strip("-.") or "text"
