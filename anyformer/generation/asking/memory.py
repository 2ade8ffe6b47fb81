"""Whether there is memory for what is asked: a clear answer before a system ends the program without one."""

from __future__ import annotations

import os

import torch

from anyformer.errors import InputError
from anyformer.model.models import Model

LITTLE = 2**16
"""Tokens of all rows that are not looked at more closely."""
BOOKS = 64
"""Bytes that a token takes beside keys and values: its id, where it is, whether it is real."""


def check_memory(model: Model, rows: int, total: int) -> None:
    """Refuse more tokens than the cache of a model can have memory for."""
    if rows * total <= LITTLE:
        return
    like = next(model.parameters())
    needed = model.spec.count().kv_bytes(total, str(like.dtype), rows) + BOOKS * rows * total
    left = memory_left(like.device)
    if left is not None and needed > left:
        raise InputError(
            f"max_new_tokens: {total:,} tokens in each of {rows} rows take {needed / 2**30:,.1f} GiB, and {left / 2**30:,.1f} are "
            "free; ask for fewer"
        )


def memory_left(device: torch.device) -> int | None:
    """Bytes that are free on a device; None where nobody can say."""
    if device.type == "cuda":
        return (
            torch.cuda.mem_get_info(device)[0]
            + torch.cuda.memory_reserved(device)
            - torch.cuda.memory_allocated(device)
        )
    if device.type != "cpu" or "SC_PHYS_PAGES" not in os.sysconf_names:
        return None
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
