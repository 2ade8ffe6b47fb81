"""Training step and decoding of our model against a plain hand-written one with the same weights.

    python bench/core.py [--rounds 12]

Both run in one process, in turns; the figure is the best of the rounds. Printed: time, share of the machine's limit
(arithmetic for training, memory reads for decoding, both measured here), ratio to the peer (below 1: we are faster).
"""

import argparse
import time

import torch
from peer import PlainDecoder, copy_weights
from torch.nn import functional as F

import anyformer as af

SHAPES = {
    "3M (vocab 4096, width 192)": dict(vocab=4096, width=192, depth=6, heads=6, kv_heads=2, ffn=512),
    "15M (vocab 8192, width 320)": dict(vocab=8192, width=320, depth=8, heads=10, kv_heads=5, ffn=896),
    "124M (vocab 32768, width 768)": dict(vocab=32768, width=768, depth=12, heads=12, kv_heads=12, ffn=2048),
}
CONTEXT = 512


def pair(vocab, width, depth, heads, kv_heads, ffn):
    """Our model and the peer, with the same weights and checked to give the same logits."""
    spec = af.spec({
        "vocab": vocab, "width": width, "depth": depth, "context": CONTEXT,
        "attention": {"heads": heads, "kv_heads": kv_heads}, "ffn": {"kind": "swiglu", "width": ffn},
    })  # fmt: skip
    ours = af.build(spec)
    peer = PlainDecoder(vocab, width, depth, heads, kv_heads, ffn, CONTEXT)
    copy_weights(ours, peer)
    ids = torch.randint(0, vocab, (2, 64))
    with torch.no_grad():
        gap = (ours(ids).logits - peer(ids)).abs().max().item()
    assert gap < 1e-3, f"the two models differ by {gap}"
    return ours, peer


def best_of(rounds, *runs):
    """Best time of each run, measured in turns."""
    best = [float("inf")] * len(runs)
    for _ in range(rounds):
        for i, run in enumerate(runs):
            begin = time.perf_counter()
            run()
            best[i] = min(best[i], time.perf_counter() - begin)
    return best


def limits():
    """FLOP/s of a matrix product and bytes/s of a read, on this machine."""
    a = torch.randn(1024, 1024)
    big = torch.randn(64 * 2**20)
    flops, read = best_of(7, lambda: a @ a, big.sum)
    return 2 * 1024**3 / flops, big.numel() * 4 / read


def trainer(model, forward, ids):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step():
        forward(model, ids).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def our_loss(model, ids):
    return model(ids, labels=ids).loss


def peer_loss(model, ids):
    logits = model(ids)[:, :-1]
    return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


def our_decoder(model, ids, tokens):
    cache = model.new_cache(1, CONTEXT)
    model(ids, cache=cache)
    prompt = cache.used

    def run():
        cache.tokens.used = prompt
        with torch.inference_mode():
            token = ids[:, -1:]
            for _ in range(tokens):
                token = model(token, cache=cache).logits[:, -1:].argmax(-1)

    return run


def peer_decoder(model, ids, tokens):
    cache, prompt = model.new_cache(1, CONTEXT), ids.shape[1]
    with torch.inference_mode():
        model(ids, cache, 0)

    def run():
        with torch.inference_mode():
            token = ids[:, -1:]
            for i in range(tokens):
                token = model(token, cache, prompt + i)[:, -1:].argmax(-1)

    return run


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    rounds = (args := parser.parse_args()).rounds
    torch.set_num_threads(args.threads)
    flops, read = limits()
    print(f"torch {torch.__version__}, {args.threads} threads, {flops / 1e9:.0f} GFLOP/s, {read / 1e9:.1f} GB/s read")
    print(f"{'':32}{'ours':>12}{'peer':>12}{'of limit':>10}{'ratio':>8}")
    for name, shape in SHAPES.items():
        ours, peer = pair(**shape)
        count = ours.spec.count()
        batch, tokens = (8, 256) if count.params < 5e7 else (1, 128)
        ids = torch.randint(0, shape["vocab"], (batch, tokens))
        steps = trainer(ours, our_loss, ids), trainer(peer, peer_loss, ids)
        a, b = best_of(rounds, *steps)
        share = 3 * count.flops(tokens).total * batch / a / flops
        print(f"train {name:26}{a * 1e3:9.1f} ms{b * 1e3:9.1f} ms{share:10.0%}{a / b:8.3f}")
        # Short runs, many times: the best of them met no neighbour on the machine.
        new = 8
        runs = our_decoder(ours, ids[:1, :64], new), peer_decoder(peer, ids[:1, :64], new)
        a, b = best_of(8 * rounds, *runs)
        share = count.bytes_moved("decode", 64 + new, "float32") * new / a / read
        print(f"decode {name:25}{a / new * 1e3:9.2f} ms{b / new * 1e3:9.2f} ms{share:10.0%}{a / b:8.3f}")


if __name__ == "__main__":
    main()
