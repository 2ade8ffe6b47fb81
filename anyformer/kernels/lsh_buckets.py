"""Buckets of LSH attention: queries hashed by random rotations, and tokens sorted by where they fell.

Every round hashes with rotations of its own and sorts the row once more.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from anyformer.kernels.trace_constants import constant_table

AT_ONCE = 1 << 21
"""Products of queries and rotations that are held at once."""


def bucket_counts(tokens: int, chunk: int, buckets: int | tuple[int, ...] | None) -> tuple[int, ...]:
    """Factors of the number of buckets; left open it is the power of 2 below two for each chunk of tokens."""
    if buckets is not None:
        return (buckets,) if isinstance(buckets, int) else buckets
    power = (2 * -(-int(tokens) // chunk)).bit_length() - 1
    return (2**power,) if 2**power <= 2 * chunk else (2 ** (power // 2), 2 ** (power - power // 2))


def _drawn(shape: tuple[int, ...], seed: int, dtype: torch.dtype) -> Tensor:
    # Drawn on the CPU, so that a seed means the same buckets on every device.
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def rotations(q_BTHK: Tensor, factors: tuple[int, ...], rounds: int, seed: int | None) -> Tensor:
    """(H,K,R,N): directions that queries are compared with; without a seed, drawn anew from torch's generator."""
    shape = (q_BTHK.shape[2], q_BTHK.shape[3], rounds, sum(factors) // 2)
    if seed is None:
        return torch.randn(shape, dtype=q_BTHK.dtype, device=q_BTHK.device)
    return constant_table(_drawn, (shape, seed, q_BTHK.dtype), q_BTHK.device)


@torch.no_grad()
def hashed(q_BTHK: Tensor, turns_HKRN: Tensor, factors: tuple[int, ...]) -> Tensor:
    """Buckets (B,H,R,T) of the queries in every round."""
    batch, tokens, heads, _ = q_BTHK.shape
    rounds = turns_HKRN.shape[2]
    step = max(1, AT_ONCE // (batch * heads * rounds * turns_HKRN.shape[3]))
    exact = torch.promote_types(q_BTHK.dtype, torch.float32)
    turns_HKN = turns_HKRN.flatten(2).to(exact)
    found: list[Tensor] = []
    for start in range(0, tokens, step):
        turned = (q_BTHK[:, start : start + step].transpose(1, 2).to(exact) @ turns_HKN).unflatten(3, (rounds, -1))
        bucket, unit, first = 0, 1, 0
        for factor in factors:
            some = turned[..., first : first + factor // 2]
            # The largest of x and -x, counted one behind the other.
            place = some.abs().argmax(-1, keepdim=True)
            bucket = bucket + unit * (place + (some.gather(-1, place) < 0) * (factor // 2)).squeeze(-1)
            unit, first = unit * factor, first + factor // 2
        found.append(torch.as_tensor(bucket))
    return torch.cat(found, 2).transpose(2, 3)


class Plan(NamedTuple):
    """Who stands where after sorting. L places hold every round's tokens, filled up to whole chunks."""

    token_BHL: Tensor
    """Which token of the row; anything where a place is empty."""
    place_BHRT: Tensor
    """Where each token went."""
    code_BHL: Tensor
    """The token's number in the row, or a number past all of them if it is padding; fp32, which counts up to 2^24."""
    low_BHL: Tensor | None
    high_BHL: Tensor | None
    """First and last code that a token may see, if documents limit it."""
    limit: int | None
    """Codes from here on are padding, if a query would see them otherwise."""
    causal: bool
    chunk: int
    looks: tuple[int, ...]
    """Which chunks a chunk sees: 0 is itself, -1 the one before."""

    @property
    def lead(self) -> int:
        """How many chunks before itself a chunk sees."""
        return -min(*self.looks, 0)

    @property
    def tail(self) -> int:
        """How many chunks after itself a chunk sees."""
        return max(*self.looks, 0)


@torch.no_grad()
def plan(
    buckets_BHRT: Tensor,
    count: int,
    chunk: int,
    looks: range,
    *,
    causal: bool,
    document_BT: Tensor | None = None,
    valid_BT: Tensor | None = None,
) -> Plan:
    """Sort tokens by document, bucket and place in the row, padding last; a chunk sees the chunks at `looks` from it."""
    batch, heads, rounds, tokens = buckets_BHRT.shape
    missing = -tokens % chunk
    room = tokens + missing
    at = torch.arange(tokens, device=buckets_BHRT.device)
    code = at[None] if valid_BT is None else torch.where(valid_BT, at, room + at)
    low = high = None
    group, kinds = buckets_BHRT, count
    offsets = list(looks)
    if document_BT is not None:
        change = torch.cat((torch.zeros_like(document_BT[:, :1]), document_BT.diff(dim=1).ne(0).long()), 1)
        rank = change.cumsum(1)
        real = torch.ones_like(rank) if valid_BT is None else valid_BT.long()
        size, whole = (_counted(rank, some) for some in (real, torch.ones_like(rank)))
        low = torch.where(change > 0, at, 0).cummax(1).values
        high = None if causal else low + whole - 1
        # A document within one chunk is not hashed: sorted as it is, it lies in two neighbouring chunks at most.
        small = (size <= chunk)[:, None, None]
        group = torch.where(small, 0, group) + (rank * count)[:, None, None]
        kinds = count * tokens
        ring = rounds * room // chunk
        for needed in (-1,) if causal else (-1, 1):
            if needed % ring not in {offset % ring for offset in offsets}:
                offsets.append(needed)
    if valid_BT is not None:
        group = torch.where(valid_BT[:, None, None], group, kinds)
    order, place = _sorted(group, kinds + 1)

    def fill(x: Tensor, value: int) -> Tensor:
        return F.pad(x, (0, missing), value=value).flatten(2)

    def sort(x_BT: Tensor, value: int) -> Tensor:
        spread = x_BT[:, None, None].expand(batch, heads, rounds, tokens)
        return fill(spread.gather(3, order), value).float()

    codes = fill(order, 2 * room).float() if valid_BT is None else sort(code, 2 * room)
    shift = room * torch.arange(rounds, device=at.device)[:, None]
    return Plan(
        token_BHL=fill(order, tokens - 1),
        place_BHRT=place + shift,
        code_BHL=codes,
        low_BHL=None if low is None else sort(low, 0),
        high_BHL=None if high is None else sort(high, -1),
        limit=room if not causal and document_BT is None and (missing or valid_BT is not None) else None,
        causal=causal,
        chunk=chunk,
        looks=tuple(offsets),
    )


def _counted(rank_BT: Tensor, some_BT: Tensor) -> Tensor:
    """How many of some tokens are in each token's document."""
    rows = max(rank_BT.shape[0], some_BT.shape[0])
    rank, some = rank_BT.expand(rows, -1), some_BT.expand(rows, -1)
    return torch.zeros_like(some).scatter_add(1, rank, some).gather(1, rank)


def _sorted(group: Tensor, kinds: int) -> tuple[Tensor, Tensor]:
    """Which token comes where, and where each token went, along the last dimension; equal groups keep their order."""
    rows, tokens = group.numel() // group.shape[-1], group.shape[-1]
    row = torch.arange(rows, device=group.device)[:, None]
    # One long sort of small numbers: torch has a radix sort for that, several times faster than sorting row by row.
    key = (row * kinds + group.reshape(rows, tokens)).flatten()
    order = torch.sort(key.int() if rows * kinds < 2**31 else key, stable=True).indices
    place = torch.empty_like(order).scatter_(0, order, torch.arange(order.shape[0], device=order.device))
    order, place = ((x.view(rows, tokens) - row * tokens).view_as(group) for x in (order, place))
    return order, place
