"""int8 against fp32 on a CPU, by shape: whole passes of one token, a few, and many, and `anyformer eval --quantize`.

    python bench/int8_cpu.py [--quick] [--threads N] [--shapes 3M 15M 124M]

Both models have the same weights and run in turns; the figure is the best of the rounds. With one thread it is processor
time, which other programs disturb less than the clock. Printed: milliseconds in fp32 and in int8, and their ratio (below
1: int8 is faster). Then the time of scoring a text with each.
"""

import argparse
import copy
import time
from functools import partial

import torch

import anyformer as af
from anyformer.model.eval_mode import without_head
from anyformer.model.quantize import quantize
from anyformer.train.perplexity import score_ids

SHAPES = {
    "3M": dict(
        vocab=4096, width=192, depth=6, context=512, attention={"heads": 6}, ffn={"kind": "swiglu", "width": 512}
    ),
    "15M": dict(
        vocab=32000, width=288, depth=6, context=512, attention={"heads": 6}, ffn={"kind": "swiglu", "width": 768}
    ),
    "124M": dict(
        vocab=32000, width=768, depth=12, context=1024, attention={"heads": 12}, ffn={"kind": "swiglu", "width": 2048}
    ),
}
ROWS = (1, 2, 4, 8, 16, 32, 64)
"""Sequences that are decoded together, a token each."""
WHOLE = (8, 256)
"""Sequences and tokens of a pass without a cache."""


def best_of(rounds, threads, *runs):
    """The least seconds of each, in turns."""
    clock = time.process_time if threads == 1 else time.perf_counter
    least = [float("inf")] * len(runs)
    for run in runs:
        run()
    for _ in range(rounds):
        for i, run in enumerate(runs):
            begin = clock()
            run()
            least[i] = min(least[i], clock() - begin)
    return least


def pair(name):
    plain = af.build(af.spec(SHAPES[name] | {"head": {"kind": "lm", "tied": name != "124M"}}), seed=0).eval()
    return plain, quantize(copy.deepcopy(plain), "int8")


def said(what, times):
    print(
        f"{what:44}{times[0] * 1e3:10.2f} ms fp32{times[1] * 1e3:10.2f} ms int8{times[1] / times[0]:8.2f}", flush=True
    )


def decoding(model, rows, steps):
    """A step after `steps` tokens of each row."""
    cache = model.new_cache(rows, 64 + 1024)
    ids = torch.randint(0, model.spec.vocab, (rows, steps))
    model(ids, cache=cache)
    token = ids[:, -1:]

    def run():
        for _ in range(4):
            model(token, cache=cache)

    return run


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, and no texts")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    rounds = 4 if args.quick else args.rounds
    clock = "processor time" if args.threads == 1 else "by the clock"
    isa = torch.backends.cpu.get_cpu_capability()
    print(f"torch {torch.__version__}, {isa}, {args.threads} threads, {clock}, best of {rounds}")
    with torch.inference_mode():
        for name in args.shapes:
            plain, small = pair(name)
            for rows in ROWS:
                times = best_of(4 * rounds, args.threads, decoding(plain, rows, 16), decoding(small, rows, 16))
                said(f"{name}, a token of {rows} rows", [t / 4 for t in times])
            ids = torch.randint(0, plain.spec.vocab, WHOLE)
            bodies = [without_head(plain), without_head(small)]
            few = max(3, rounds // 2)
            said(
                f"{name}, {WHOLE[0]} x {WHOLE[1]} tokens, states",
                best_of(few, args.threads, *(partial(m, ids) for m in bodies)),
            )
            said(
                f"{name}, {WHOLE[0]} x {WHOLE[1]} tokens, logits",
                best_of(few, args.threads, *(partial(m, ids) for m in (plain, small))),
            )
            if not args.quick:
                text = torch.randint(0, plain.spec.vocab, (4096,)).tolist()
                runs = (partial(score_ids, m, [text], context=256) for m in (plain, small))
                said(f"{name}, scoring 4,096 tokens (eval)", best_of(few, args.threads, *runs))


if __name__ == "__main__":
    main()
