"""The plain way to choose a token, which the batched sampler is held against: a chain of samplers, then a draw."""

from typing import Any

import torch
from torch import Tensor

import anyformer as af
from anyformer.generation.engine.request import Request, Sequence
from anyformer.generation.engine.sampler import Sampled, Sampler
from anyformer.generation.params.sampling_params import SamplingParams
from anyformer.generation.params.validate import ResolvedParams, problems, resolve_params
from anyformer.generation.samplers.batched import keys, pick
from anyformer.generation.samplers.logits_processors import LogitsProcessor, TokenHistory, process, why_not
from tests.contract.draw import BASE

CPU = torch.device("cpu")
NO_HISTORY = TokenHistory(torch.empty(0, 0), torch.empty(0), torch.empty(0))
"""For processors that read none."""


def resolved(options: SamplingParams, spec: Any, **more: Any) -> ResolvedParams:
    """Some options resolved, or an error that says all that is wrong with them."""
    wrong: list[str] = []
    found = resolve_params(options, spec, wrong, **more)
    if found is None:
        raise problems("generate", wrong)
    return found


def sampled(logits_BV: Tensor, *, seed: int = 0, tokens: tuple[int, ...] = (1,), **options: Any) -> list[Sampled]:
    """What the engine's sampler takes for rows that ask for the same."""
    spec = af.spec(BASE, {"vocab": logits_BV.shape[-1]})
    plan = resolved(SamplingParams(seed=seed if options.get("temperature") else None, **options), spec)
    draws = keys(seed, len(logits_BV), device=CPU).tolist()
    rows = []
    for i in range(len(logits_BV)):
        request = Request(i, i, plan, tokens, 9, None)
        request.sequences = [Sequence(request, 0, draws[i], list(tokens), len(tokens))]
        rows += request.sequences
    return Sampler(CPU).sample(logits_BV, rows)


def choose(
    logits_BV: Tensor,
    processors: tuple[LogitsProcessor, ...] = (),
    history: TokenHistory = NO_HISTORY,
    *,
    points_B: Tensor | None = None,
) -> Tensor:
    """Ids (B,): without points the likeliest, of equals the lowest id; else the draw at them."""
    logits_BV = logits_BV.to(torch.promote_types(logits_BV.dtype, torch.float32))
    left_BV = process(logits_BV, processors, history)
    for row in range(len(left_BV)):
        why = why_not(logits_BV[row], left_BV[row])
        if why is not None:
            raise ValueError(f"row {row}: {why}")
    return left_BV.argmax(-1) if points_B is None else pick(left_BV, points_B)
