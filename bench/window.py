"""A window of 256 in 8192 tokens, forward and backward: in blocks, against torch's causal and masked attention.

    python bench/window.py [--rounds 5] [--tokens 8192] [--window 256]

All run in one process, in turns; the figure is the best of the rounds. Printed: time, share of the machine's arithmetic
limit (measured here), how many times faster blocks are, and the most bytes at once beyond the inputs, at this length
and at half of it.
"""

import argparse

import torch
from core import best_of, limits

from anyformer.evals.memory import used
from anyformer.kernels.attention import attend, block_local, sdpa, tiled_flash
from anyformer.kernels.attention_mask import AttentionMask
from anyformer.parts.mixers.softmax import Softmax
from anyformer.parts.patterns.causal import Causal
from anyformer.parts.patterns.window import Window
from anyformer.specs.pair_count import allowed_pairs
from anyformer.specs.patterns import Tokens

HEADS, DIM = 8, 64
WAYS = {
    "blocks": (block_local.KERNEL, True),
    "tiled": (tiled_flash.KERNEL, True),
    "sdpa, dense mask": (sdpa.KERNEL, True),
    "sdpa, causal": (sdpa.KERNEL, False),
}


def mask_of(pattern, tokens):
    place = Tokens(torch.arange(tokens)[None])
    shape = "causal" if isinstance(pattern, Causal) else "pattern"
    return AttentionMask(pattern, place, place, plain=True, heads=HEADS, shape=shape)


def step(name, tokens, window):
    """Forward and backward, with the mask made anew as each forward pass of a model does."""
    kernel, narrow = WAYS[name]
    pattern = Window(size=window) if narrow else Causal()
    q, k, v = (torch.randn(1, tokens, HEADS, DIM, requires_grad=True) for _ in range(3))
    back = torch.randn(1, tokens, HEADS, DIM)

    def run():
        attn_mask = mask_of(pattern, tokens)
        out = attend(q, k, v, scale=DIM**-0.5, mixer=Softmax(), own={}, mask=attn_mask, kernel=kernel)
        out.backward(back)
        q.grad = k.grad = v.grad = None

    return run


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--window", type=int, default=256)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    flops, _ = limits()
    print(f"torch {torch.__version__}, {args.threads} threads, {flops / 1e9:.0f} GFLOP/s")
    print(f"{args.tokens} tokens, window {args.window}, {HEADS} heads of {DIM}, fp32, forward and backward")
    print(f"{'':20}{'time':>12}{'of limit':>10}{'blocks are':>12}{'memory':>12}{'half T':>12}{'ratio':>8}")
    best = best_of(args.rounds, *(step(name, args.tokens, args.window) for name in WAYS))
    for (name, (_, narrow)), seconds in zip(WAYS.items(), best, strict=True):
        pattern = Window(size=args.window) if narrow else Causal()
        # Two products of all allowed pairs forward, five backward.
        work = 7 * 2 * allowed_pairs(pattern, args.tokens) * HEADS * DIM
        whole, half = (used(step(name, n, args.window)).peak for n in (args.tokens, args.tokens // 2))
        print(
            f"{name:20}{seconds * 1e3:9.1f} ms{work / seconds / flops:10.0%}{seconds / best[0]:10.2f} x"
            f"{whole / 2**20:9.1f} MB{half / 2**20:9.1f} MB{whole / half:8.2f}"
        )


if __name__ == "__main__":
    main()
