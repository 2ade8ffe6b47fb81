"""Attention in parts: pairs near each other, where a table of a position scheme matters, and those far apart, where it
adds the same number to all scores of a query.

A fused kernel adds the gradient of a table's entry once for each pair that picked it, and most pairs pick the last one:
they would wait for each other. Far pairs therefore go without the table, and their log-sum-exp is shifted instead.
"""

import dataclasses
from typing import Any, NamedTuple

import torch
from torch import Tensor

from anyformer.kernels.attention_mask import AttentionMask
from anyformer.kernels.dispatch import AttentionArgs
from anyformer.specs.axes import ScoreBias
from anyformer.specs.patterns import Pattern, Tokens

LEAST = 512
"""Fewer keys than this are not worth a second call."""


class Part(NamedTuple):
    """Some of the pairs, what is added to their scores one by one, and to all those of a query."""

    mask: AttentionMask
    scores: ScoreBias | None
    shift_BHT: Tensor | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Apart(Pattern):
    """low <= k - q <= high; None: no limit."""

    low: int | None = None
    high: int | None = None

    def __post_init__(self) -> None:
        self._flag(causal=self.high is not None and self.high <= 0)

    def allows(self, q: Tokens, k: Tokens) -> Any:
        gap = k.pos - q.pos
        if self.low is None:
            return gap <= self.high
        return gap >= self.low if self.high is None else (gap >= self.low) & (gap <= self.high)


def parts_of(terms: AttentionArgs) -> list[Part]:
    """One part with all terms; or near pairs and far ones."""
    scores, mask = terms.scores, terms.mask
    if scores is None or scores.table_BHTN is None or scores.reach is None:
        return [Part(mask, scores)]
    reach = scores.reach
    # A soft-cap bends the sum of score and table, so a far pair needs both.
    masks = [mask] if terms.softcap is not None else masks_of(mask, reach)
    if len(masks) == 1:
        return [Part(mask, _by_gap(scores, reach, mask))]
    rest = scores._replace(table_BHTN=None, pick=None, reach=None)
    others = None if all(term is None for term in rest) else rest
    # Far back the table holds what it holds for -reach, far ahead for reach.
    far = [Part(some, others, _shift(scores, -reach if some.pattern.causal else reach, mask)) for some in masks[1:]]
    return [Part(masks[0], _spread(scores, reach, mask)), *far]


def masks_of(mask: AttentionMask, reach: int | None) -> list[AttentionMask]:
    """The near pairs, then those far back and far ahead, if there are any; the mask itself if nothing is learned."""
    if reach is None or not torch.is_grad_enabled() or mask.keys < max(LEAST, 4 * reach):
        return [mask]
    horizon, ahead = mask.pattern.horizon(), mask.pattern.ahead()
    some = [Apart(low=1 - reach, high=reach - 1)]
    if horizon is None or horizon > reach:
        some.append(Apart(high=-reach))
    if ahead is None or ahead >= reach:
        some.append(Apart(low=reach))
    return [_narrowed(mask, pattern) for pattern in some]


def _narrowed(mask: AttentionMask, pattern: Pattern) -> AttentionMask:
    """The same mask with fewer pairs, made once for all layers."""
    both, sizes = mask.pattern & pattern, {"plain": mask.plain, "heads": mask.heads, "layer": mask.layer}
    return mask.once(pattern, lambda: AttentionMask(both, mask.q, mask.k, mask.valid_BS, **sizes))


def _by_gap(scores: ScoreBias, reach: int, mask: AttentionMask) -> ScoreBias:
    """The table with one entry for each gap from -reach to reach, where all queries share it: the kernel then needs no
    index of the scheme's own.
    """
    if scores.table_BHTN.shape[2] > 1:
        return scores
    index = _index_of(scores, torch.arange(-reach, reach + 1, device=mask.q.pos.device))

    def by_gap(gap: Any) -> Any:
        return gap.clamp(-reach, reach) + reach

    return scores._replace(table_BHTN=scores.table_BHTN[..., index], pick=by_gap)


def _spread(scores: ScoreBias, reach: int, mask: AttentionMask) -> ScoreBias:
    """The same for near pairs that learn: each query gets entries of its own, so that hardly two pairs add to one place.
    Gaps count modulo the number of entries. Pairs that are not near then hit any of them, with nothing to add.
    """
    causal = mask.pattern.causal
    width, after = (reach, 1) if causal else (2 * reach, reach)
    entry = torch.arange(width, device=mask.q.pos.device)
    index = _index_of(scores, torch.where(entry < after, entry, entry - width))
    table = scores.table_BHTN.float().index_select(3, index)
    table = table.expand(-1, -1, mask.queries, -1).contiguous()

    def modulo(gap: Any) -> Any:
        return gap % width if width & (width - 1) else gap & (width - 1)

    return scores._replace(table_BHTN=table, pick=modulo)


def _shift(scores: ScoreBias, gap: int, mask: AttentionMask) -> Tensor:
    """What the table holds for a gap, (B or 1, H, T or 1)."""
    index = _index_of(scores, torch.full((1,), gap, device=mask.q.pos.device))
    return scores.table_BHTN.index_select(3, index)[..., 0].float()


def _index_of(scores: ScoreBias, gaps: Tensor) -> Tensor:
    index: Any = scores.pick
    return index(gaps)
