"""Attention of one query a row to keys in pages, on a CUDA device: time of a step, and share of what the memory gives.

    python bench/gpu_decode_attention.py [--pages 16 64 256] [--rounds 5] [--seconds 100] [--tune [--int8]]

Against SDPA over the same keys in one piece (enable_gqa). Each figure is one call in a captured graph of several, over
pools that are larger than the cache together; the median of the rounds. --tune tries other sizes of the kernel instead.
"""

import argparse
import itertools
import statistics
import time

import torch
from torch.nn import functional as F

from anyformer.kernels.attention import paged_cuda
from anyformer.kernels.attention_mask import AttentionMask
from anyformer.kernels.block_table import BlockTable
from anyformer.kernels.dispatch import AttentionArgs
from anyformer.parts.mixers.softmax import Softmax
from anyformer.parts.patterns.causal import Causal
from anyformer.specs.cache_policy import CachePolicy
from anyformer.specs.patterns import Tokens

LIMIT = 4.43e12
"""Bytes per second that a matrix-vector product reads on an H200."""
SHAPES = ((32, 8, 128), (16, 8, 128))
BATCHES = (1, 32, 256)
CONTEXTS = (400, 2048, 8192, 32768, 131072)
MOST = 40e9
"""Bytes of keys and values that are tried."""
CACHE = 200e6
"""Bytes that no cache holds: calls in turns over so much find nothing there."""


def graph_of(calls):
    """All calls in one graph, after one that compiles."""
    calls[0]()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return graph


def microseconds(graph, calls, rounds):
    """Of one call: the median over rounds."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    took = []
    for turn in range(rounds + 1):
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        if turn:
            took.append(begin.elapsed_time(end) * 1000 / calls)
    return statistics.median(took)


def inputs(batch, context, heads, groups, dim, size, copies, *, int8=False):
    """Queries, and pools of their own for each call, as layers have them; counts are the context minus one."""
    width = -(-context // size)
    q = torch.randn(batch, 1, heads, dim, device="cuda", dtype=torch.bfloat16)
    pools = [
        [
            torch.randn(batch * width + 1, size, groups, dim, device="cuda", dtype=torch.bfloat16)
            for _ in range(2)
        ]
        for _ in range(copies)
    ]  # fmt: skip
    scales = None
    if int8:
        pools = [[(pool * 40).to(torch.int8) for pool in pair] for pair in pools]
        scales = tuple(torch.rand(pools[0][0].shape[:3], device="cuda") / 40 for _ in range(2))
    table = torch.randperm(batch * width, device="cuda").view(batch, width).int() + 1
    count = torch.full((batch,), context - 1, device="cuda", dtype=torch.int32)
    pos = Tokens(count[:, None].long() - 1)
    terms = AttentionArgs(
        dim**-0.5,
        Softmax(),
        {},
        AttentionMask(Causal(), pos, pos, heads=heads),
        pages=BlockTable(table, size, count, CachePolicy(), scales),
    )
    return q, pools, terms


def copies_for(bytes_read):
    return int(min(max(4, -(-CACHE // bytes_read)), 32))


def ours(q, pools, terms, plan=None):
    groups, dim = pools[0][0].shape[2:]
    plan = plan or paged_cuda.plan(groups, dim, pools[0][0].element_size())
    return [lambda k=k, v=v: paged_cuda.run(q, k, v, terms, plan) for k, v in pools]


def sdpa(q, pools, context):
    """Over the same pools as if they were in one piece."""
    batch = q.shape[0]
    calls = []
    for pair in pools:
        pieces = [pool[1:].view(batch, -1, *pool.shape[2:])[:, : context - 1].transpose(1, 2) for pool in pair]
        calls.append(lambda pieces=pieces: F.scaled_dot_product_attention(q.transpose(1, 2), *pieces, enable_gqa=True))
    return calls


def settings():
    for (heads, groups, dim), batch, context in itertools.product(SHAPES, BATCHES, CONTEXTS):
        read = batch * context * groups * dim * 4
        if read * 2 <= MOST:
            yield heads, groups, dim, batch, context, read


def compare(options):
    print("heads  batch  context  " + "  ".join(f"page {p:3}" for p in options.pages) + "   share      sdpa")
    for heads, groups, dim, batch, context, read in settings():
        if time.time() > options.until:
            print("out of time")
            return
        found, copies = {}, copies_for(read)
        if read * copies > MOST:
            copies = max(1, int(MOST // read))
        for size in options.pages:
            q, pools, terms = inputs(batch, context, heads, groups, dim, size, copies)
            found[size] = microseconds(graph_of(ours(q, pools, terms)), copies, options.rounds)
            if size == options.pages[-1]:
                whole = microseconds(graph_of(sdpa(q, pools, context)), copies, options.rounds)
            del pools
        best = min(found.values())
        each = "  ".join(f"{took:8.1f}" for took in found.values())
        print(
            f"{heads}/{groups}  {batch:5}  {context:7}  {each}  {read / (best * 1e-6) / LIMIT:6.1%}  {whole:8.1f}",
            flush=True,
        )


PLANS = [
    paged_cuda.Plan(block, least, most, few, warps, stages, registers)
    for (block, warps, stages, registers), (least, few), most in itertools.product(
        [(64, 4, 3, None), (64, 4, 3, 128), (64, 4, 3, 96), (32, 4, 5, 96), (32, 4, 3, 80)],
        [(64, 8), (64, 4), (128, 4), (128, 32)],
        [64],
    )
]
TUNED = ((1, 400), (1, 2048), (1, 32768), (32, 400), (32, 2048), (32, 8192), (256, 400), (256, 2048))


def tune(options):
    """Other sizes at a few settings; each row ends with its mean ratio to the best."""
    heads, groups, dim = SHAPES[0]
    size, took = options.pages[0], {plan: [] for plan in PLANS}
    for batch, context in TUNED:
        read = batch * context * groups * dim * (2 if options.int8 else 4)
        copies = copies_for(read)
        q, pools, terms = inputs(batch, context, heads, groups, dim, size, copies, int8=options.int8)
        for plan in PLANS:
            if time.time() < options.until:
                took[plan].append(microseconds(graph_of(ours(q, pools, terms, plan)), copies, options.rounds))
            terms.mask.notes.clear()
        del pools
    done = [at for at in range(len(TUNED)) if all(len(each) > at for each in took.values())]
    best = [min(each[at] for each in took.values()) for at in done]
    ratio = {plan: statistics.mean(each[at] / best[at] for at in done) for plan, each in took.items()}
    print(f"page {size}; block least most few warps stages registers: us at " + " ".join(f"{b}x{c}" for b, c in TUNED))
    for plan, each in sorted(took.items(), key=lambda item: ratio[item[0]]):
        print(" ".join(f"{x!s:>4}" for x in plan), ":", " ".join(f"{x:8.1f}" for x in each), f"{ratio[plan]:.3f}")
    return min(ratio, key=lambda plan: ratio[plan])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--pages", type=int, nargs="+", default=[16, 64, 256])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=100)
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--int8", action="store_true", help="with --tune: pools of int8")
    options = parser.parse_args()
    options.until = time.time() + options.seconds
    (tune if options.tune else compare)(options)
