"""Products of few rows on a CUDA device: ours against torch's, each shape alone, and whole stacks of layers in one graph.

    python bench/gpu_products.py [--rows 1 2 4] [--models 8b 1b] [--no-shapes]

bf16, random weights, as many of them as it takes that none is still in the cache when it is read again. Each figure is
the median of replays of one captured graph. Printed: terabytes of weights read in a second and the ratio to torch's
product; then tokens in a second for all layers with a stand-in for attention, with and without an early start of kernels.
"""

import argparse
import statistics
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch.nn import functional as F

from anyformer.kernels.small_gemm import NormTerms, launch, quantized
from anyformer.parts.ffns.gated import Swiglu
from anyformer.parts.norms.rmsnorm import RMSNorm

HALF = torch.bfloat16
LEAF = Swiglu()
ACT = LEAF.activation()
CACHE = 400 << 20
"""Bytes after which nothing of the first is left in the cache."""


class Model(NamedTuple):
    """The shape of a dense model of Llama's kind."""

    width: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    depth: int
    vocab: int

    @property
    def query(self):
        return self.heads * self.head_dim

    @property
    def qkv(self):
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    def products(self):
        """Name, outputs, inputs of each product."""
        return {
            "qkv": (self.qkv, self.width),
            "o": (self.width, self.query),
            "gate-up": (2 * self.ffn, self.width),
            "down": (self.width, self.ffn),
            "head": (self.vocab, self.width),
        }

    def bytes(self):
        """Weights that a token reads."""
        sizes = {name: outs * into for name, (outs, into) in self.products().items()}
        head = sizes.pop("head")
        return 2 * (self.depth * sum(sizes.values()) + head)


MODELS = {
    "8b": Model(4096, 32, 8, 128, 14336, 32, 128256),
    "1b": Model(2048, 32, 8, 64, 8192, 16, 128256),
    "0.6b": Model(1024, 16, 8, 128, 3072, 28, 151936),
}


