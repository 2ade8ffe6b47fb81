"""By what means `generate` reads: with a cache or anew, in pages, with guesses, compiled."""

from __future__ import annotations

import functools
import weakref
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from anyformer.errors import InputError
from anyformer.generation.asking.checks import shown, whole
from anyformer.generation.asking.plan import problems
from anyformer.generation.asking.request import Request
from anyformer.generation.readers.guesses import DraftModel, Guesser, Lookup, agree, usual_choice
from anyformer.generation.readers.paged import Paged
from anyformer.generation.readers.speculate import Guessing
from anyformer.generation.readers.static import Anew, Cached
from anyformer.model.model import Model

MOST = 64
"""Guesses at once at most."""


class Reader(Protocol):
    """Reads rows of tokens as they grow."""

    states_BTD: Tensor | None

    def begin(self) -> Tensor:
        """Logits (B,V) after the prompt."""
        ...

    def reorder(self, rows_B: Tensor) -> None:
        """Row i becomes what row `rows_B[i]` was."""
        ...

    def go_on(self, ids_B: Tensor) -> Tensor:
        """Logits (B,V) after one more token in each row."""
        ...

    def close(self) -> None:
        """Nothing more will be read."""
        ...


@dataclass(frozen=True, kw_only=True)
class Means:
    """What a user may say about how tokens are read. None of it changes which tokens come."""

    cached: bool = True
    """False reads the whole row again in each step."""
    draft: Model | None = None
    """A smaller model with the same vocabulary, which guesses what comes."""
    lookup: bool = False
    """Guess by what followed when the last tokens occurred before in the row."""
    guesses: int = 8
    """So many tokens are guessed at once."""
    compiled: bool | str = False
    """Steps through torch.compile, with the static cache; a text names the backend."""

    def check(self, model: Model, asked: Request) -> None:
        """Refuse means that don't go together, or not with what is asked for."""
        wrong: list[str] = []
        whole("guesses", self.guesses, 1, wrong, most=MOST)
        guessing = self.draft is not None or self.lookup
        if self.draft is not None and self.lookup:
            wrong.append("draft: guesses are made by a draft model or by look-up; leave one out")
        if guessing and not self.cached:
            wrong.append("use_cache: guesses are checked with a cache; leave use_cache=False out")
        if guessing and asked.plan.way != "one":
            wrong.append("draft and lookup: a search reads other rows at each step; leave them out")
        if guessing and asked.reads_prompt:
            wrong.append("prompt_logprobs: not together with guesses; ask for it without draft or lookup")
        if self.compiled and (guessing or not self.cached):
            wrong.append("compile: compiled steps read one token with the static cache; leave the other option out")
        if not isinstance(self.compiled, bool | str):
            wrong.append(f"compile: expected True, False or the name of a backend, got {shown(self.compiled)}")
        if self.draft is not None and not isinstance(self.draft, Model):
            wrong.append(f"draft: expected a model, got {type(self.draft).__name__}")
        if wrong:
            raise problems("generate", wrong)
        if self.draft is not None:
            agree(model, self.draft)

    def reader(self, model: Model, asked: Request, keys_B: Tensor | None = None) -> Reader:
        """What reads the rows of a request, whose draws have these keys (None: nothing is drawn)."""
        if not self.cached:
            return Anew(model, asked)
        if self.draft is not None or self.lookup:
            return Guessing(model, asked, self._guesser(asked, keys_B), guesses=self.guesses)
        if self.compiled:
            return Cached(model, asked, step=compiled(model, self.compiled))
        on_device = asked.prompt_BT.device.type == "cuda"
        return Paged(model, asked) if on_device and not asked.reads_prompt else Cached(model, asked)

    def _guesser(self, asked: Request, keys_B: Tensor | None) -> Guesser:
        if self.draft is None:
            return Lookup()
        plan, rows, samples = asked.plan, asked.prompt_BT.shape[0], asked.plan.options.n
        begun = [len(row) for row in asked.starts() for _ in range(samples)]
        choose = usual_choice(plan.temperature, plan.top_k, plan.top_p, plan.min_p, keys_B, begun)
        return DraftModel(self.draft, rows * samples, asked.total, choose)


_compiled: weakref.WeakKeyDictionary[Model, dict[str, Any]] = weakref.WeakKeyDictionary()


def compiled(model: Model, backend: bool | str) -> Any:
    """The model's pass through torch.compile, made once for each model and backend."""
    name = backend if isinstance(backend, str) else "inductor"
    kept = _compiled.setdefault(model, {})
    if name not in kept:
        # A weak reference, or the model would live as long as its entry, and its entry as long as the model.
        kept[name] = torch.compile(functools.partial(_pass, weakref.ref(model)), backend=name)
    return kept[name]


def _pass(model: weakref.ref[Model], **given: Any) -> Any:
    alive = model()
    if alive is None:
        raise InputError("the model of this compiled pass is gone")
    return alive(**given)
