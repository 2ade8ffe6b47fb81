"""Speculative decoding by look-up on a code-editing prompt: tokens/s with and without, and how many tokens differ.

    python bench/speculate.py [--steps 150] [--layers 12] [--ffn 8192]

A small byte-level model learns to write a piece of Python again with a few bytes changed, as an editor's model does. Layers
that add nothing then make it as heavy as wanted (their output maps are zero, and they are read and computed like any
other), so that a step costs what the weights cost. The prompt is a function of the standard library, a comment that asks
for it again, and its first bytes. In turns, best of 5. Not a test.
"""

import argparse
import inspect
import textwrap
import time

import torch

import anyformer as af

ASK = b"\n# Once more:\n"
PIECE = 72


def spec(layers: int, ffn: int):
    """Two layers that learn, and more that don't."""
    return af.spec({
        "vocab": 256, "width": 128, "depth": layers, "context": 512, "attention": {"heads": 4},
        "ffn": {"kind": "swiglu", "width": ffn},
    })  # fmt: skip


def batch(source: torch.Tensor, rows: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Pieces of source, the request, and the pieces again with a few bytes changed; labels are those of the answer."""
    start = torch.randint(0, len(source) - PIECE, (rows, 1), generator=generator)
    pieces = source[start + torch.arange(PIECE)]
    ask = torch.tensor(list(ASK)).expand(rows, -1)
    edited = torch.where(
        torch.rand(pieces.shape, generator=generator) < 0.02,
        torch.randint(32, 127, pieces.shape, generator=generator),
        pieces,
    )
    ids = torch.cat((pieces, ask, edited), 1)
    labels = ids.clone()
    labels[:, : PIECE + len(ASK)] = -100
    return ids, labels


def train(steps: int) -> af.Model:
    """The model of two layers."""
    torch.manual_seed(0)
    import argparse as a
    import ast
    import pathlib
    import tokenize

    text = "".join(inspect.getsource(m) for m in (a, ast, pathlib, tokenize, inspect))
    source, generator = torch.tensor(list(text.encode())), torch.Generator().manual_seed(0)
    model = af.build(spec(2, 512), seed=0).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01, fused=True)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * min(1, (step + 1) / 50, (steps - step) / (0.3 * steps))
        ids, labels = batch(source, 24, generator)
        loss = model(ids, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 100 == 0 or step == steps - 1:
            print(f"  step {step}: loss {loss.item():.3f}", flush=True)
    return model.eval()


def heavier(small: af.Model, layers: int, ffn: int) -> af.Model:
    """The same function with more and wider layers: what was added gives zeros."""
    model = af.build(spec(layers, ffn), seed=1).eval()
    with torch.no_grad():
        own, new = small.state_dict(), model.state_dict()
        for name, tensor in new.items():
            if name in own:
                if own[name].shape != tensor.shape and "down" in name:
                    tensor.zero_()
                tensor[tuple(slice(n) for n in own[name].shape)] = own[name]
            elif name.endswith(("o.weight", "down.weight")):
                tensor.zero_()
    return model


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--ffn", type=int, default=8192)
    given = parser.parse_args()
    small = train(given.steps)
    model = heavier(small, given.layers, given.ffn)
    texts = [inspect.getsource(f).encode()[:PIECE] for f in (textwrap.dedent, textwrap.shorten, inspect.cleandoc)]
    prompts = [torch.tensor([[*text, *ASK, *text[:6]]]) for text in texts]
    new = PIECE - 6
    with torch.no_grad():
        gap = (model(prompts[0]).logits - small(prompts[0]).logits).abs().max().item()
    copied = sum(
        int((af.generate(model, ids, max_new_tokens=new, stop=())[0, -new:] == torch.tensor(list(text[6:]))).sum())
        for ids, text in zip(prompts, texts, strict=True)
    )
    params = sum(p.numel() for p in model.parameters())
    print(
        f"{params / 1e6:.1f}M parameters, logits within {gap:.1e} of the small one; {copied} of {3 * new} bytes copied"
    )
    for guesses in (2, 4, 8, 12):
        seconds, differ = {False: 0.0, True: 0.0}, 0
        for ids in prompts:
            found, best = {}, {False: float("inf"), True: float("inf")}
            for _ in range(5):
                for lookup in (False, True):
                    begin = time.perf_counter()
                    found[lookup] = af.generate(model, ids, max_new_tokens=new, stop=(), lookup=lookup, guesses=guesses)
                    best[lookup] = min(best[lookup], time.perf_counter() - begin)
            differ += int((found[False] != found[True]).sum())
            for lookup, each in best.items():
                seconds[lookup] += each
        total = 3 * new
        print(
            f"{guesses} guesses: {total / seconds[False]:.1f} tok/s plain, {total / seconds[True]:.1f} with look-up, "
            f"{seconds[False] / seconds[True]:.2f} x, {differ} of {total} tokens differ",
            flush=True,
        )


if __name__ == "__main__":
    main()
