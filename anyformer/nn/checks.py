"""What is refused of tensors, by their shapes and dtypes: values are never looked at."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from anyformer.errors import InputError, nearest

RENAMED = {
    "attn_mask": "mask",
    "is_causal": 'pattern="causal"',
    "causal": 'pattern="causal"',
    "dropout_p": "dropout",
    "window": 'pattern="window(128)"',
    "position_ids": "positions",
    "encoder_hidden_states": "memory",
    "key_padding_mask": "attention_mask (1 = real)",
}
"""Names of the same thing elsewhere."""


def unknown_names(source: str, given: dict[str, Any], known: tuple[str, ...]) -> TypeError:
    """The error for arguments that there are not."""
    hints = [
        f"{name!r} is {RENAMED[name]} here" if name in RENAMED else f"{name!r} is unknown{nearest(name, known)}"
        for name in sorted(given)
    ]
    return TypeError(f"{source}: " + "; ".join(hints))


def check_size(source: str, name: str, value: Any) -> int:
    """A size that must be a whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{source}: {name}: {value!r} is not a whole number of at least 1")
    return value


def check_rows(source: str, name: str, x: Any, width: int) -> None:
    """Refuse what is not (batch, tokens, width) in floating point."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{source}: {name}: expected a tensor (batch, tokens, {width}), got {type(x).__name__}")
    if x.dim() != 3 or x.shape[-1] != width:
        raise InputError(f"{source}: {name}: expected (batch, tokens, {width}), got {tuple(x.shape)}")
    if not x.is_floating_point():
        raise InputError(f"{source}: {name}: expected floating-point numbers, got {x.dtype}")


def mask_problems(mask: Any, batch: int, heads: int, queries: int, keys: int) -> list[str]:
    """What is wrong with a mask of pairs."""
    if not isinstance(mask, Tensor):
        return [f"mask: expected a tensor, got {type(mask).__name__}; a pattern's text goes into pattern="]
    wrong: list[str] = []
    if mask.dtype != torch.bool and not mask.is_floating_point():
        wrong.append(f"mask: {mask.dtype} is neither boolean (True = may see) nor added numbers; write mask.bool()")
    shape, whole = tuple(mask.shape), (batch, heads, queries, keys)
    if mask.dim() not in (2, 4) or any(n not in (1, all_) for n, all_ in zip(shape, whole[-mask.dim() :], strict=True)):
        advice = f"; a padding mask {(batch, keys)} is mask[:, None, None, :]" if shape == (batch, keys) else ""
        wrong.append(
            f"mask: expected (queries, keys) = {whole[2:]} or (batch or 1, heads or 1, queries, keys) = {whole}, got "
            f"{shape}{advice}"
        )
    return wrong


def spread(mask: Tensor, queries: int, keys: int) -> Tensor:
    """A mask that was checked as (B or 1, H or 1, T, S)."""
    whole = mask[None, None] if mask.dim() == 2 else mask
    found = whole.expand(-1, -1, queries, keys)
    # Kernels read along the keys, one number after the other.
    return found if whole.shape[-1] == keys else found.contiguous()
