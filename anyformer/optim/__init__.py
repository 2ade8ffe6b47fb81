"""Optimizers for plain training loops: AdamW, Muon, groups of parameters, schedules, clipping. Loaded when first used."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anyformer.optim.grouping import groups
    from anyformer.optim.optimizers import AdamW, Muon
    from anyformer.optim.rule import clip_grad_norm_
    from anyformer.optim.schedule import constant, cosine, inverse_sqrt, linear, wsd

__all__ = ["AdamW", "Muon", "clip_grad_norm_", "constant", "cosine", "groups", "inverse_sqrt", "linear", "wsd"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'anyformer.optim' has no attribute {name!r}")
    # Configs of runs read schedules from here without torch.
    from anyformer.optim import grouping, optimizers, rule, schedule

    return next(vars(module)[name] for module in (rule, grouping, optimizers, schedule) if name in vars(module))


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
