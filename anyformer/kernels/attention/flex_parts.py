"""Attention in parts: pairs near each other, where a table of a position scheme matters, and those far apart, where it
adds the same number to all scores of a query.

A fused kernel adds the gradient of a table's entry once for each pair that picked it, and most pairs pick the last one:
they would wait for each other. Far pairs therefore go without the table, and their log-sum-exp is shifted instead.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import torch
from torch import Tensor

from anyformer.kernels.attention_mask import AttentionMask
from anyformer.kernels.dispatch import AttentionArgs
from anyformer.specs.axes import ScoreBias
from anyformer.specs.patterns import Both, Pattern, Tokens

LEAST = 512
"""Fewer keys than this are not worth a second call."""


class Part(NamedTuple):
    """Some of the pairs, what is added to their scores one by one, and to all those of a query."""

    sight: AttentionMask
    scores: ScoreBias | None
    shift_BHT: Tensor | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Near(Pattern):
    """|q - k| < least."""

    least: int

    def allows(self, q: Tokens, k: Tokens) -> Any:
        return (q.pos - k.pos < self.least) & (k.pos - q.pos < self.least)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Back(Pattern):
    """q - k >= least."""

    causal = True
    least: int

    def allows(self, q: Tokens, k: Tokens) -> Any:
        return q.pos - k.pos >= self.least


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ahead(Pattern):
    """k - q >= least."""

    least: int

    def allows(self, q: Tokens, k: Tokens) -> Any:
        return k.pos - q.pos >= self.least


def parts_of(terms: AttentionArgs) -> list[Part]:
    """One part with all terms; or near pairs and far ones."""
    scores, sight = terms.scores, terms.sight
    if scores is None or scores.table_BHTN is None or scores.reach is None:
        return [Part(sight, scores)]
    reach = scores.reach
    # A soft-cap bends the sum of score and table, so a far pair needs both.
    sights = [sight] if terms.softcap is not None else sights_of(sight, reach)
    if len(sights) == 1:
        return [Part(sight, _by_gap(scores, reach, sight))]
    rest = scores._replace(table_BHTN=None, pick=None, reach=None)
    others = None if all(term is None for term in rest) else rest
    far = [Part(some, others, _shift(scores, _side(some) * reach, sight)) for some in sights[1:]]
    return [Part(sights[0], _spread(scores, reach, sight)), *far]


def sights_of(sight: AttentionMask, reach: int | None) -> list[AttentionMask]:
    """The near pairs, then those far back and far ahead, if there are any; the sight itself if nothing is learned."""
    if reach is None or not torch.is_grad_enabled() or sight.keys < max(LEAST, 4 * reach):
        return [sight]
    horizon, ahead = sight.pattern.horizon(), sight.pattern.ahead()
    some: list[Pattern] = [Near(least=reach)]
    if horizon is None or horizon > reach:
        some.append(Back(least=reach))
    if ahead is None or ahead >= reach:
        some.append(Ahead(least=reach))
    return [_narrowed(sight, pattern) for pattern in some]


def _side(sight: AttentionMask) -> int:
    """-1 for keys far back, 1 for keys far ahead."""
    pattern = sight.pattern
    return -1 if isinstance(pattern, Both) and isinstance(pattern.second, Back) else 1


def _narrowed(sight: AttentionMask, pattern: Pattern) -> AttentionMask:
    """The same sight with fewer pairs, made once for all layers."""
    both = sight.pattern & pattern
    return sight.once(
        pattern,
        lambda: AttentionMask(
            both, sight.q, sight.k, sight.valid_BS, plain=sight.plain, heads=sight.heads, layer=sight.layer
        ),
    )


def _by_gap(scores: ScoreBias, reach: int, sight: AttentionMask) -> ScoreBias:
    """The table with one entry for each gap from -reach to reach, where all queries share it: the kernel then needs no
    index of the scheme's own.
    """
    if scores.table_BHTN.shape[2] > 1:
        return scores
    index = _index_of(scores, torch.arange(-reach, reach + 1, device=sight.q.pos.device))

    def by_gap(gap: Any) -> Any:
        return gap.clamp(-reach, reach) + reach

    return scores._replace(table_BHTN=scores.table_BHTN[..., index], pick=by_gap)


def _spread(scores: ScoreBias, reach: int, sight: AttentionMask) -> ScoreBias:
    """The same for near pairs that learn: each query gets entries of its own, so that hardly two pairs add to one place.
    Gaps count modulo the number of entries. Pairs that are not near then hit any of them, with nothing to add.
    """
    causal = sight.pattern.causal
    width, after = (reach, 1) if causal else (2 * reach, reach)
    entry = torch.arange(width, device=sight.q.pos.device)
    index = _index_of(scores, torch.where(entry < after, entry, entry - width))
    table = scores.table_BHTN.float().index_select(3, index)
    table = table.expand(-1, -1, sight.queries, -1).contiguous()

    def modulo(gap: Any) -> Any:
        return gap % width if width & (width - 1) else gap & (width - 1)

    return scores._replace(table_BHTN=table, pick=modulo)


def _shift(scores: ScoreBias, gap: int, sight: AttentionMask) -> Tensor:
    """What the table holds for a gap, (B or 1, H, T or 1)."""
    index = _index_of(scores, torch.full((1,), gap, device=sight.q.pos.device))
    return scores.table_BHTN.index_select(3, index)[..., 0].float()


def _index_of(scores: ScoreBias, gaps: Tensor) -> Tensor:
    index: Any = scores.pick
    return index(gaps)
