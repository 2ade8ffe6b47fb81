"""The Triton kernels of attention to pages. Imported only where Triton is: see `paged_cuda`, which starts them.

A program takes one row, one key head and a stretch of the row's slots. All queries of the row and all heads of the group
are rows of its matrix products, so that a key is read once for all of them. It leaves (highest score, sum of weights,
weighted values) for its stretch, and a second kernel merges the stretches of each query in their order. Scores and sums
are fp32 and in powers of two. Where the device can, a kernel is started while the one before it ends (PDL).
"""
# Triton is not installed where there is no CUDA device, and its kernels are no Python that a type checker could follow.
# pyright: reportMissingImports=false, reportIndexIssue=false, reportPossiblyUnboundVariable=false

import torch
import triton
import triton.language as tl

from anyformer.kernels.triton_launch import one_at_a_time, pdl_options

LOG2E = tl.constexpr(1.4426950408889634)
TILE = 4096
"""Numbers that the merge holds at once."""


@triton.jit
def held(slot, count, recent, FIRST: tl.constexpr, RING: tl.constexpr):
    """The number of the token in a slot, negative if there is none (as CachePolicy.held, without columns)."""
    number = slot
    if RING:
        newest = count - 1 - FIRST
        # C rounds a quotient towards 0.
        turn = (newest - (slot - FIRST)) % recent
        turn = tl.where(turn < 0, turn + recent, turn)
        number = FIRST + newest - turn
        number = tl.where(number >= FIRST, number, -1)
        if FIRST > 0:
            number = tl.where(slot < FIRST, slot, number)
    return number


