"""Generation on one GPU, against transformers with the same random weights.

    python bench/generate_gpu.py 8b 1b phi3 window mixed rate quantised [--peer]

Prints each figure, its share of the limit, and the ratio to the peer. Not a test.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import sys
import time
from typing import Any

import torch

import anyformer as af
from anyformer.generation.engine.model_runner import dismiss, runner_for

BUS = 4.43e12
"""Bytes a second of a matrix-vector product (measured on an H200)."""
SHAPES: dict[str, Any] = {
    "8b": lambda: af.spec("llama-3-8b"),
    "1b": lambda: af.spec("llama-3.2-1b"),
    "phi3": lambda: af.spec("phi-3-mini-4k", {"context": 16384}),
    "0.6b": lambda: af.spec("qwen3-0.6b"),
}


def built(name: str) -> Any:
    spec = SHAPES[name]()
    with torch.device("cuda"):
        return af.build(spec, device="cuda", dtype=torch.bfloat16, seed=0).eval()


def timed(call: Any, runs: int = 3) -> list[float]:
    found = []
    for _ in range(runs):
        torch.cuda.synchronize()
        began = time.perf_counter()
        call()
        torch.cuda.synchronize()
        found.append(time.perf_counter() - began)
    return found


def say(*words: Any) -> None:
    print(*words, flush=True)


def theirs(model: Any, ids: torch.Tensor, new: int) -> float:
    """Seconds of the peer's own generate with the same weights, after a short one to warm up."""
    peer = af.to_hf(model).eval()

    def ask(count: int) -> None:
        peer.generate(ids, max_new_tokens=count, min_new_tokens=count, do_sample=False, pad_token_id=0)

    ask(8)
    return min(timed(functools.partial(ask, new), 1))


def quantised(name: str) -> None:
    """The same model with weights of 8 and of 4 bits."""
    from anyformer.model.quantize import quantize

    for kind in ("int8", "int4"):
        model = quantize(built(name), kind)
        ids = torch.randint(0, model.spec.vocab, (1, 128), device="cuda")
        ask = functools.partial(af.generate, model, ids, stop=())
        ask(max_new_tokens=8)
        whole, first = (min(timed(functools.partial(ask, max_new_tokens=n), 3)) for n in (256, 1))
        step = (whole - first) / 255
        say(f"  {name} {kind}: {256 / whole:.1f} tok/s in all, step {1e3 * step:.3f} ms = {1 / step:.1f} tok/s")
        dismiss(model)
        del model, ask
        torch.cuda.empty_cache()


