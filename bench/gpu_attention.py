"""Attention alone on a CUDA device: our entry point against plain flex_attention and SDPA, and memory by length.

    python bench/gpu_attention.py [--tokens 32768] [--rounds 7]

32 heads, 8 key heads, 128 wide, bf16, forward and backward. All run in turns in one process; the figure is the median.
Printed: time, share of the matrix products' limit measured here (over allowed pairs), ratio to the peer.
"""

import argparse
import statistics

import torch
from torch.nn import functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from anyformer.kernels.attention import attend, reference, tiled_flash
from anyformer.kernels.attention_mask import AttentionMask
from anyformer.parts.mixers.softmax import Softmax
from anyformer.parts.patterns.causal import Causal
from anyformer.parts.patterns.window import Window
from anyformer.specs.pair_count import allowed_pairs
from anyformer.specs.patterns import Tokens

HEADS, GROUPS, DIM = 32, 8, 128


CALLS = 3
"""Calls in a row that are timed together, as layers follow each other: only the first waits for the host."""


def milliseconds(run):
    """Device time of one call."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(CALLS):
        run()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / CALLS


def medians(rounds, runs):
    """Median time of each run, measured in turns after two calls that don't count."""
    times = {name: [] for name in runs}
    for turn in range(rounds + 2):
        for name, run in runs.items():
            took = milliseconds(run)
            if turn >= 2:
                times[name].append(took)
    return {name: statistics.median(took) for name, took in times.items()}


def both_ways(forward, *inputs):
    """A call that runs forward and backward and keeps no gradient."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    given = torch.randn_like(forward(*leaves))

    def run():
        torch.autograd.grad(forward(*leaves), leaves, given)

    return run


def mask_of(pattern, tokens, heads):
    pos = torch.arange(tokens, device="cuda")[None]
    shape = "causal" if isinstance(pattern, Causal) else "pattern"
    return AttentionMask(pattern, Tokens(pos), Tokens(pos), plain=True, heads=heads, shape=shape)


def ours(pattern, tokens, scale):
    """Our entry point as a layer calls it, with a attn_mask made anew for each pass."""

    def forward(q, k, v):
        attn_mask = mask_of(pattern, tokens, q.shape[2])
        return attend(q, k, v, scale=scale, mixer=Softmax(), own={}, mask=attn_mask)

    return forward


def plain_flex(window, tokens):
    """flex_attention as its documentation shows it."""

    def seen(b, h, q, k):
        return (q >= k) & (q - k < window)

    blocks = create_block_mask(seen, None, None, tokens, tokens, device="cuda")
    compiled = torch.compile(flex_attention)
    return lambda q, k, v: compiled(q, k, v, block_mask=blocks, enable_gqa=True)


def causal_sdpa(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def times(tokens, rounds):
    q, k, v = (torch.randn(1, tokens, n, DIM, device="cuda", dtype=torch.bfloat16) for n in (HEADS, GROUPS, GROUPS))
    # A layer has tokens before heads; the peer may have heads first in memory, which suits it better.
    views = [x.transpose(1, 2) for x in (q, k, v)]
    turned = [x.contiguous() for x in views]
    scale = DIM**-0.5
    big = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    wide, narrow = min(4096, tokens), min(1024, tokens)
    windows = {n: Causal() & Window(size=n) for n in (wide, narrow)}
    runs = {
        "limit": lambda: big @ big,
        "ours, causal": both_ways(ours(Causal(), tokens, scale), q, k, v),
        "SDPA, causal": both_ways(causal_sdpa, *turned),
    }
    for n, pattern in windows.items():
        runs[f"ours, window {n}"] = both_ways(ours(pattern, tokens, scale), q, k, v)
        runs[f"plain flex, window {n}"] = both_ways(plain_flex(n, tokens), *turned)
        runs[f"plain flex on our layout, window {n}"] = both_ways(plain_flex(n, tokens), *views)
    found = medians(rounds, runs)
    limit = 2 * 8192**3 / found.pop("limit") * 1e3
    print(f"matrix products: {limit / 1e12:.0f} TFLOP/s")
    pairs = {"causal": allowed_pairs(Causal(), tokens)}
    pairs |= {f"window {n}": allowed_pairs(pattern, tokens) for n, pattern in windows.items()}
    for name, took in found.items():
        what = name.split(", ")[1]
        flops = 3.5 * 4 * pairs[what] * HEADS * DIM
        peer = found.get(f"plain flex, {what}", found["SDPA, causal"])
        print(
            f"{name:<40} {took:8.2f} ms  {flops / took * 1e3 / limit:6.1%} of the limit  {took / peer:5.2f}x its peer"
        )
    sdpa = found["SDPA, causal"]
    near = found[f"ours, window {wide}"] / found[f"plain flex, window {wide}"]
    faster = sdpa / found[f"ours, window {narrow}"]
    print(f"window {wide} against plain flex: {near:.3f}x ({'pass' if near <= 1.03 else 'MISS'}: at most 1.03x)")
    print(
        f"window {narrow} against causal SDPA: {faster:.1f}x faster ({'pass' if faster >= 8 else 'MISS'}: at least 8x)"
    )


def packed_mask(tokens, rounds):
    """What the block mask of packed rows costs in each pass."""
    from anyformer.kernels.attention.flex_blocks import made

    document = (torch.arange(tokens, device="cuda") // 700)[None].repeat(4, 1)
    pos = torch.arange(tokens, device="cuda")[None] % 700 + 0 * document
    attn_mask = AttentionMask(Causal(), Tokens(pos, document), Tokens(pos, document))
    took = medians(rounds, {"made": lambda: made(attn_mask)})["made"]
    print(f"block mask of 4 packed rows of {tokens} tokens: {took:.2f} ms")


def memory():
    """Peak bytes of forward and backward, beside the inputs, by length."""
    print("peak memory beside the inputs, 4 heads of 64, bf16, forward + backward, causal")
    print(f"{'tokens':>8} {'tiled':>12} {'reference':>12} {'share':>8}")
    for tokens in (1024, 2048, 4096, 8192, 16384):
        peaks = []
        for kernel in (tiled_flash.KERNEL, reference.KERNEL):
            inputs = [torch.randn(1, tokens, 4, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
            leaves = [x.requires_grad_() for x in inputs]
            torch.cuda.synchronize()
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            attn_mask = mask_of(Causal(), tokens, 4)
            out = attend(*leaves, scale=0.125, mixer=Softmax(), own={}, mask=attn_mask, kernel=kernel)
            torch.autograd.grad(out, leaves, torch.ones_like(out))
            peaks.append(torch.cuda.max_memory_allocated() - before)
            del out, leaves, inputs, attn_mask
        print(f"{tokens:>8} {peaks[0] / 2**20:>8.1f} MiB {peaks[1] / 2**20:>8.1f} MiB {peaks[0] / peaks[1]:>8.1%}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=32768)
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args()
    torch.manual_seed(0)
    times(given.tokens, given.rounds)
    packed_mask(4096, given.rounds)
    memory()


if __name__ == "__main__":
    main()
