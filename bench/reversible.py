"""Training step and peak memory of a serial and a reversible stack, as the stack grows.

    python bench/reversible.py [--tokens 512] [--width 128] [--chunk 128] [--threads 2]

Time is the best of the rounds, taken in turns. Memory is the most that a step allocates at once: activations, and the
gradients of all weights, whose size stands in the second column. The last one runs the feed-forward in chunks too.
"""

import argparse
import time

import torch

import anyformer as af
from anyformer.evals.memory import used

DEPTHS = (6, 12, 24)


def stepper(depth, width, tokens, changes):
    """A training step without its update, and the bytes of its gradients."""
    spec = af.spec({
        "vocab": 256, "width": width, "depth": depth, "context": tokens, "attention": {"heads": 4},
        "ffn": {"kind": "swiglu"}, **changes,
    })  # fmt: skip
    model = af.build(spec).train()
    ids = torch.randint(0, spec.vocab, (4, tokens))

    def step():
        model.zero_grad(set_to_none=True)
        model(ids, labels=ids).loss.backward()

    step()
    model.zero_grad(set_to_none=True)
    return step, sum(p.numel() * p.element_size() for p in model.parameters())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--chunk", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    stacks = {
        "serial": {},
        "reversible": {"block": {"wiring": "reversible"}},
        "reversible, chunked": {
            "block": {"wiring": "reversible"}, "ffn": {"kind": "swiglu", "chunk": args.chunk},
        },
    }  # fmt: skip
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, 4 rows of {args.tokens}, width {args.width}")
    print(f"{'layers':>6}{'gradients':>12}" + "".join(f"{name:>28}" for name in stacks))
    for depth in DEPTHS:
        made = [stepper(depth, args.width, args.tokens, changes) for changes in stacks.values()]
        # Memory first, while no gradients of an earlier step are there to be freed.
        peaks, steps = [used(step).peak / 2**20 for step, _ in made], [step for step, _ in made]
        best = [float("inf")] * len(steps)
        for _ in range(args.rounds):
            for i, step in enumerate(steps):
                begin = time.perf_counter()
                step()
                best[i] = min(best[i], time.perf_counter() - begin)
        cells = [f"{t * 1e3:.0f} ms, {peak:.1f} MiB" for t, peak in zip(best, peaks, strict=True)]
        print(f"{depth:>6}{made[0][1] / 2**20:>8.1f} MiB" + "".join(f"{cell:>28}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