def decode(name: str, batches: tuple[int, ...], began: float, *, peer: bool, prompt: int = 128, new: int = 256) -> None:
    model = built(name)
    torch.cuda.synchronize()
    say(f"{name}: built at {time.perf_counter() - began:.1f} s")
    spec, vocab = model.spec, model.spec.vocab
    for batch in batches:
        ids = torch.randint(0, vocab, (batch, prompt), device="cuda")
        start = time.perf_counter()
        first = next(iter(af.generate(model, ids, max_new_tokens=new, stop=(), stream=True)))
        say(
            f"  batch {batch}: first token {time.perf_counter() - start:.2f} s after the call, {time.perf_counter() - began:.2f} s after the start; {first.shape}"
        )
        start = time.perf_counter()
        af.generate(model, ids, max_new_tokens=8, stop=())
        say(f"  first answer of 8 tokens {time.perf_counter() - start:.2f} s")
        ask = functools.partial(af.generate, model, ids, stop=())
        ours = statistics.median(timed(functools.partial(ask, max_new_tokens=new), 5))
        prefill = statistics.median(timed(functools.partial(ask, max_new_tokens=1), 5))
        per = (ours - prefill) / (new - 1)
        moved = spec.count().bytes_moved("decode", prompt + new // 2, "bfloat16", batch)
        say(
            f"  batch {batch}: {batch * new / ours:.1f} tok/s in all, prefill {1e3 * prefill:.1f} ms, step "
            f"{1e3 * per:.3f} ms = {batch / per:.1f} tok/s, {moved / per / BUS:.1%} of the bus"
        )
        if peer:
            hf = theirs(model, ids, new)
            torch.cuda.empty_cache()
            say(f"  batch {batch}: transformers, dynamic cache: {batch * new / hf:.1f} tok/s; ratio {hf / ours:.2f}")
    dismiss(model)


def cached_or_not(began: float, *, peer: bool) -> None:
    model = built("phi3")
    say(f"phi3: built at {time.perf_counter() - began:.1f} s")
    for prompt in (22, 1024, 8192):
        ids = torch.randint(0, model.spec.vocab, (1, prompt), device="cuda")
        ask = functools.partial(af.generate, model, ids, max_new_tokens=100, stop=())
        ask()
        with_cache = statistics.median(timed(ask, 5))
        without = min(timed(functools.partial(ask, use_cache=False), 1))
        say(
            f"  {prompt} + 100 tokens: {with_cache:.3f} s with the cache, {without:.2f} s without, ratio {without / with_cache:.1f}"
        )
        if peer and prompt == 22:
            hf = theirs(model, ids, 100)
            torch.cuda.empty_cache()
            say(f"  transformers with its cache: {hf:.2f} s; ratio {hf / with_cache:.1f}")
    dismiss(model)


def window() -> None:
    """A window model at 8k and at 128k tokens: the ring is full in both."""
    spec = af.spec("llama-3-8b", {"depth": 8, "context": 131072, "attention.pattern": "window(4096)"})
    model = af.build(spec, device="cuda", dtype=torch.bfloat16, seed=0).eval()
    full = spec.vary({"attention.pattern": "causal"})
    for length in (8192, 131072):
        runner = runner_for(model, 1, length)
        sequence = runner.pool.add()
        runner.pool.reserve(sequence, length - 512)
        # What the ring holds does not matter for the time of a step.
        sequence.num_computed_tokens = length - 512
        runner.pool.reserve(sequence, 512)
        for _ in range(20):
            runner.decode([sequence], [0])
        steps = timed(lambda runner=runner, sequence=sequence: [runner.decode([sequence], [0]) for _ in range(100)], 4)
        held = runner.pool.nbytes
        least = full.count().kv_bytes(4096, "bfloat16", 1)
        say(
            f"  window 4096 at {length}: step {10 * min(steps):.3f} ms; KV {held / 2**20:.0f} MiB, {held / least:.3f} of the window's"
        )
        runner.pool.free(sequence)
        dismiss(model)


def rate() -> None:
    """How often bf16 answers differ alone and in a batch, and what it costs that they never do."""
    from anyformer.generation.engine import Engine

    model = built("1b")
    torch.manual_seed(1)
    prompts = [torch.randint(0, 1000, (n,)).tolist() for n in torch.randint(20, 200, (32,)).tolist()]
    for same in (False, True):
        answers: dict[str, list[list[int]]] = {}
        times: dict[str, float] = {}
        for way in ("alone", "together"):
            engine = Engine(
                model, max_num_seqs=32, max_model_len=512, batch_invariant=same, enable_prefix_caching=False
            )
            groups = [[i] for i in range(32)] if way == "alone" else [list(range(32))]
            found: list[list[int]] = [[] for _ in prompts]
            began = time.perf_counter()
            for group in groups:
                added = engine.run([{"input_ids": prompts[i], "max_new_tokens": 128, "stop": ()} for i in group])
                for i, each in zip(group, added, strict=True):
                    found[i] = each.sequences[0].new
            times[way] = time.perf_counter() - began
            answers[way] = found
            del engine
        differing = sum(a != b for a, b in zip(answers["alone"], answers["together"], strict=True))
        tokens = sum(
            next((k for k, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), 128)
            for a, b in zip(answers["alone"], answers["together"], strict=True)
        )
        say(
            f"  batch_invariant={same}: {differing} of 32 answers of 128 tokens differ (agreeing tokens before: {tokens} of {32 * 128}); "
            f"alone {32 * 128 / times['alone']:.0f} tok/s, together {32 * 128 / times['together']:.0f} tok/s"
        )


def mixed() -> None:
    """256 requests of 100 to 1024 tokens in and out, by continuous batching."""
    from anyformer.generation.engine import Engine

    model = built("0.6b")
    torch.manual_seed(0)
    sizes = torch.randint(100, 1025, (256, 2)).tolist()
    engine = Engine(
        model, max_num_seqs=256, max_model_len=2048, block_size=64, max_num_batched_tokens=16384, prefill_chunk=2048
    )
    for round_ in ("with captures", "when those are there"):
        # New ones each time, so that no beginning is known.
        prompts = [torch.randint(0, 10000, (n,)).tolist() for n, _ in sizes]
        torch.cuda.synchronize()
        began = time.perf_counter()
        for ids, (_, new) in zip(prompts, sizes, strict=True):
            engine.add_request(ids, max_new_tokens=new, stop=())
        count = 0
        while not engine.idle:
            count += sum(len(event.ids) for event in engine.step())
        torch.cuda.synchronize()
        seconds = time.perf_counter() - began
        say(f"  256 mixed requests {round_}: {count} tokens in {seconds:.2f} s, {count / seconds:.0f} output tok/s")
        say(f"  {engine.stats}")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", nargs="+", choices=("8b", "1b", "phi3", "window", "rate", "mixed", "quantised"))
    parser.add_argument("--peer", action="store_true", help="also run transformers")
    given = parser.parse_args()
    began = time.perf_counter()
    for what in given.what:
        say(what)
        match what:
            case "8b" | "1b":
                decode(what, (1, 32), began, peer=given.peer)
            case "phi3":
                cached_or_not(began, peer=given.peer)
            case "window":
                window()
            case "rate":
                rate()
            case "mixed":
                mixed()
            case "quantised":
                quantised("8b")
        torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main())
