"""Places: where each token of a row is, in which document, and whether it is real."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from anyformer.errors import InputError


@dataclass
class Places:
    """Tokens of one input. Positions have a batch dimension of 1 where all rows are alike."""

    pos_BT: Tensor
    valid_BT: Tensor | None = None
    """None: all tokens are real."""
    document_BT: Tensor | None = None
    """None: a row is one document."""
    length_BT: Tensor | None = None
    """The length that length-dependent positions and patterns read; None unless one asks for it."""
    plain: bool = True
    """Positions are 0, 1, 2 ... (after what a cache holds) in every row, and nothing is padded or packed."""


def check_2d(name: str, tensor: Tensor | None, shape: tuple[int, int]) -> None:
    """Refuse a per-token argument of another shape."""
    if tensor is not None and tuple(tensor.shape) != shape:
        advice = "; masks for single pairs are patterns: write attention.pattern" if tensor.dim() == 4 else ""
        raise InputError(f"{name}: expected (batch, tokens) = {shape}, got {tuple(tensor.shape)}{advice}")


def place(
    batch: int,
    tokens: int,
    device: torch.device,
    *,
    mask_BT: Tensor | None,
    positions: Tensor | None,
    segments_BT: Tensor | None,
    wants_length: bool,
    declared: int | Tensor | None,
    before: int = 0,
    before_B: Tensor | None = None,
) -> Places:
    """Default positions count real tokens from 0 and start again with each document.

    `before` tokens are in a cache already; `before_B` says how many of them were real where rows differ.
    """
    valid = None if mask_BT is None else mask_BT != 0
    ragged = valid is not None or before_B is not None
    start = first_of_document(segments_BT) if segments_BT is not None else None
    if positions is not None:
        pos = positions if positions.dim() == 2 else positions[None]
        if pos.shape[1] != tokens or pos.shape[0] not in (1, batch):
            raise InputError(f"positions: expected ({batch}, {tokens}) or ({tokens},), got {tuple(positions.shape)}")
    elif not ragged and start is None:
        pos = torch.arange(before, before + tokens, device=device)[None]
    else:
        real = torch.ones(batch, tokens, dtype=torch.long, device=device) if valid is None else valid.long()
        counted = real.cumsum(-1)
        earlier = 0 if start is None else (counted - real).gather(-1, start)
        seen = before if before_B is None else before_B[:, None]
        pos = (counted - earlier - 1 + seen).clamp(min=0)
    length = None
    if wants_length:
        length = _length(batch, tokens, device, valid, segments_BT, start, declared)
    return Places(
        pos_BT=pos,
        valid_BT=valid,
        document_BT=segments_BT,
        length_BT=length,
        plain=positions is None and not ragged and segments_BT is None,
    )


def first_of_document(segments_BT: Tensor) -> Tensor:
    """Column at which each token's document begins (ids never decrease along a row)."""
    ids = segments_BT.contiguous()
    return torch.searchsorted(ids, ids)


def _length(
    batch: int,
    tokens: int,
    device: torch.device,
    valid: Tensor | None,
    segments: Tensor | None,
    start: Tensor | None,
    declared: int | Tensor | None,
) -> Tensor:
    if isinstance(declared, int):
        return torch.full((1, 1), declared, device=device)
    if declared is not None:
        return declared.reshape(-1, 1)
    if valid is None and segments is None:
        return torch.full((1, 1), tokens, device=device)
    if valid is None:
        valid = torch.ones(batch, tokens, dtype=torch.bool, device=device)
    if segments is None or start is None:
        return valid.sum(-1, keepdim=True)
    ids = segments.contiguous()
    total = torch.nn.functional.pad(valid.long().cumsum(-1), (1, 0))
    return total.gather(-1, torch.searchsorted(ids, ids, right=True)) - total.gather(-1, start)
