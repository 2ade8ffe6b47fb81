"""Whether there is memory for what is asked: a clear answer before a system ends the program without one."""

from anyformer.errors import InputError
from anyformer.kernels.memory import free
from anyformer.model.model import Model

LITTLE = 2**16
"""Tokens of all rows that are not looked at more closely."""
BOOKS = 64
"""Bytes that a token takes beside keys and values: its id, where it is, whether it is real."""


def check_memory(model: Model, rows: int, total: int) -> None:
    """Refuse more tokens than the cache of a model can have memory for."""
    like = next(model.parameters())
    # A device of its own says itself that it is full, and may hold what this very call will use again.
    if like.device.type != "cpu" or rows * total <= LITTLE:
        return
    needed = model.spec.count().kv_bytes(total, str(like.dtype), rows) + BOOKS * rows * total
    left = free(like.device)
    if needed > left:
        raise InputError(
            f"max_new_tokens: {total:,} tokens in each of {rows} rows take {needed / 2**30:,.1f} GiB, and {left / 2**30:,.1f} are "
            "free; ask for fewer"
        )
