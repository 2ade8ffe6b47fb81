"""LSH attention (Reformer): attention within chunks of tokens that were sorted by their buckets.

Queries are keys too, normalised. A chunk of sorted tokens sees itself and its neighbours, the rounds stand in a ring one
behind the other, and what they find is merged as one softmax. A token takes its own value only where it sees nothing
else. Order is that of the row; a document is a run. Buckets come from random rotations of the queries: every round
hashes with rotations of its own and sorts the row once more.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from anyformer.kernels.attention_mask import WHOLE, AttentionMask
from anyformer.kernels.trace_constants import constant_table

ALONE = -1e5
"""The score of a token with itself."""
LOG2E = math.log2(math.e)
"""Tiles use powers of 2: on a CPU torch.exp takes ten times as long where it underflows, torch.exp2 does not."""
HIDDEN = -1e25
"""Added to a score that may not count: far below ALONE, and finite if it is added many times."""
EPS = 1e-6
"""Below the length of a query that becomes a key."""
TILE, WIDE_TILE = 1 << 19, 1 << 26
"""Scores that are computed at once on a CPU, where they should stay in its cache, and elsewhere."""
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


def normalised(q: Tensor) -> Tensor:
    """Keys from queries: divided by their root mean square."""
    exact = torch.promote_types(q.dtype, torch.float32)
    wide = q.to(exact)
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS)).to(q.dtype)


def exact(
    q_BTHK: Tensor, k_BSHK: Tensor, v_BSHK: Tensor, mask: AttentionMask, *, scale: float, dropout: float
) -> Tensor:
    """Attention over every key that may be seen, a token's own only if there is no other. Keys are normalised."""
    k, v = k_BSHK.permute(0, 2, 3, 1), v_BSHK.transpose(1, 2)
    mine, theirs = mask.q.document, mask.k.document
    valid = None if mask.valid_BS is None else mask.valid_BS[:, None, None, :]
    step = max(1, _tile(q_BTHK) // max(1, math.prod(k.shape) // k.shape[2]))
    found: list[Tensor] = []
    for start in range(0, q_BTHK.shape[1], step):
        rows = slice(start, min(start + step, q_BTHK.shape[1]))
        q = q_BTHK[:, rows].transpose(1, 2) * scale
        own = mask.q.pos[:, None, rows, None] == mask.k.pos[:, None, None, :]
        if not isinstance(mine, int):
            own = own & (mine[:, None, rows, None] == theirs[:, None, None, :])
        own = own if valid is None else own & valid
        score = (q @ k).to(torch.promote_types(q.dtype, torch.float32))
        score = score.masked_fill(~mask.pairs(rows, WHOLE), -math.inf).masked_fill(own, ALONE)
        # A padded row may see nothing at all.
        weights = (score - score.amax(-1, keepdim=True).detach().clamp(min=2 * ALONE)).exp()
        weights = weights / weights.sum(-1, keepdim=True).clamp(min=1.0)
        found.append((F.dropout(weights, dropout).to(v.dtype) @ v).transpose(1, 2))
    return torch.cat(found, 1)


def attend(q_BTHK: Tensor, v_BTHK: Tensor, plan: Plan, *, scale: float, dropout: float = 0.0) -> Tensor:
    """(B,T,H,K): what every token finds in its chunks, all rounds together."""
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():
        # A compiler sees more in plain operations than in a function with a backward pass of its own.
        return _forward(q_BTHK, v_BTHK, plan, scale, dropout)[0]
    return cast("Tensor", _Attend.apply(q_BTHK, v_BTHK, plan, scale, dropout))


class _Rows(NamedTuple):
    """Some (row, head) pairs P, sorted: N chunks of C places. `ring` is N with neighbours repeated at both ends."""

    plan: Plan
    x_PNCK: Tensor
    v_ring: Tensor
    k_ring: Tensor
    code_ring: Tensor
    low_PNC: Tensor | None
    high_PNC: Tensor | None

    def tiles(self) -> Iterator[slice]:
        """Chunks whose scores are computed at once."""
        pairs, chunks, chunk, _ = self.x_PNCK.shape
        step = max(1, _tile(self.x_PNCK) // (pairs * chunk * chunk * len(self.plan.looks)))
        for start in range(0, chunks, step):
            yield slice(start, min(start + step, chunks))

    def seen(self, ring: Tensor, some: slice) -> Tensor:
        """What the chunks of a tile see of something."""
        return torch.cat([ring[:, some.start + n : some.stop + n] for n in self.starts()], 2)

    def starts(self) -> list[int]:
        return [look + self.plan.lead for look in self.plan.looks]

    def scores(self, k: Tensor, some: slice) -> Tensor:
        """(P,n,C,W) to base 2, far below all others where a token may not look or is the query itself."""
        score = (self.x_PNCK[:, some].flatten(0, 1) @ k.flatten(0, 1).transpose(1, 2)).unflatten(0, (k.shape[:2]))
        score = score.to(torch.promote_types(score.dtype, torch.float32))
        own = self.code_ring[:, some.start + self.plan.lead : some.stop + self.plan.lead, :, None]
        code = self.seen(self.code_ring, some)[:, :, None]
        # By how much a rule is broken, in whole numbers: several times faster on a CPU than comparing and filling.
        broken = (code - own + 1).clamp_(min=0) if self.plan.causal else 1 - (code - own).abs_().clamp_(max=1)
        score = score.add_(broken, alpha=HIDDEN)
        if self.plan.limit is not None:
            score = score.add_((code - (self.plan.limit - 1)).clamp_(min=0), alpha=HIDDEN)
        if self.low_PNC is not None:
            score = score.add_((self.low_PNC[:, some, :, None] - code).clamp_(min=0), alpha=HIDDEN)
        if self.high_PNC is not None:
            score = score.add_((code - self.high_PNC[:, some, :, None]).clamp_(min=0), alpha=HIDDEN)
        return score


def _tile(like: Tensor) -> int:
    return TILE if like.device.type == "cpu" and not torch.compiler.is_compiling() else WIDE_TILE


def _pairs_at_once(plan: Plan) -> Iterator[slice]:
    """(row, head) pairs that are sorted at once: one after the other where each is enough work."""
    batch, heads, length = plan.token_BHL.shape
    step = max(1, _tile(plan.token_BHL) // (length * plan.chunk * len(plan.looks)))
    for start in range(0, batch * heads, step):
        yield slice(start, min(start + step, batch * heads))


def _indices(plan: Plan, tokens: int) -> tuple[Tensor, Tensor]:
    """For each (row, head) pair: rows of (BTH,K) in sorted order (P,L), and places by token (P,R,T)."""
    batch, heads, length = plan.token_BHL.shape
    pair = torch.arange(batch * heads, device=plan.token_BHL.device)[:, None]
    index = (plan.token_BHL.view(-1, length) + pair // heads * tokens) * heads + pair % heads
    return index, plan.place_BHRT.flatten(0, 1)


def _sort(x_BTHK: Tensor, index_PL: Tensor, chunk: int) -> Tensor:
    rows = x_BTHK.reshape(-1, x_BTHK.shape[3]).index_select(0, index_PL.flatten())
    return rows.view(index_PL.shape[0], -1, chunk, x_BTHK.shape[3])


def _unsort(x: Tensor, place_PRT: Tensor) -> Tensor:
    """(P,R,T,...) from sorted (P,L,...)."""
    pairs, length = x.shape[:2]
    pick = place_PRT + length * torch.arange(pairs, device=x.device)[:, None, None]
    return x.flatten(0, 1).index_select(0, pick.flatten()).view(*place_PRT.shape, *x.shape[2:])


def _ring(x: Tensor, plan: Plan) -> Tensor:
    """Chunks (P,N,...) with those at the end repeated before the first, and the other way round."""
    index = torch.arange(-plan.lead, x.shape[1] + plan.tail, device=x.device) % x.shape[1]
    return x.index_select(1, index) if plan.lead or plan.tail else x


def _unring(x: Tensor, plan: Plan) -> Tensor:
    """The way back for gradients: what neighbours got is added to the chunks that they are."""
    chunks = x.shape[1] - plan.lead - plan.tail
    index = torch.arange(-plan.lead, chunks + plan.tail, device=x.device) % chunks
    return torch.zeros_like(x[:, :chunks]).index_add_(1, index, x)


def _rows(q: Tensor, v: Tensor, plan: Plan, index_PL: Tensor, pairs: slice, scale: float) -> _Rows:
    def cut(x_BHL: Tensor) -> Tensor:
        return x_BHL.flatten(0, 1)[pairs].unflatten(1, (-1, plan.chunk))

    x, v = (_sort(y, index_PL[pairs], plan.chunk) for y in (q, v))
    low, high = (None if limit is None else cut(limit) for limit in (plan.low_BHL, plan.high_BHL))
    keys = _ring(normalised(x) * (scale * LOG2E), plan)
    return _Rows(plan, x, _ring(v, plan), keys, _ring(cut(plan.code_BHL), plan), low, high)


def _forward(q: Tensor, v: Tensor, plan: Plan, scale: float, dropout: float) -> tuple[Tensor, Tensor, list[Tensor]]:
    """The answer (B,T,H,K), the log to base 2 of the sum of a token's weights (P,T), and what dropout kept of each tile."""
    batch, tokens, heads, dim = q.shape
    index, places = _indices(plan, tokens)
    out: list[Tensor] = []
    logs: list[Tensor] = []
    kept: list[Tensor] = []
    for pairs in _pairs_at_once(plan):
        rows = _rows(q, v, plan, index, pairs, scale)
        found: list[Tensor] = []
        totals: list[Tensor] = []
        for some in rows.tiles():
            score = rows.scores(rows.seen(rows.k_ring, some), some)
            top = score.detach().amax(-1, keepdim=True).clamp_(min=ALONE)
            weights = score.sub_(top).exp2_()
            total = weights.sum(-1, keepdim=True)
            # A token that sees nothing else weighs 0 here, and is given its own value below.
            total = total + (total == 0)
            if dropout > 0:
                kept.append(torch.rand_like(weights) >= dropout)
                weights = weights * kept[-1] / (1 - dropout)
            values = rows.seen(rows.v_ring, some)
            mean = (weights.to(values.dtype) @ values) / total.to(values.dtype)
            found.append(mean)
            totals.append((top + total.log2()).squeeze(-1))
        rounds = _unsort(torch.cat(found, 1).flatten(1, 2), places[pairs])
        log = _unsort(torch.cat(totals, 1).flatten(1, 2), places[pairs])
        top = log.amax(1, keepdim=True)
        whole = top + (log - top).exp2().sum(1, keepdim=True).log2()
        if rounds.shape[1] > 1:
            # What each round found, by its share of all weights.
            rounds = rounds * (log - whole).exp2().to(rounds.dtype)[..., None]
        out.append(rounds.sum(1))
        logs.append(whole.squeeze(1))
    answer, log_PT = torch.cat(out).view(batch, heads, tokens, dim).transpose(1, 2), torch.cat(logs)
    alone = _alone(log_PT, q)
    if _looks(q):
        answer[alone] = v[alone]
    else:
        answer = torch.where(alone[..., None], v, answer)
    return answer, log_PT, kept


def _alone(log_PT: Tensor, q: Tensor) -> Tensor:
    """(B,T,H): which tokens saw nothing but themselves in any round."""
    batch, tokens, heads, _ = q.shape
    return (log_PT < ALONE / 2).view(batch, heads, tokens).transpose(1, 2)


def _looks(like: Tensor) -> bool:
    """Whether it pays to find the few tokens that are alone instead of going through all of them."""
    return like.device.type == "cpu" and not torch.compiler.is_compiling()


class _Attend(torch.autograd.Function):
    """The tiles of scores live for one step, and are computed once more in the backward pass."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, v: Tensor, plan: Plan, scale: float, dropout: float) -> Tensor:
        answer, log_PT, kept = _forward(q, v, plan, scale, dropout)
        ctx.save_for_backward(q, v, answer, log_PT, *kept)
        ctx.rest = plan, scale, dropout
        return answer

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        q, v, answer, log_PT, *kept = ctx.saved_tensors
        plan, scale, dropout = ctx.rest
        grad, chunk = grads[0], plan.chunk
        batch, tokens, heads, dim = q.shape
        index, places = _indices(plan, tokens)
        length, wide = plan.token_BHL.shape[2], log_PT.dtype
        room = length // plan.place_BHRT.shape[2]
        # All rounds are one softmax over what they saw, so the output itself is the mean to compare with.
        along = (grad.to(wide) * answer.to(wide)).sum(-1).flatten()
        grads_q: list[Tensor] = []
        grads_v: list[Tensor] = []
        for pairs in _pairs_at_once(plan):
            rows = _rows(q, v, plan, index, pairs, scale)
            above = _sort(grad, index[pairs], chunk)
            mean = along.index_select(0, index[pairs].flatten()).view(above.shape[:3])
            log = log_PT[pairs].gather(1, plan.token_BHL.flatten(0, 1)[pairs])
            if room > tokens:
                # Empty places weigh nothing.
                log = log.masked_fill(torch.arange(length, device=q.device) % room >= tokens, math.inf)
            log = log.view(above.shape[:3])
            grad_x, grad_k, grad_v = (torch.zeros_like(y) for y in (rows.x_PNCK, rows.k_ring, rows.v_ring))
            for some in rows.tiles():
                k, values = rows.seen(rows.k_ring, some), rows.seen(rows.v_ring, some)
                weights = rows.scores(k, some).sub_(log[:, some, :, None]).exp2_()
                onto = (above[:, some] @ values.transpose(2, 3)).to(wide)
                used = weights
                if dropout > 0:
                    keep = kept.pop(0) / (1 - dropout)
                    onto, used = onto * keep, weights * keep
                for_values = used.to(v.dtype).transpose(2, 3) @ above[:, some]
                for_scores = onto.sub_(mean[:, some, :, None]).mul_(weights).to(q.dtype)
                grad_x[:, some] = for_scores @ k
                for_keys = for_scores.transpose(2, 3) @ rows.x_PNCK[:, some]
                for n, start in enumerate(rows.starts()):
                    here = slice(some.start + start, some.stop + start)
                    grad_k[:, here] += for_keys[:, :, n * chunk : (n + 1) * chunk]
                    grad_v[:, here] += for_values[:, :, n * chunk : (n + 1) * chunk]
            grad_x = grad_x.div_(LOG2E) + _through_norm(rows.x_PNCK, _unring(grad_k, plan) * scale)
            grads_q.append(_unsort(grad_x.flatten(1, 2), places[pairs]).sum(1))
            grads_v.append(_unsort(_unring(grad_v, plan).flatten(1, 2), places[pairs]).sum(1))
        grad_q, grad_v = (torch.cat(g).view(batch, heads, tokens, dim).transpose(1, 2) for g in (grads_q, grads_v))
        alone = _alone(log_PT, q)
        if _looks(q):
            grad_v[alone] += grad[alone]
        else:
            grad_v = grad_v + grad * alone[..., None]
        return grad_q, grad_v, None, None, None


def _through_norm(x: Tensor, grad: Tensor) -> Tensor:
    """Gradient of queries from that of keys."""
    exact = torch.promote_types(x.dtype, torch.float32)
    wide, up = x.to(exact), grad.to(exact)
    inverse = torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS)
    along = (wide * up).mean(-1, keepdim=True)
    return (inverse * up - wide * inverse.pow(3) * along).to(x.dtype)
