"""Reformer against the public class: time at 16k tokens, and memory of a reversible stack by its depth.

    python bench/reformer.py [--tokens 16384] [--rounds 5] [--only time|memory] [--threads 2]

Time: the public class's default shape, the same weights and hash seed in both, logits compared in fp64 first, then both
in turns in fp32; the figure is the best of the rounds. Memory: the most that one training step allocates at once, for 6
and for 24 layers, with the gradients of the weights named apart.
"""

import argparse
import functools
import time

import torch

import anyformer as af
from anyformer.evals.memory import used

SIDE = 128
CASES = (
    ("LSH layers only", ["lsh"] * 6, 1),
    ("local and LSH layers in turn", ["local", "lsh"] * 3, 1),
    ("the same with 4 rounds", ["local", "lsh"] * 3, 4),
)


def public(tokens, layers, rounds, dtype):
    """The public class with random weights."""
    import transformers

    rows = tokens // SIDE
    config = transformers.ReformerConfig(
        attn_layers=layers, axial_pos_shape=[rows, SIDE], max_position_embeddings=tokens, num_buckets=[16, 32],
        num_hashes=rounds, hash_seed=0, is_decoder=True, hidden_dropout_prob=0.0,
        local_attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.ReformerModelWithLMHead(config).to(dtype)


def in_turns(rounds, runs):
    """Best time of each."""
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(rounds):
        for name, run in runs.items():
            begin = time.perf_counter()
            run()
            best[name] = min(best[name], time.perf_counter() - begin)
    return best


def read(model, ids, **given):
    with torch.no_grad():
        model.eval()
        return model(ids, **given).logits


def learn(model, ids, **given):
    model.train()
    model.zero_grad()
    model(ids, **given).logits.square().mean().backward()


def speed(tokens, rounds):
    ids = torch.randint(0, 320, (1, tokens), generator=torch.Generator().manual_seed(1))
    for title, layers, hashes in CASES:
        theirs = public(tokens, layers, hashes, torch.float64)
        ours = af.from_hf(theirs)
        a, b = read(ours, ids), read(theirs, ids, use_cache=False)
        gap = float((a - b).abs().max() / b.abs().max())
        assert gap < 1e-6, f"logits differ by {gap}"
        theirs, ours = theirs.float(), ours.float()
        for step, run in (("forward", read), ("training step", learn)):
            best = in_turns(rounds, {
                "ours": functools.partial(run, ours, ids), "public": functools.partial(run, theirs, ids, use_cache=False),
            })  # fmt: skip
            print(
                f"{title}, {tokens} tokens, {step}: ours {best['ours']:.3f} s, public {best['public']:.3f} s, "
                f"{best['public'] / best['ours']:.2f}x as fast; logits agree to {gap:.1e} (fp64)",
                flush=True,
            )


def step_memory(tokens, depth, wiring):
    """The most that one training step allocates at once, and the bytes of the weights' gradients among it."""
    spec = af.spec({
        "vocab": 320, "width": 256, "depth": depth, "context": tokens, "attention": {"heads": 2, "head_dim": 64},
        "norm": {"kind": "layernorm"}, "position": {"kind": "axial", "rows": tokens // SIDE, "columns": SIDE},
        "ffn": {"kind": "relu", "width": 512}, "block": {"wiring": wiring},
        "layers": {"order": "local, lsh", "local": {"attention.pattern": "causal & chunked(64, 1)"},
                   "lsh": {"attention.mixer": {"kind": "lsh", "chunk": 64}}},
    })  # fmt: skip
    model = af.build(spec)
    ids = torch.randint(0, 320, (1, tokens), generator=torch.Generator().manual_seed(1))
    peak = used(lambda: model(ids, labels=ids).loss.backward()).peak
    return peak, sum(p.numel() * p.element_size() for p in model.parameters())


def memory(tokens):
    for wiring in ("reversible", "serial"):
        peaks = {depth: step_memory(tokens, depth, wiring) for depth in (6, 24)}
        words = [f"{n} layers {p / 2**20:.0f} MiB ({g / 2**20:.0f} of them gradients)" for n, (p, g) in peaks.items()]
        activations = [peak - gradients for peak, gradients in peaks.values()]
        print(
            f"{wiring}, {tokens} tokens, most in a step: {', '.join(words)}; activations {activations[1] / activations[0]:.2f}x,"
            f" all {peaks[24][0] / peaks[6][0]:.2f}x",
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=("time", "memory"))
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    if given.only != "memory":
        speed(given.tokens, given.rounds)
    if given.only != "time":
        memory(given.tokens)


if __name__ == "__main__":
    main()
