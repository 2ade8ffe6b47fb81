"""Optimizers for plain training loops: AdamW, Muon, groups of parameters, schedules, clipping. Loaded when first used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anyformer.optim.public import AdamW, Muon, clip_grad_norm_, constant, cosine, groups, inverse_sqrt, linear, wsd

__all__ = ["AdamW", "Muon", "clip_grad_norm_", "constant", "cosine", "groups", "inverse_sqrt", "linear", "wsd"]


def __getattr__(name: str) -> Any:
    # Configs of runs read schedules from here without torch.
    if name in __all__:
        from anyformer.optim import public

        return getattr(public, name)
    raise AttributeError(f"module 'anyformer.optim' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
