"""torch's flex_attention on CUDA: patterns, documents, biases, soft-caps and sinks inside one fused kernel.

A pattern becomes a block mask (which tiles are skipped, which need no test) and a predicate for the tiles between; a
position scheme's terms become a function of one score. Both close over tensors, so new rows, boundaries and values
reuse what was compiled; sizes inside a pattern are constants of its kernel, which all layers of that pattern share.

Attention may go in parts: pairs near each other, where a table of a position scheme matters, and those far apart, where
it adds the same number to all scores of a query. A fused kernel adds the gradient of a table's entry once for each pair
that picked it, and most pairs pick the last one: they would wait for each other. Far pairs therefore go without the
table, and their log-sum-exp is shifted instead.
"""

import functools
import types
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.flex_attention import AuxRequest, flex_attention

from anyformer.kernels.attention import tiled_flash
from anyformer.kernels.attention.flex_blocks import BLOCK, block_mask, in_order, places, rows_differ
from anyformer.kernels.attention.score_bias import table_index
from anyformer.kernels.attention_mask import AttentionMask
from anyformer.kernels.dispatch import AttentionArgs, Kernel, KernelRequest, why_no_fused_softmax
from anyformer.specs.axes import ScoreBias
from anyformer.specs.patterns import Pattern, Tokens

SMALL_DIM = 64
"""Heads up to this width go backward in smaller tiles."""
LEAST_DIM = 16
"""The narrowest head that the kernel multiplies; narrower ones are filled up with zeros."""
BACKEND = "inductor"
KINDS = 512
"""Kinds of calls whose compiled code is kept."""
RENEWALS = 4
"""How often code of one kind of call is compiled afresh when it has more variants than the compiler keeps."""
LEAST_KEYS = 512
"""Fewer keys than this are not worth a second call."""


def why_not(request: KernelRequest) -> str | None:
    """It serves softmax over whatever can be said of one score, where plain SDPA can't."""
    if request.device != "cuda":
        return f"its fused kernels with gradients run on cuda, not {request.device}"
    if request.phase == "decode":
        return "it is made for many queries at once, not for one"
    if request.cached:
        return "it compiles for each pattern, which takes longer than a prompt does without it"
    if (reason := why_no_fused_softmax(request)) is not None:
        return reason
    if request.products:
        return "a product of further vectors in each score does not fit its tiles"
    if request.learned_bias and request.deterministic:
        return "it adds up the gradient of a position bias in any order, and the same bits are asked for each time"
    sinks = len(request.mixer.weights(1)) > 0
    if request.shape != "pattern" and not (request.bias or request.softcap or sinks):
        return "plain causal or full attention is faster in torch's SDPA"
    return None


class Part(NamedTuple):
    """Some of the pairs, what is added to their scores one by one, and to all those of a query."""

    mask: AttentionMask
    scores: ScoreBias | None
    shift_BHT: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
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
    parts = [Part(masks[0], _spread(scores, reach, mask))]
    for some in masks[1:]:
        # Far back the table holds what it holds for -reach, far ahead for reach.
        gap = torch.full((1,), -reach if some.pattern.causal else reach, device=mask.q.pos.device)
        shift_BHT = scores.table_BHTN.index_select(3, table_index(scores, gap))[..., 0].float()
        parts.append(Part(some, others, shift_BHT))
    return parts


def masks_of(mask: AttentionMask, reach: int | None) -> list[AttentionMask]:
    """The near pairs, then those far back and far ahead, if there are any; the mask itself if nothing is learned."""
    if reach is None or not torch.is_grad_enabled() or mask.keys < max(LEAST_KEYS, 4 * reach):
        return [mask]
    horizon, ahead = mask.pattern.horizon(), mask.pattern.ahead()
    some = [Apart(low=1 - reach, high=reach - 1)]
    if horizon is None or horizon > reach:
        some.append(Apart(high=-reach))
    if ahead is None or ahead >= reach:
        some.append(Apart(low=reach))

    def narrowed(pattern: Pattern) -> AttentionMask:
        both, sizes = mask.pattern & pattern, {"plain": mask.plain, "heads": mask.heads, "layer": mask.layer}
        return mask.once(pattern, lambda: AttentionMask(both, mask.q, mask.k, mask.valid_BS, **sizes))

    return [narrowed(pattern) for pattern in some]


def _by_gap(scores: ScoreBias, reach: int, mask: AttentionMask) -> ScoreBias:
    """A table that all queries share with one entry for each gap from -reach to reach: no index of the scheme's own."""
    if scores.table_BHTN.shape[2] > 1:
        return scores
    index = table_index(scores, torch.arange(-reach, reach + 1, device=mask.q.pos.device))

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
    index = table_index(scores, torch.where(entry < after, entry, entry - width))
    table = scores.table_BHTN.float().index_select(3, index)
    table = table.expand(-1, -1, mask.queries, -1).contiguous()

    def modulo(gap: Any) -> Any:
        return gap % width if width & (width - 1) else gap & (width - 1)

    return scores._replace(table_BHTN=table, pick=modulo)


