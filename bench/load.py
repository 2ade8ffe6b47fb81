"""Loading a checkpoint, here and in transformers: time, and memory beyond that after the imports.

    python bench/load.py [--megabytes 500] [--rounds 5]
    python bench/load.py --tensors 60000 --rounds 2

A random Llama directory in fp32 is written to a temporary folder. Each load is a process of its own, in turns; the best
time of the rounds and the largest peak of memory count. Weights are views of the file on both sides and are read when
they are first used, so a load is also measured with one forward pass of 16 tokens behind it, which reads them all.
With `--tensors` it is a Qwen3-MoE with about so many tensors, a small one for each expert and projection: what names cost.
The limit of memory is 1.15 times the file; that of time is a plain read of the file, which is in the system's cache.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from safetensors import safe_open

LIMIT = 1.15


def status(name):
    """A line of /proc/self/status, in bytes."""
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def measure(side, folder):
    """What one process finds, as JSON on standard output."""
    import torch

    torch.set_num_threads(max(1, len(os.sched_getaffinity(0))))
    ids = torch.arange(16)[None]
    if side == "anyformer":
        import anyformer as af
        from anyformer.families import checkpoint  # noqa: F401
        from anyformer.model import native_checkpoint  # noqa: F401

        af.spec(folder)
        load = af.load
    else:
        from transformers import AutoModelForCausalLM, LlamaForCausalLM, Qwen3MoeForCausalLM  # noqa: F401
        from transformers.utils import logging

        logging.disable_progress_bar()
        load = AutoModelForCausalLM.from_pretrained
    torch.zeros(8) @ torch.zeros(8)
    before, began = status("VmRSS"), time.perf_counter()
    model = load(folder)
    loaded, held = time.perf_counter() - began, status("VmHWM") - before
    with torch.no_grad():
        logits = model(ids).logits
    used, peak = time.perf_counter() - began, status("VmHWM") - before
    print(json.dumps({"load": loaded, "use": used, "held": held, "peak": peak, "sum": float(logits.double().sum())}))


def write(folder, megabytes):
    """A Llama of about so many megabytes in fp32."""
    import anyformer as af

    width, vocab = 1024, 16000
    layer = 4 * width**2 + 3 * width * 2816
    depth = max(1, round((megabytes * 2**20 / 4 - 2 * vocab * width) / layer))
    spec = af.spec("llama-7b", {
        "width": width, "depth": depth, "vocab": vocab, "attention.heads": 16, "attention.kv_heads": 16, "ffn.width": 2816,
    })  # fmt: skip
    af.save(af.build(spec), folder, format="hf")


def write_experts(folder, tensors):
    """A Qwen3-MoE with about so many tensors."""
    import anyformer as af

    depth = 48
    spec = af.spec("qwen3-30b-a3b", {
        "width": 64, "depth": depth, "vocab": 1000, "attention.heads": 4, "attention.kv_heads": 2, "attention.head_dim": 16,
        "ffn.width": 16, "ffn.experts": max(8, round(tensors / (3 * depth))),
    })  # fmt: skip
    af.save(af.build(spec), folder, format="hf")


def main():
    parser = argparse.ArgumentParser(description="Time and memory of loading, against transformers.")
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tensors", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if given.tensors:
            write_experts(folder, given.tensors)
        else:
            write(folder, given.megabytes)
        return compare(folder, given.rounds)


def compare(folder, rounds):
    """Measure both sides in turns, and print; 1 if the limit of memory is passed."""
    file = Path(folder) / "model.safetensors"
    size, sides = file.stat().st_size, ("anyformer", "transformers")
    found = {side: [] for side in sides}
    plain = float("inf")
    for _ in range(rounds):
        began = time.perf_counter()
        with file.open("rb", buffering=0) as stored:
            part = bytearray(2**22)
            while stored.readinto(part):
                pass
        plain = min(plain, time.perf_counter() - began)
        for side in sides:
            command = [sys.executable, __file__, "--measure", side, folder]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            found[side].append(json.loads(done.stdout))
    sums = {round(each["sum"], 2) for side in sides for each in found[side]}
    assert len(sums) == 1, f"the sides disagree: {sums}"
    with safe_open(file, framework="np") as stored:
        count = len(stored.keys())
    print(f"{count:,} tensors, {size / 2**20:.0f} MiB in fp32; plain read {plain:.3f} s; best of {rounds}, in turns")
    for name, words in (("load", "load"), ("use", "load and one forward pass")):
        ours, theirs = (min(each[name] for each in found[side]) for side in sides)
        # A load by itself reads next to nothing of the file, so only the second is held against reading all of it.
        share = f", {plain / ours:.0%} of the limit" if name == "use" else ""
        print(f"{words}: {ours:.3f} s (transformers {theirs:.3f} s), ratio {ours / theirs:.2f}{share}")
    for name, words in (("held", "memory after the load"), ("peak", "memory after the forward pass")):
        ours, theirs = (max(each[name] for each in found[side]) / size for side in sides)
        print(f"{words}: {ours:.3f} x the file (transformers {theirs:.3f}), {ours / LIMIT:.0%} of the limit of {LIMIT}")
    worst = max(each["peak"] for each in found["anyformer"]) / size
    return 0 if worst <= LIMIT else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        measure(*sys.argv[2:])
    else:
        sys.exit(main())
