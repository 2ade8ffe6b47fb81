"""No slow axis: the training step of a 350M decoder on a CUDA device, one axis changed at a time from RoPE and causal.

    python bench/axes_gpu.py [AXIS ...] [--jobs 4] [--out FILE]

Width 1024, depth 24, 16 heads of 64, vocabulary 32,768, rows of 4096 tokens, bf16, the blocks compiled, fused
AdamW. Each axis runs in a process of its own: `--jobs` of them compile side by side, and they take turns to be timed.
Printed: tokens/s (median), its ratio to the base, and the ratio of peak memory; those below 0.8x or above 1.2x are a miss.
"""

import argparse
import fcntl
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

TOKENS = 4096
BASE = {
    "vocab": 32768, "width": 1024, "depth": 24, "context": TOKENS, "attention": {"heads": 16},
    "position": {"kind": "rope"}, "ffn": {"kind": "swiglu"}, "head": {"kind": "lm", "tied": True},
}  # fmt: skip


def attention(**fields):
    return {"attention": {"heads": 16, **fields}}


AXES = {
    "base": {},
    "alibi": {"position": {"kind": "alibi"}},
    "t5": {"position": {"kind": "t5"}},
    "shaw": {"position": {"kind": "shaw"}},
    "shaw-keys": {"position": {"kind": "shaw", "on_values": False}},
    "xl": {"position": {"kind": "xl"}},
    "softcap": attention(softcap=50.0),
    "sinks": attention(mixer={"kind": "softmax", "sinks": True}),
    "window": attention(pattern="causal & window(1024)"),
    "strided": attention(pattern="causal & (window(128) | strided(128))"),
    "fixed": attention(pattern="causal & fixed(128, 8)"),
    "global": attention(pattern="causal & (window(512) | global_tokens(64, False))"),
    "packed": {},
    "gqa": attention(kv_heads=4),
    "mqa": attention(kv_heads=1),
    "parallel": {"block": {"wiring": "parallel"}},
    "sandwich": {"norm": {"placement": "sandwich"}},
    "qk-norm": attention(qk_norm={"kind": "rmsnorm"}),
    **{
        f"ffn-{kind}": {"ffn": {"kind": kind}}
        for kind in ["bilinear", "geglu", "gelu", "gelu_quick", "gelu_tanh", "glu", "reglu", "relu", "relu2", "silu"]
    },
}
SPEED, MEMORY = 0.8, 1.2


def measure(name, batch, rounds, lock):
    """Tokens/s and peak bytes of one axis."""
    import torch

    import anyformer as af

    with Path(lock).open("a") as turn:
        # Many compile at once; who is timed waits until nobody does, and nobody begins meanwhile.
        fcntl.flock(turn, fcntl.LOCK_SH)
        torch.manual_seed(0)
        begin = time.perf_counter()
        model = af.build(af.spec(BASE | AXES[name])).to("cuda", torch.bfloat16).train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
        for block in model.decoder.blocks:
            block.compile(fullgraph=True)
        ids = torch.randint(0, BASE["vocab"], (batch, TOKENS), device="cuda")
        more = {}
        if name == "packed":
            more["segments"] = torch.sort(torch.randint(0, 8, (batch, TOKENS), device="cuda")).values

        def step():
            loss = model(ids, labels=ids, **more).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            return loss

        first = step().item()
        step().item()
        ready = time.perf_counter() - begin
        fcntl.flock(turn, fcntl.LOCK_UN)
        fcntl.flock(turn, fcntl.LOCK_EX)
        torch.cuda.reset_peak_memory_stats()
        times = []
        for _ in range(rounds):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            loss = step()
            torch.cuda.synchronize()
            times.append(time.perf_counter() - begin)
        peak = torch.cuda.max_memory_allocated()
    took = statistics.median(times)
    return {
        "axis": name, "tokens_per_second": batch * TOKENS / took, "best": batch * TOKENS / min(times), "peak": peak,
        "parameters": sum(p.numel() for p in model.parameters()), "compile_seconds": round(ready),
        "first_loss": first, "last_loss": loss.item(),
    }  # fmt: skip


def table(found):
    """Every axis beside the base."""
    base = found["base"]
    print(f"{'axis':<16} {'tok/s':>9} {'speed':>7} {'GiB':>6} {'memory':>7}  verdict")
    for name, one in found.items():
        if "error" in one:
            print(f"{name:<16} {one['error']}")
            continue
        speed, memory = one["tokens_per_second"] / base["tokens_per_second"], one["peak"] / base["peak"]
        finite = math.isfinite(one["last_loss"])
        verdict = "the loss is not finite" if not finite else "pass" if speed >= SPEED and memory <= MEMORY else "MISS"
        print(
            f"{name:<16} {one['tokens_per_second']:>9,.0f} {speed:>6.2f}x {one['peak'] / 2**30:>6.1f} {memory:>6.2f}x  {verdict}"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("axes", nargs="*", default=list(AXES), metavar="AXIS", help=f"of {', '.join(AXES)}")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--out", type=Path, help="JSON lines, written as they come")
    parser.add_argument("--lock", help=argparse.SUPPRESS)
    given = parser.parse_args()
    unknown = set(given.axes) - set(AXES)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(AXES)}")
    if given.lock:
        print(json.dumps(measure(given.axes[0], given.batch, given.rounds, given.lock)))
        return
    found = {}
    with tempfile.NamedTemporaryFile() as lock, ThreadPoolExecutor(given.jobs) as pool:

        def child(name):
            words = [name, "--batch", str(given.batch), "--rounds", str(given.rounds), "--lock", lock.name]
            done = subprocess.run([sys.executable, __file__, *words], capture_output=True, text=True, check=False)
            lines = done.stdout.strip().splitlines()
            if done.returncode or not lines:
                return {"axis": name, "error": done.stderr[-800:]}
            return json.loads(lines[-1])

        for one in pool.map(child, dict.fromkeys(["base", *given.axes])):
            found[one["axis"]] = one
            print(json.dumps(one), flush=True)
            if given.out:
                with given.out.open("a") as file:
                    file.write(json.dumps(one) + "\n")
    if "error" not in found["base"]:
        table(found)


if __name__ == "__main__":
    main()
