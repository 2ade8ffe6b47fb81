"""How `generate` decodes: with a cache or without, with proposals, compiled. None of it changes the tokens."""

from __future__ import annotations

import functools
import weakref
from dataclasses import dataclass
from typing import Any

import torch

from anyformer.errors import InputError
from anyformer.generation.engine.core import EngineCore
from anyformer.generation.engine.model_runner import ModelRunner
from anyformer.generation.engine.recompute import RecomputeRunner, TokenPool
from anyformer.generation.engine.runner_cache import runner_for
from anyformer.generation.engine.scheduler import PADDING, Limits
from anyformer.generation.engine.speculative import make_proposer
from anyformer.generation.params.checks import shown, whole
from anyformer.generation.params.generation_request import GenerationRequest
from anyformer.generation.params.validate import problems
from anyformer.model.model import Model
from anyformer.parts.static_cache import StaticPool

MOST = 64
"""Tokens proposed at once at most."""
PASS = 8192
"""Tokens of prompts in one prefill pass of a device."""


@dataclass(frozen=True, kw_only=True)
class DecodeOptions:
    """What a user may say about how tokens are computed (see `generate`)."""

    use_cache: bool = True
    draft: Model | None = None
    lookup: bool = False
    guesses: int = 8
    compile: bool | str = False

    @property
    def speculative(self) -> bool:
        """Whether tokens are proposed."""
        return self.draft is not None or self.lookup

    def check(self, model: Model, inputs: GenerationRequest) -> None:
        """Refuse options that don't go together, or not with what is asked for."""
        wrong: list[str] = []
        whole("guesses", self.guesses, 1, wrong, most=MOST)
        if self.draft is not None and self.lookup:
            wrong.append("draft: tokens are proposed by a draft model or by look-up; leave one out")
        if self.speculative and not self.use_cache:
            wrong.append("use_cache: proposals are verified with a cache; leave use_cache=False out")
        if self.speculative and inputs.params.mode != "sample":
            wrong.append("draft and lookup: a search reads other rows at each step; leave them out")
        if self.compile and (self.speculative or not self.use_cache):
            wrong.append("compile: compiled steps read one token with the static cache; leave the other option out")
        if self.compile and inputs.params.mode != "sample":
            wrong.append("compile: a search reads other rows at each step; leave one of them out")
        if not isinstance(self.compile, bool | str):
            wrong.append(f"compile: expected True, False or the name of a backend, got {shown(self.compile)}")
        if self.draft is not None and not isinstance(self.draft, Model):
            wrong.append(f"draft: expected a model, got {type(self.draft).__name__}")
        if wrong:
            raise problems("generate", wrong)
        decoder: Any = model.decoder
        if self.use_cache and decoder.prefix and model.spec.topology == "decoder":
            shortest = min(len(row) for row in inputs.decoder_prompts())
            if shortest < decoder.prefix:
                # A cache is fed a prefix at once.
                raise InputError(
                    f"the first {decoder.prefix} tokens of this prefix-LM see each other both ways, but a prompt has "
                    f"{shortest}; give longer prompts, or recompute each step with use_cache=False"
                )

    def engine(self, model: Model, inputs: GenerationRequest, user: object) -> EngineCore:
        """An engine for all rows of a request, which `user` has to itself."""
        params, length, device = inputs.params, inputs.max_length, inputs.decoder_BT.device
        rows = len(inputs.decoder_BT) * max(params.options.n, params.search_width)
        if not self.use_cache:
            return EngineCore(RecomputeRunner(model, TokenPool(model, length)), Limits(lockstep=True))
        if self.speculative:
            # A state computes again what was right, so a pass has up to twice as many tokens.
            pool = model.new_pool(rows, length, chunk=2 * self.guesses + 2)
            proposer = make_proposer(model, rows, length, draft=self.draft, lookup=self.lookup, guesses=self.guesses)
            return EngineCore(ModelRunner(model, pool, cuda_graphs=False), Limits(), proposer=proposer)
        if device.type == "cuda" and not self.compile:
            limits = Limits(max_pass_tokens=PASS, prefill_chunk=PASS, max_padding=PADDING["cuda"])
            return EngineCore(runner_for(model, rows, length, user), limits)
        # A length that was not given is the cache's own, which padding must not change.
        own = inputs.rope_length is None and model.reads_length and model.spec.topology != "encoder-decoder"
        cache = model.new_cache(len(inputs.decoder_BT), length, rope_length=length if own else inputs.rope_length)
        step = compiled(model, self.compile) if self.compile else None
        return EngineCore(
            ModelRunner(model, StaticPool(cache), cuda_graphs=False, compiled=step), Limits(lockstep=True)
        )


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