class Call(NamedTuple):
    """One fused call: what becomes of scores, which tiles, what is added to all scores of a query, and hints."""

    changed: Callable[..., Tensor] | None
    blocks: Any
    shift_BHT: Tensor | None
    options: Any


def options_of(part: Part, dim: int, *, short: bool) -> dict[str, Any]:
    """What the kernel may rely on, and sizes of tiles that were measured to be faster than its own."""
    mask = part.mask
    options: dict[str, Any] = {}
    if mask.shape != "pattern":
        # The first tile that is read has a key for every query. At the far edge of a window it has none for some, so
        # that it does not help that they see keys of later tiles.
        options["ROWS_GUARANTEED_SAFE"] = True
        if mask.queries % BLOCK == 0 and mask.keys % BLOCK == 0:
            options["BLOCKS_ARE_CONTIGUOUS"] = True
    if short and dim <= SMALL_DIM:
        options |= {f"bwd_BLOCK_{name}": 64 for name in ("M1", "N1", "M2", "N2")} | {"bwd_num_warps": 4}
    if part.scores is not None and part.scores.table_BHTN is not None:
        # A tile of look-ups is as large as a tile of scores: a third one in flight does not fit beside keys and values.
        options["num_stages"] = 2
    return options


def prepare(mask: AttentionMask, reach: int | None) -> None:
    """Block masks, so that layers which are compiled one by one find them."""
    for some in masks_of(mask, reach):
        block_mask(some)


def run(q_BTHK: Tensor, k_BSGK: Tensor, v_BSGK: Tensor, terms: AttentionArgs) -> Tensor:
    """One fused call, or one for the pairs near each other and one for those far apart."""
    dim, short = q_BTHK.shape[3], q_BTHK.dtype != torch.float32
    missing = LEAST_DIM - dim
    q, k, v = ((x if missing <= 0 else F.pad(x, (0, missing))).transpose(1, 2) for x in (q_BTHK, k_BSGK, v_BSGK))
    parts = parts_of(terms)
    calls: list[Call] = []
    for part in parts:
        changed = score_mod(part.scores, part.mask, terms.softcap, short=short)
        calls.append(Call(changed, block_mask(part.mask), part.shift_BHT, options_of(part, dim, short=short) or None))
    given = q, k, v, calls, terms.scale, terms.own.get("sink_H")
    if torch.compiler.is_compiling():
        out_BHTK = _attend(*given)
    else:
        rows_differ(q, k, v, *(c.shift_BHT for c in calls))
        found = _kind(_key(parts, terms, q, k), _mode(parts, q, k, v)).attend(*given)
        if found is None:
            return tiled_flash.run(q_BTHK, k_BSGK, v_BSGK, terms)
        out_BHTK = found
    return out_BHTK[..., :dim].transpose(1, 2)


def _attend(q: Tensor, k: Tensor, v: Tensor, calls: list[Call], scale: float, sink_H: Tensor | None) -> Tensor:
    gqa = q.shape[1] != k.shape[1]
    if len(calls) == 1 and sink_H is None:
        only = calls[0]
        return flex_attention(q, k, v, only.changed, only.blocks, scale, gqa, kernel_options=only.options)
    outs: list[Tensor] = []
    sums: list[Tensor] = []
    for changed, blocks, shift_BHT, options in calls:
        out, aux = flex_attention(
            q, k, v, changed, blocks, scale, gqa, kernel_options=options, return_aux=AuxRequest(lse=True)
        )
        lse_BHT: Any = aux.lse
        outs.append(out)
        sums.append(lse_BHT if shift_BHT is None else lse_BHT + shift_BHT)
    # exp(sum of a part) / (exp of all sums and of the sink): the share of a part. The greatest is taken out first; a
    # query that sees nothing has -inf everywhere, and takes nothing. The greatest weighs 1, or less by a rounding.
    ends = sums if sink_H is None else [*sums, sink_H.float()[:, None].expand_as(sums[0])]
    top = functools.reduce(torch.maximum, ends).detach().clamp(min=torch.finfo(torch.float32).min)
    shares = [torch.exp(x - top) for x in ends]
    total = functools.reduce(torch.add, shares).clamp(min=0.5)
    mixed = functools.reduce(torch.add, [o * (x / total)[..., None] for o, x in zip(outs, shares, strict=False)])
    return mixed.to(q.dtype)