@triton.jit
def shared_out(b, count, token, fits_row, begins, ends, range_row, recent, window, least, most, few, T: tl.constexpr,
               BLOCK: tl.constexpr, RING: tl.constexpr, HELD_FIRST: tl.constexpr, WINDOW: tl.constexpr,
               FIRST: tl.constexpr, RANGED: tl.constexpr):  # fmt: skip
    """First and last token that each query sees, the slots that any of them needs, and how many for how many programs."""
    low = 0
    high = count
    begin = token
    end = token
    if RING:
        high = tl.minimum(count, HELD_FIRST + recent)
    if RANGED:
        begin = tl.load(begins + b * range_row + token, mask=fits_row, other=1).to(tl.int32)
        end = tl.load(ends + b * range_row + token, mask=fits_row, other=0).to(tl.int32)
        if not RING:
            low = tl.maximum(tl.min(tl.where(fits_row, begin, 2147483647), 0), 0) // BLOCK * BLOCK
    elif WINDOW and FIRST == 0 and not RING:
        # The queries are among the row's last T tokens.
        low = tl.maximum(count - T - window + 1, 0) // BLOCK * BLOCK
    length = tl.maximum(high - low, 0)
    # Twice as many keys to a program as soon as there are four times as many: a few programs for a short row, which the
    # merge waits for, and not too much left to merge of a long one.
    stretch = tl.where(length > few * least, 2, 1)
    stretch = tl.where(length > 4 * few * least, 4, stretch)
    stretch = tl.where(length > 16 * few * least, 8, stretch)
    stretch = tl.maximum((length + most * least - 1) // (most * least), stretch) * least
    used = tl.maximum((length + stretch - 1) // stretch, 1)
    return begin, end, low, high, stretch, used


@triton.jit
def finish(top, total, mixed, out, row, fits_row, dims, fits_dim, sink, out_row, REP: tl.constexpr, head,
           heads, DIM: tl.constexpr, SINK: tl.constexpr):  # fmt: skip
    """Weighted values over the sum of weights, with the sink in it; a query that sees nothing gets 0."""
    h = head * REP + row % REP
    if SINK:
        logit = tl.load(sink + h, mask=fits_row, other=0.0).to(tl.float32) * LOG2E
        highest = tl.maximum(top, logit)
        share = tl.exp2(top - highest)
        total = total * share + tl.exp2(logit - highest)
        mixed = mixed * share[:, None]
    mixed = mixed / tl.where(total == 0.0, 1.0, total)[:, None]
    at = out + out_row + ((row // REP) * heads + h)[:, None] * DIM + dims[None, :]
    tl.store(at, mixed.to(out.dtype.element_ty), mask=fits_row[:, None] & fits_dim[None, :])


SIZES_OF_CALL = ["range_row", "recent", "window", "splits", "least", "most", "few"]
"""Arguments for whose values no kernel is compiled anew."""


@one_at_a_time
@triton.jit(do_not_specialize=["table_row", "pos_row", "distances", *SIZES_OF_CALL])
def attend_pages(
    q, k_pool, v_pool, k_scale, v_scale, table, counts, pos, begins, ends, slope, bias, sink, out, parts, tops,
    scale, softcap, q_row, q_token, q_head, k_page, k_slot, k_head, v_page, v_slot, v_head,
    table_row, pos_row, range_row, kv_heads, recent, window, distances, splits, least, most, few,
    T: tl.constexpr, REP: tl.constexpr, DIM: tl.constexpr, WIDE: tl.constexpr, M: tl.constexpr, KEPT: tl.constexpr,
    BLOCK: tl.constexpr, SIZE: tl.constexpr,
    RING: tl.constexpr, HELD_FIRST: tl.constexpr, WINDOW: tl.constexpr, FIRST: tl.constexpr, RANGED: tl.constexpr,
    SLOPE: tl.constexpr, BIAS: tl.constexpr, SOFTCAP: tl.constexpr, SINK: tl.constexpr, SCALED: tl.constexpr,
    PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One stretch of one row for one key head and M of its queries; axes: key head and queries, stretch, row."""
    TILES: tl.constexpr = (T * REP + M - 1) // M
    tile, split, b = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    g = tile // TILES
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    count = tl.load(counts + b)
    row = (tile % TILES) * M + tl.arange(0, M)
    fits_row = row < T * REP
    dims = tl.arange(0, WIDE)
    fits_dim = dims < DIM
    token = row // REP
    place = tl.load(pos + b * pos_row + token, mask=fits_row, other=-1).to(tl.int32)

    begin, end, low, high, stretch, used = shared_out(
        b, count, token, fits_row, begins, ends, range_row, recent, window, least, most, few, T, BLOCK, RING, HELD_FIRST, WINDOW,
        FIRST, RANGED,
    )  # fmt: skip
    if split >= used:
        return

    h = g * REP + row % REP
    at = q + b * q_row + token[:, None] * q_token + h[:, None] * q_head + dims[None, :]
    x = tl.load(at, mask=fits_row[:, None] & fits_dim[None, :], other=0.0)
    if SLOPE:
        steep = tl.load(slope + h, mask=fits_row, other=0.0).to(tl.float32)
    top = tl.full((M,), float("-inf"), tl.float32)
    total = tl.zeros((M,), tl.float32)
    mixed = tl.zeros((M, WIDE), tl.float32)
    first = low + split * stretch
    last = tl.minimum(first + stretch, high)
    lines = tl.arange(0, BLOCK)
    for start in range(first, last, BLOCK):
        slot = start + lines
        live = slot < last
        if SIZE % BLOCK == 0:
            # One page holds them all: an address for the block, and steps that stay the same.
            page = tl.load(table + b * table_row + start // SIZE).to(tl.int64)
            here = start % SIZE
            k_at = k_pool + (page * k_page + here * k_slot + g * k_head) + (lines[:, None] * k_slot + dims[None, :])
            v_at = v_pool + (page * v_page + here * v_slot + g * v_head) + (lines[:, None] * v_slot + dims[None, :])
            s_off = (page * SIZE + here) * kv_heads + g + lines * kv_heads
        else:
            pages = tl.load(table + b * table_row + slot // SIZE, mask=live, other=0).to(tl.int64)
            k_at = k_pool + (pages * k_page + (slot % SIZE * k_slot + g * k_head))[:, None] + dims[None, :]
            v_at = v_pool + (pages * v_page + (slot % SIZE * v_slot + g * v_head))[:, None] + dims[None, :]
            s_off = (pages * SIZE + slot % SIZE) * kv_heads + g
        inside = live[:, None]
        if WIDE != DIM:
            inside = inside & fits_dim[None, :]
        k = tl.load(k_at, mask=inside, other=0)
        v = tl.load(v_at, mask=inside, other=0)
        if SCALED:
            k_factor = tl.load(k_scale + s_off, mask=live, other=0.0)
            v_factor = tl.load(v_scale + s_off, mask=live, other=0.0)
        score = tl.dot(x, tl.trans(k.to(x.dtype)), input_precision=PRECISION) * scale
        if SCALED:
            score = score * k_factor[None, :]
        number = held(slot, count, recent, HELD_FIRST, RING)
        gap = place[:, None] - number[None, :]
        if SLOPE:
            score += steep[:, None] * gap.to(tl.float32)
        if BIAS:
            step = tl.minimum(tl.maximum(gap, 0), distances - 1)
            score += tl.load(bias + h[:, None] * distances + step, mask=fits_row[:, None], other=0.0)
        if SOFTCAP:
            # c tanh(x / c)
            score = softcap * (2.0 / (1.0 + tl.exp2(score * (-2.0 * LOG2E / softcap))) - 1.0)
        seen = (gap >= 0) & live[None, :]
        if RING:
            seen = seen & (number >= 0)[None, :]
        if RANGED:
            seen = seen & (number[None, :] >= begin[:, None]) & (number[None, :] <= end[:, None])
        elif WINDOW:
            near = gap < window
            if FIRST > 0:
                near = near | (number < FIRST)[None, :]
            seen = seen & near
        score = tl.where(seen, score * LOG2E, float("-inf"))
        highest = tl.maximum(top, tl.max(score, 1))
        finite = tl.where(highest == float("-inf"), 0.0, highest)
        weight = tl.exp2(score - finite[:, None])
        shrunk = tl.exp2(top - finite)
        total = total * shrunk + tl.sum(weight, 1)
        if SCALED:
            weight = weight * v_factor[None, :]
        mixed = tl.dot(weight.to(x.dtype), v.to(x.dtype), mixed * shrunk[:, None], input_precision=PRECISION)
        top = highest

    heads = kv_heads * REP
    out_row = b * (T * heads * DIM)
    if used == 1:
        # Nothing to merge.
        finish(top, total, mixed, out, row, fits_row, dims, fits_dim, sink, out_row, REP, g, heads, DIM, SINK)
        return
    # Of M rows only KEPT can be real; `parts` has room for those of `splits` stretches.
    line = ((b * tl.num_programs(0) + tile) * splits + split) * KEPT + tl.arange(0, M)
    kept = tl.arange(0, M) < KEPT
    tl.store(parts + line[:, None] * WIDE + dims[None, :], mixed, mask=kept[:, None])
    tl.store(tops + line * 2, top, mask=kept)
    tl.store(tops + line * 2 + 1, total, mask=kept)


@triton.jit
def merged(parts, tops, first, used, dims, KEPT: tl.constexpr, WIDE: tl.constexpr, CHUNK: tl.constexpr):
    """The stretches of one query, CHUNK of them at once."""
    top = tl.full((1,), float("-inf"), tl.float32)
    total = tl.zeros((1,), tl.float32)
    mixed = tl.zeros((1, WIDE), tl.float32)
    for i in range(0, used, CHUNK):
        split = i + tl.arange(0, CHUNK)
        there = split < used
        line = first + split * KEPT
        t = tl.load(tops + line * 2, mask=there, other=float("-inf"))
        sums = tl.load(tops + line * 2 + 1, mask=there, other=0.0)
        part = tl.load(parts + line[:, None] * WIDE + dims[None, :], mask=there[:, None], other=0.0)
        highest = tl.maximum(top, tl.max(t, 0))
        finite = tl.where(highest == float("-inf"), 0.0, highest)
        share = tl.exp2(t - finite)
        shrunk = tl.exp2(top - finite)
        total = total * shrunk + tl.sum(share * sums, 0)
        mixed = mixed * shrunk[:, None] + tl.sum(share[:, None] * part, 0)[None, :]
        top = highest
    return top, total, mixed


@one_at_a_time
@triton.jit(do_not_specialize=SIZES_OF_CALL)
def merge_parts(
    counts, begins, ends, sink, out, parts, tops, range_row, kv_heads, recent, window, splits, least, most, few,
    T: tl.constexpr, REP: tl.constexpr, DIM: tl.constexpr, WIDE: tl.constexpr, M: tl.constexpr, KEPT: tl.constexpr,
    BLOCK: tl.constexpr, CHUNK: tl.constexpr, RING: tl.constexpr, HELD_FIRST: tl.constexpr, WINDOW: tl.constexpr,
    FIRST: tl.constexpr, RANGED: tl.constexpr, SINK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One query and head; axes: those of all key heads, row."""
    TILES: tl.constexpr = (T * REP + M - 1) // M
    tile, inside, b = tl.program_id(0) // KEPT, tl.program_id(0) % KEPT, tl.program_id(1).to(tl.int64)
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    count = tl.load(counts + b)
    rows = (tile % TILES) * M + tl.arange(0, M)
    _, _, _, _, _, used = shared_out(
        b, count, rows // REP, rows < T * REP, begins, ends, range_row, recent, window, least, most, few, T, BLOCK, RING,
        HELD_FIRST, WINDOW, FIRST, RANGED,
    )  # fmt: skip
    if used == 1:
        return
    dims = tl.arange(0, WIDE)
    first = ((b * (tl.num_programs(0) // KEPT) + tile) * splits) * KEPT + inside
    if used <= 8:
        top, total, mixed = merged(parts, tops, first, used, dims, KEPT, WIDE, 8)
    else:
        top, total, mixed = merged(parts, tops, first, used, dims, KEPT, WIDE, CHUNK)
    row = (tile % TILES) * M + inside + tl.arange(0, 1)
    heads = kv_heads * REP
    finish(top, total, mixed, out, row, row < T * REP, dims, dims < DIM, sink, b * (T * heads * DIM), REP, tile // TILES,
           heads, DIM, SINK)  # fmt: skip


def most_programs(room, plan):
    """For rows of up to so many slots; see `shared_out`."""
    found = 1
    for times, limit in ((1, plan.few), (2, 4 * plan.few), (4, 16 * plan.few), (8, room)):
        found = max(found, triton.cdiv(min(room, limit * plan.least), times * plan.least))
    return min(plan.most, found)


def launch(q, k, v, terms, pages, seen, slope, bias, ranges, plan):
    """The output (B,T,H,K). Nothing of it looks at values on the host."""
    batch, queries, heads, dim = q.shape
    kv_heads, keep = k.shape[2], pages.keep
    rep = heads // kv_heads
    wide, rows = max(16, triton.next_power_of_2(dim)), triton.next_power_of_2(queries * rep)
    m = min(max(16, rows), 64 if wide > 256 else 128)
    kept = min(rows, m)
    tiles = kv_heads * triton.cdiv(queries * rep, m)
    room = pages.slots if keep.recent is None else min(pages.slots, keep.first + keep.recent)
    if seen.window is not None and not seen.first and keep.recent is None:
        # The tokens of the oldest query's window, from the beginning of a block.
        room = min(room, seen.window + queries - 1 + plan.block - 1)
    splits = most_programs(room, plan)
    out = torch.empty(batch, queries, heads, dim, dtype=q.dtype, device=q.device)

    def scratch():
        lines = batch * tiles * splits * kept
        return tuple(torch.empty(lines, n, dtype=torch.float32, device=q.device) for n in (wide, 2))

    # Layers follow one another and share it.
    parts, tops = terms.mask.once(("pages", batch, tiles, splits, kept, wide, q.device), scratch)
    k_scale, v_scale = (out, out) if pages.scales is None else pages.scales
    pos, sink = terms.mask.q.pos, terms.own.get("sink_H")
    pos = pos if pos.stride(1) == 1 else pos.contiguous()
    begins, ends = (pos, pos) if ranges is None else ranges
    pos_row, range_row = (0 if x.shape[0] == 1 else x.stride(0) for x in (pos, begins))
    sink = out if sink is None else sink
    early = pdl_options(q.device)
    seen_by = {
        "T": queries, "REP": rep, "DIM": dim, "WIDE": wide, "M": m, "KEPT": kept, "BLOCK": plan.block,
        "RING": keep.recent is not None, "HELD_FIRST": keep.first, "WINDOW": seen.window is not None,
        "FIRST": seen.first, "RANGED": seen.ranged, "SINK": sink is not out, "PDL": bool(early),
    }  # fmt: skip
    recent, window = keep.recent or 1, seen.window or 0
    attend_pages[(tiles, splits, batch)](
        q, k, v, k_scale, v_scale, pages.table_BN, pages.count_B, pos, begins, ends,
        out if slope is None else slope, out if bias is None else bias, sink, out, parts, tops,
        terms.scale, 1.0 if terms.softcap is None else terms.softcap,
        q.stride(0), q.stride(1), q.stride(2), k.stride(0), k.stride(1), k.stride(2), v.stride(0), v.stride(1), v.stride(2),
        pages.table_BN.stride(0), pos_row, range_row, kv_heads, recent, window,
        1 if bias is None else bias.shape[1], splits, plan.least, plan.most, plan.few, **seen_by,
        SIZE=pages.size, SLOPE=slope is not None, BIAS=bias is not None, SOFTCAP=terms.softcap is not None,
        SCALED=pages.scales is not None, PRECISION="tf32x3" if q.dtype == torch.float32 else "ieee",
        num_warps=plan.warps, num_stages=plan.stages, **early,
        **({"maxnreg": plan.registers} if plan.registers and m == 16 else {}),
    )  # fmt: skip
    if splits > 1:
        merge_parts[(tiles * kept, batch)](
            pages.count_B, begins, ends, sink, out, parts, tops, range_row, kv_heads, recent, window, splits, plan.least,
            plan.most, plan.few, **seen_by, CHUNK=min(32, TILE // wide), num_warps=2, **early,
        )  # fmt: skip
    return out
