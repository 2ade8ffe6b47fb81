"""What keys and values in 8 bits cost: a model's predictions from an int8 pool against those from a plain one.

    python bench/kv_int8.py [MODEL TEXT] [--tokens 32768] [--window 512] [--step 16]

MODEL is a folder with a tokenizer, TEXT a file (.gz too). Windows of the text are read into two pools, a few tokens at a
time, so that almost every key that is seen comes from the pool. A model with random weights is measured on random tokens
besides, with heads of 64 and of 128. Printed: bytes of the pools, perplexity, how often both find the same token the
likeliest, and the mean KL divergence of the next-token distributions.
"""

import argparse
import gzip
import math
from pathlib import Path

import torch

import anyformer as af
from anyformer.generation.engine.model_runner import ModelRunner
from anyformer.model.eval_mode import eval_mode

ROWS = 8
"""Windows that are read beside each other."""
SPEC = {"vocab": 2000, "width": 512, "depth": 4, "context": 1024, "ffn": {"kind": "swiglu", "width": 1024}}
HEADS = {64: {"heads": 8, "kv_heads": 4, "head_dim": 64}, 128: {"heads": 4, "kv_heads": 2, "head_dim": 128}}


def windows_of(model, text, tokens, window):
    """Windows of a text, (N,W)."""
    raw = Path(text).read_bytes()
    # A token stands for a few characters; what is too much is cut.
    words = (gzip.decompress(raw) if text.endswith(".gz") else raw).decode("utf-8")[: 8 * tokens]
    ids = af.tokenizer(model).encode(words)[:tokens]
    return torch.tensor(ids[: len(ids) // window * window]).view(-1, window)


def random_model(head_dim):
    """Weights at the sizes that a trained model has: products keep the size of what they read."""
    model = af.build(af.spec(SPEC | {"attention": HEADS[head_dim]}), seed=0)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() > 1:
                p.copy_(torch.randn(p.shape, generator=generator) / p.shape[-1] ** 0.5)
    return model


@torch.inference_mode()
def logprobs(model, rows_BW, storage, step):
    """Log-probabilities (B,W,V) read through a pool, and the pool."""
    rows, window = rows_BW.shape
    pool = model.new_pool(rows, window, block_size=16, kv_cache_dtype=storage)
    runner = ModelRunner(model, pool)
    sequences = [pool.add() for _ in range(rows)]
    found = []
    with eval_mode(model):
        # A first pass of many tokens would see them as they were before they were stored.
        for begin, end in [(0, 1), *((i, min(i + step, window)) for i in range(1, window, step))]:
            for sequence in sequences:
                pool.reserve(sequence, end - begin)
            found.append(runner.logits(runner.forward(sequences, rows_BW[:, begin:end].tolist())).log_softmax(-1))
    return torch.cat(found, 1), pool


def measure(name, model, windows, step):
    """Print one line."""
    tokens = agreed = 0
    nats, divergence, sizes = [0.0, 0.0], 0.0, (0, 0)
    for rows in windows.split(ROWS):
        (plain, a), (eight, b) = (logprobs(model, rows, storage, step) for storage in ("model", "int8"))
        sizes = a.nbytes, b.nbytes
        next_ids = rows[:, 1:, None]
        for i, each in enumerate((plain, eight)):
            nats[i] -= float(each[:, :-1].gather(-1, next_ids).double().sum())
        divergence += float((plain.exp() * (plain - eight)).double().sum())
        agreed += int((plain.argmax(-1) == eight.argmax(-1)).sum())
        tokens += rows.numel()
    told = tokens - len(windows)
    before, after = (math.exp(each / told) for each in nats)
    print(
        f"{name}: {tokens} tokens, {sizes[0]} -> {sizes[1]} bytes for {ROWS} windows ({sizes[1] / sizes[0]:.1%}), "
        f"perplexity {before:.4f} -> {after:.4f} ({after / before - 1:+.4%}), top-1 {agreed / tokens:.2%}, "
        f"mean KL {divergence / tokens:.2e} nats"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("text", nargs="?")
    parser.add_argument("--tokens", type=int, default=32768)
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--step", type=int, default=16)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.text is not None:
        model = af.load(args.model)
        measure(Path(args.model).name, model, windows_of(args.model, args.text, args.tokens, args.window), args.step)
    generator = torch.Generator().manual_seed(1)
    for head_dim in HEADS:
        windows = torch.randint(SPEC["vocab"], (2 * ROWS, args.window), generator=generator)
        measure(f"random weights, heads of {head_dim}", random_model(head_dim), windows, args.step)


if __name__ == "__main__":
    main()