def _key(parts: list[Part], terms: AttentionArgs, q: Tensor, k: Tensor) -> tuple[Any, ...]:
    """What one compiled function serves: everything about a call but its sizes and values."""
    kinds = []
    for part in parts:
        mask, scores = part.mask, part.scores
        given = scores is not None and tuple(term is None for term in scores)
        options = tuple(options_of(part, q.shape[3], short=q.dtype != torch.float32).items())
        kinds.append((mask.pattern, mask.layer if mask.pattern.per_layer else 0, in_order(mask), given, options))
    heads = q.shape[1], k.shape[1], q.shape[3], q.dtype
    return *kinds, terms.softcap, terms.scale, bool(terms.own), *heads


def _mode(parts: list[Part], q: Tensor, k: Tensor, v: Tensor) -> tuple[Any, ...]:
    """What the compiler makes another variant for: gradients, where sizes are 1, and what is on for the whole thread."""
    sizes = q.shape[0] == 1, q.shape[2] == 1, k.shape[2] == 1, q.shape[2] <= BLOCK, k.shape[2] <= BLOCK
    rows = tuple((p.mask.q.pos.shape[0] == 1, p.mask.k.pos.shape[0] == 1, p.mask.valid_BS is None) for p in parts)
    apart = tuple(isinstance(p.mask.q.document, Tensor) for p in parts)
    learns = tuple(x.requires_grad for x in (q, k, v)), torch.is_grad_enabled()
    kind = q.device.type
    casts = torch.is_autocast_cache_enabled(), torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
    return sizes, rows, apart, learns, casts, torch.is_inference_mode_enabled()


class _Compiled:
    """The compiled code of one kind of call in one mode.

    A code object may have a few compiled variants, and then the compiler refuses to make another: in a process with many
    models that is no sign of a fault. So every kind and mode has a code object of its own, which is renewed when it is
    full; and where that does not help, another kernel serves.
    """

    def __init__(self, name: str) -> None:
        # What the compiler learned about sizes that change goes by the name, so modes of one kind share it.
        self.name, self.renewed = name, 0
        self.function = self._fresh()

    def _fresh(self) -> Callable[..., Tensor]:
        code = _attend.__code__.replace(co_name=self.name)
        return torch.compile(types.FunctionType(code, globals(), self.name), backend=BACKEND, fullgraph=True)

    def attend(self, *given: Any) -> Tensor | None:
        """None if the compiler does not serve this call."""
        from torch._dynamo.exc import FailOnRecompileLimitHit

        while self.renewed <= RENEWALS:
            try:
                return self.function(*given)
            except FailOnRecompileLimitHit:
                self.renewed += 1
                self.function = self._fresh()
        if self.renewed == RENEWALS + 1:
            self.renewed += 1
            warnings.warn(
                f"flex_attention was compiled for more variants of one call than torch keeps, {RENEWALS} times over; the "
                "tiled kernel serves it from here on, which is slower (TORCH_LOGS=recompiles says what differs)",
                stacklevel=2,
            )
        return None


@functools.lru_cache(maxsize=KINDS)
def _kind(key: tuple[Any, ...], mode: tuple[Any, ...]) -> _Compiled:
    return _Compiled(f"flex_{abs(hash(key)):x}")


def score_mod(
    scores: ScoreBias | None, mask: AttentionMask, softcap: float | None, *, short: bool
) -> Callable[..., Tensor] | None:
    """What becomes of one scaled score: the terms added in fp32, then the soft-cap; None if nothing does."""
    if scores is None and softcap is None:
        return None
    given = scores or ScoreBias()
    terms = (given.slope_H, given.table_BHTN, given.column_BHS)
    slope_H, table, column = (None if term is None else term.float() for term in terms)
    index = given.pick
    q_pos, k_pos = places(mask)
    by_row, by_query = table is not None and table.shape[0] > 1, table is not None and table.shape[2] > 1
    column_by_row = column is not None and column.shape[0] > 1
    rows_differ(table, column)

    def changed(score: Tensor, b: Tensor, h: Tensor, t: Tensor, s: Tensor) -> Tensor:
        if slope_H is not None or table is not None:
            gap = k_pos(b, s) - q_pos(b, t)
            if slope_H is not None:
                score = score + slope_H[h] * gap.abs()
            if table is not None and index is not None:
                score = score + table[b if by_row else 0, h, t if by_query else 0, index(gap)]
        if column is not None:
            score = score + column[b if column_by_row else 0, h, s]
        return score if softcap is None else capped(score, softcap, short=short)

    return changed


def capped(score: Tensor, softcap: float, *, short: bool) -> Tensor:
    """The soft-cap c tanh(x / c); for 16-bit values through a sigmoid, which takes fewer instructions."""
    if short:
        return softcap * (2 * torch.sigmoid(score * (2 / softcap)) - 1)
    return softcap * torch.tanh(score / softcap)


KERNEL = Kernel("flex", why_not, run, prepare)
