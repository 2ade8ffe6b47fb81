"""Time of one new token after contexts of 1k to 64k tokens: linear attention, and softmax for contrast.

    python bench/linear.py [--rounds 40] [--longest 65536] [--threads 2]

Both are the same small decoder with another mixer. Linear attention keeps one state, so its time must not grow; softmax
reads every key, and is measured up to 16k only, as reading the prompt takes it a time that grows with the square.
"""

import argparse
import time

import torch

import anyformer as af

SHAPE = {
    "vocab": 4096, "width": 256, "depth": 4, "context": 70000, "attention": {"heads": 4, "kv_heads": 2},
    "position": {"kind": "rope"}, "ffn": {"kind": "swiglu", "width": 704},
}  # fmt: skip
SOFTMAX_UP_TO = 16384
PIECE = 2048


@torch.no_grad()
def times(mixer, contexts, rounds):
    """Best and median milliseconds for a token, and the cache's bytes, after each context."""
    model = af.build(af.spec(SHAPE, {"attention.mixer.kind": mixer})).eval()
    cache = model.new_cache(1, contexts[-1] + rounds * len(contexts), chunk=PIECE)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 4096, (1, contexts[-1]), generator=generator)
    read = 0
    for context in contexts:
        while read < context:
            piece = ids[:, read : min(read + PIECE, context)]
            model(piece, cache=cache)
            read += piece.shape[1]
        found = []
        for _ in range(rounds):
            begin = time.perf_counter()
            model(ids[:, :1], cache=cache)
            found.append(1e3 * (time.perf_counter() - begin))
        read += rounds
        found.sort()
        yield context, found[0], found[len(found) // 2], cache.nbytes


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--longest", type=int, default=65536)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    contexts = [n for n in (1024, 4096, 16384, 65536) if n <= given.longest]
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}")
    for mixer, upto in (("linear", given.longest), ("softmax", SOFTMAX_UP_TO)):
        first = None
        for context, best, median, size in times(mixer, [n for n in contexts if n <= upto], given.rounds):
            first = first or best
            ratio = f"{best / first:5.2f}x the first"
            print(
                f"{mixer:8} context {context:6d}: {best:7.3f} ms a token, median {median:7.3f}, {ratio}, cache {size:,} bytes"
            )


if __name__ == "__main__":
    main()