@triton.jit
def step(x, out, stride, INS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """A small kernel that needs all that was made before it, as those of attention do."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = tl.program_id(1)
    z = tl.load(x + row * stride + i, mask=i < INS, other=0.0)
    tl.store(out + row * INS + i, tl.maximum(z, 0.0), mask=i < INS)


def captured(run):
    """A graph of one call of `run`, after two calls that compile."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        run()
        run()
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph


def microseconds(graph, rounds=15, each=1):
    """Median device time of a replay."""
    times = []
    for turn in range(rounds + 2):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(each):
            graph.replay()
        end.record()
        torch.cuda.synchronize()
        if turn >= 2:
            times.append(begin.elapsed_time(end) * 1e3 / each)
    return statistics.median(times)


def norm_of(width):
    return NormTerms(RMSNorm(eps=1e-5), {"weight": torch.rand(width, dtype=HALF, device="cuda") + 0.5})


def many(outs, into):
    """Distinct weights of one shape, more than the cache holds."""
    count = max(3, -(-CACHE // (2 * outs * into)))
    return [torch.randn(outs, into, dtype=HALF, device="cuda") * into**-0.5 for _ in range(count)]


def variant(name, weights, rows, **how):
    """A run of one product after another, as the model would call it."""
    outs, into = weights[0].shape
    x = torch.randn(rows, into, dtype=HALF, device="cuda")
    norm, residual = norm_of(into), torch.randn(rows, outs, dtype=HALF, device="cuda")
    if name in ("qkv", "head"):
        return lambda: [launch.product(x, w, None, norm=norm, **how) for w in weights]
    if name == "gate-up":
        return lambda: [launch.product(x, w, None, norm=norm, act=ACT, gated=True, at="output", **how) for w in weights]
    if name == "down from gate-up":
        h = torch.randn(rows, 2 * into, dtype=HALF, device="cuda")
        return lambda: [
            launch.product(h, w, None, act=ACT, gated=True, at="input", residual=residual, **how) for w in weights
        ]
    if name == "torch":
        return lambda: [F.linear(x, w) for w in weights]
    return lambda: [launch.product(x, w, None, residual=residual, **how) for w in weights]


def speed(run, count, size):
    """Terabytes in a second of `count` products that read `size` bytes each."""
    return count * size / microseconds(captured(run)) / 1e6


def shapes(model, rows):
    """Each product of a model, as the model calls it, against torch's product alone; then 8 and 4 bits."""
    for name, (outs, into) in model.products().items():
        weights = many(outs, into)
        size = 2 * outs * into
        ours = speed(variant(name, weights, rows), len(weights), size)
        alone = speed(variant(name, weights, rows, pdl=False), len(weights), size)
        torchs = speed(variant("torch", weights, rows), len(weights), size)
        x = torch.randn(rows, into, dtype=HALF, device="cuda")
        eights = [quantized.quantise_int8(w) for w in weights]
        eight = speed(lambda x=x, q=eights: [quantized.int8_linear(x, *w) for w in q], len(weights), outs * into)
        del eights
        fours = [quantized.quantise_int4(w) for w in weights]
        four = speed(lambda x=x, q=fours: [quantized.int4_linear(x, *w, 128) for w in q], len(weights), outs * into / 2)
        del fours
        print(
            f"{rows} rows  {name:8} {outs:6}x{into:<6} ours {ours:.2f} TB/s, without early start {alone:.2f}, "
            f"torch {torchs:.2f}: {ours / torchs:.2f}x; int8 {eight:.2f} TB/s ({2 * eight / torchs:.2f}x), "
            f"int4 {four:.2f} TB/s ({4 * four / torchs:.2f}x)",
            flush=True,
        )


class Stack:
    """All layers of a model, with two small kernels in place of attention, which give the queries above 0."""

    sizes: dict = {}

    def __init__(self, model):
        self.model = model

        def one(name):
            outs, into = model.products()[name]
            return torch.randn(outs, into, dtype=HALF, device="cuda") * into**-0.5

        self.layers = [
            {name: one(name) for name in ("qkv", "o", "gate-up", "down")}
            | {"n1": norm_of(model.width), "n2": norm_of(model.width)}
            for _ in range(model.depth)
        ]
        self.head, self.norm = one("head"), norm_of(model.width)

    def attention(self, qkv, pdl=False):
        for _ in range(2):
            out = qkv.new_empty(qkv.shape[0], self.model.query)
            grid = (-(-self.model.query // 256), qkv.shape[0])
            more = {"launch_pdl": True} if pdl else {}
            step[grid](qkv, out, qkv.stride(0), INS=self.model.query, BLOCK=256, PDL=pdl, num_warps=2, **more)
            qkv = out
        return qkv

    def ours(self, x, pdl):
        size = self.sizes.get
        for w in self.layers:
            qkv = launch.product(x, w["qkv"], None, norm=w["n1"], pdl=pdl, sizes=size("qkv"))
            x = launch.product(self.attention(qkv, pdl), w["o"], None, residual=x, pdl=pdl, sizes=size("o"))
            how = {"act": ACT, "gated": True, "at": "output"}
            h = launch.product(x, w["gate-up"], None, norm=w["n2"], pdl=pdl, sizes=size("gate-up"), **how)
            x = launch.product(h, w["down"], None, residual=x, pdl=pdl, sizes=size("down"))
        return launch.product(x, self.head, None, norm=self.norm, pdl=pdl, sizes=size("head"))

    def before(self, x, pdl):
        """The activation as part of the product that reads it."""
        size = self.sizes.get
        for w in self.layers:
            qkv = launch.product(x, w["qkv"], None, norm=w["n1"], pdl=pdl, sizes=size("qkv"))
            x = launch.product(self.attention(qkv, pdl), w["o"], None, residual=x, pdl=pdl, sizes=size("o"))
            h = launch.product(x, w["gate-up"], None, norm=w["n2"], pdl=pdl, sizes=size("gate-up"))
            how = {"act": ACT, "gated": True, "at": "input"}
            x = launch.product(h, w["down"], None, residual=x, pdl=pdl, sizes=size("down"), **how)
        return launch.product(x, self.head, None, norm=self.norm, pdl=pdl, sizes=size("head"))

    def torchs(self, x):
        for w in self.layers:
            qkv = F.linear(w["n1"].leaf.apply(x, w["n1"].own), w["qkv"])
            x = x + F.linear(self.attention(qkv), w["o"])
            h = F.linear(w["n2"].leaf.apply(x, w["n2"].own), w["gate-up"])
            x = x + F.linear(LEAF.combine(*h.chunk(2, -1)), w["down"])
        return F.linear(self.norm.leaf.apply(x, self.norm.own), self.head)

    def many(self, x):
        """torch's products with our norms and activations: more than a few rows."""
        for w in self.layers:
            qkv = F.linear(launch.norm_rows(x, w["n1"]), w["qkv"])
            x = x + F.linear(self.attention(qkv), w["o"])
            h = F.linear(launch.norm_rows(x, w["n2"]), w["gate-up"])
            x = x + F.linear(launch.combine_rows(h, ACT, True), w["down"])
        return F.linear(launch.norm_rows(x, self.norm), self.head)


def stacks(name, rows):
    """Tokens in a second of all layers, one way after another."""
    model = MODELS[name]
    stack = Stack(model)
    for count in rows:
        x = torch.randn(count, model.width, dtype=HALF, device="cuda")
        whole = stack.torchs(x).float()
        ways = {"torch": lambda x=x: stack.torchs(x), "torch, our norms": lambda x=x: stack.many(x)}
        if count <= launch.MOST:
            ways |= {
                "ours": lambda x=x: stack.ours(x, True),
                "ours, no early start": lambda x=x: stack.ours(x, False),
                "ours, activation before": lambda x=x: stack.before(x, True),
            }
        for way, run in ways.items():
            held = []
            graph = captured(lambda run=run, held=held: held.append(run()))
            took = microseconds(graph)
            away = float((held[-1].float() - whole).norm() / whole.norm())
            print(
                f"{name} {count} rows  {way:24} {took:7.0f} us  {count * 1e6 / took:7.0f} tok/s  "
                f"{model.bytes() / took / 1e6:.2f} TB/s  off by {away:.1e}",
                flush=True,
            )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, nargs="+", default=[1])
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--no-shapes", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    for name in args.models:
        if not args.no_shapes:
            for rows in args.rows:
                if rows <= launch.MOST:
                    shapes(MODELS[name], rows)
        stacks(name, args.rows)


if __name__ == "__main__":
    main()
