"""Attention weights as a matrix, which no fast kernel makes: from the queries and keys that a pass has used."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from anyformer.kernels.attention.reference import scores
from anyformer.kernels.attention_mask import AttentionMask
from anyformer.kernels.dispatch import AttentionArgs
from anyformer.kernels.precision import no_autocast
from anyformer.model.global_queries import at
from anyformer.parts.attention_metadata import GlobalQueries

ROOM = 1 << 24
"""Scores that are in memory at once, of all heads."""


def probabilities(q_BTHK: Tensor, k_BSGK: Tensor, terms: AttentionArgs, heads: Sequence[int]) -> Tensor:
    """Weights (B, chosen heads, T, S) as the mixer makes them, in promote(dtype, float32); some queries at a time."""
    batch, queries, all_heads, _ = q_BTHK.shape
    step = max(1, ROOM // max(1, batch * all_heads * k_BSGK.shape[1]))
    found: list[Tensor] = []
    with no_autocast(q_BTHK):
        for start in range(0, queries, step):
            rows = slice(start, min(start + step, queries))
            score = scores(q_BTHK[:, rows], k_BSGK, terms if step >= queries else some_queries(terms, rows))
            found.append(terms.mixer.weigh(score, terms.own)[:, list(heads)])
    return torch.cat(found, 2)


def some_queries(terms: AttentionArgs, rows: slice) -> AttentionArgs:
    """The same terms for some of the queries."""
    mask, added = terms.sight, terms.scores
    index = torch.arange(rows.start, rows.stop, device=mask.q.pos.device)[None]
    part = AttentionMask(
        mask.pattern, at(mask.q, index), mask.k, mask.valid_BS, heads=mask.heads, layer=mask.layer,
        shape="none" if mask.shape == "none" else "pattern",
    )  # fmt: skip
    if added is not None:
        table, side = added.table_BHTN, added.q_side_BTHE
        added = added._replace(
            table_BHTN=table if table is None or table.shape[2] == 1 else table[:, :, rows],
            q_side_BTHE=side if side is None else side[:, rows],
        )
    return terms._replace(sight=part, scores=added)


def with_global_rows(probs_BHTS: Tensor, found_BHNS: Tensor, rows: GlobalQueries) -> Tensor:
    """Weights with the rows of global queries, which have projections of their own, in their places."""
    batch, heads, few, keys = found_BHNS.shape
    places = torch.arange(few, device=found_BHNS.device)[None] if rows.index_BN is None else rows.index_BN
    index = places[:, None, :, None].expand(batch, heads, few, keys)
    chosen = rows.chosen_BN[:, None, :, None]
    return probs_BHTS.scatter(2, index, torch.where(chosen, found_BHNS, probs_BHTS.gather(2, index)))


def effective(mix: Callable[[Tensor], Tensor], v_BSGK: Tensor, heads: Sequence[int]) -> Tensor:
    """Weights (B, chosen heads, T, S) of a mixer that makes no matrix: what it answers if values say whose they are.

    Any mixer is linear in its values, so values that are 1 in one place and 0 elsewhere read its weights out, as many
    keys at a time as a value has numbers.
    """
    batch, keys, groups, dim = v_BSGK.shape
    found: list[Tensor] = []
    for start in range(0, keys, dim):
        few = min(dim, keys - start)
        place = torch.arange(few, device=v_BSGK.device)
        values = v_BSGK.new_zeros(batch, keys, groups, dim)
        values[:, start + place, :, place] = 1
        found.append(mix(values)[:, :, list(heads), :few])
    return torch.cat(found, -1).transpose(1, 2)
