"""Two trees of this project beside each other: is one slower than the other?

    python bench/versions.py OLD NEW [--rounds 3] [--what decode-15m,train-3m,...]

OLD and NEW are folders that hold the package, such as two worktrees. Each figure is the median over rounds in which the
trees take turns, each in a process of its own; the ratio is new over old, so below 1 is slower. Not a test.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LLAMA = {"position": "rope", "ffn": "swiglu", "norm": "rmsnorm"}
CPU = ("decode-15m", "decode-124m", "train-3m", "load")
GPU = ("8b-1", "1b-1", "8b-32", "mixed-256", "gpt2-train", "llama-1b-train")


def small(width: int, depth: int, heads: int, vocab: int, context: int = 512):
    import anyformer as af

    size = {"vocab": vocab, "width": width, "depth": depth, "context": context, "attention": {"heads": heads}}
    return af.build(af.spec(size | LLAMA), seed=0)


def decode(model, batch: int, prompt: int, new: int, runs: int = 3) -> float:
    """New tokens a second, after a call to warm up."""
    import torch

    import anyformer as af

    device = next(model.parameters()).device
    ids = torch.randint(0, model.spec.vocab, (batch, prompt), device=device)
    af.generate(model, ids, max_new_tokens=8, stop=())
    taken = []
    for _ in range(runs):
        began = time.perf_counter()
        af.generate(model, ids, max_new_tokens=new, stop=())[0, 0].item()
        taken.append(time.perf_counter() - began)
    return batch * new / statistics.median(taken)


def mixed() -> float:
    """256 requests of 100 to 1,024 tokens in and out; output tokens a second."""
    import torch

    model = big("qwen3-0.6b")
    torch.manual_seed(0)
    sizes = torch.randint(100, 1025, (256, 2)).tolist()
    try:
        from anyformer.generation.engine import Engine

        engine = Engine(model, max_num_seqs=256, max_model_len=2048, max_num_batched_tokens=16384, prefill_chunk=2048)
        add = engine.add_request
    except ImportError:
        from anyformer.generation.batching import Batcher

        engine = Batcher(model, seats=256, length=2048, budget=16384, chunk=2048)
        add = engine.submit
    speed = 0.0
    for _ in range(2):
        torch.cuda.synchronize()
        began, count = time.perf_counter(), 0
        for prompt, new in sizes:
            add(torch.randint(0, 10000, (prompt,)).tolist(), max_new_tokens=new, stop=())
        while not engine.idle:
            count += sum(len(event.ids) for event in engine.step())
        torch.cuda.synchronize()
        speed = count / (time.perf_counter() - began)
    return speed


def big(name: str):
    import torch

    import anyformer as af

    return af.build(af.spec(name), device="cuda", dtype=torch.bfloat16, seed=0).eval()


def train(model, batch: tuple[int, int], *, autocast: bool, kind: str, rounds: int = 5) -> float:
    """Tokens a second of a training step."""
    import torch

    without = {}
    for name in ("keeps_logits", "return_logits"):
        if hasattr(model, name):
            setattr(model, name, False)
            break
    else:
        without = {"return_logits": False}
    if kind != "none":
        try:
            from anyformer.train.compile import compiled
        except ImportError:
            from anyformer.train.compiled import compiled
        compiled(model, kind)
    device = next(model.parameters()).device
    ids = torch.randint(0, model.spec.vocab - 1, batch, device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device.type == "cuda")

    def step() -> float:
        with torch.autocast(device.type, torch.bfloat16, enabled=autocast):
            loss = model(ids, labels=ids, **without).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    for _ in range(3):
        step()
    taken = []
    for _ in range(rounds):
        began = time.perf_counter()
        for _ in range(3):
            step()
        taken.append((time.perf_counter() - began) / 3)
    return batch[0] * batch[1] / statistics.median(taken)


def load() -> dict[str, float]:
    """Loads a second, and MiB at most beside the interpreter, of a folder of 124M parameters."""
    import anyformer as af

    with tempfile.TemporaryDirectory() as folder:
        af.save(small(768, 12, 12, 50257), folder)
        gc.collect()
        taken = []
        for _ in range(5):
            began = time.perf_counter()
            af.load(folder)
            taken.append(time.perf_counter() - began)
    return {
        "load": 1 / statistics.median(taken),
        "1 / peak memory": 1 / resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    }


def measure(what: str) -> dict[str, float]:
    import torch

    import anyformer as af

    sys.path.insert(0, str(Path(__file__).parent))
    if what.endswith("-train"):
        from train_gpu import BATCH, SHAPES

        shape = what.split("-")[0]
        dtype = torch.bfloat16 if shape == "llama" else torch.float32
        model = af.build(af.spec(SHAPES[shape])).to("cuda", dtype).train()
        return {what: train(model, BATCH[shape], autocast=shape == "gpt2", kind="block")}
    match what:
        case "decode-15m":
            return {what: decode(small(288, 6, 6, 32000, 256).eval(), 1, 16, 96)}
        case "decode-124m":
            return {what: decode(small(768, 12, 12, 50257).eval(), 1, 16, 24)}
        case "train-3m":
            return {what: train(small(256, 4, 4, 1024).train(), (4, 256), autocast=False, kind="none")}
        case "load":
            return load()
        case "mixed-256":
            return {what: mixed()}
        case _:
            name, batch = what.rsplit("-", 1)
            model = big({"8b": "llama-3-8b", "1b": "llama-3.2-1b"}[name])
            return {what: decode(model, int(batch), 128, 256)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trees", nargs="*", metavar="TREE")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--what", help="names with commas between them")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        print(json.dumps(measure(given.child)))
        return 0
    if len(given.trees) != 2:
        parser.error("give two folders: the old tree and the new one")
    import torch

    names = given.what.split(",") if given.what else GPU if torch.cuda.is_available() else CPU
    for what in names:
        found: dict[str, list[list[float]]] = {}
        for _ in range(given.rounds):
            for side, tree in enumerate(given.trees):
                path = os.pathsep.join([str(Path(tree).resolve()), os.environ.get("PYTHONPATH", "")])
                done = subprocess.run(
                    [sys.executable, __file__, "--child", what], env=os.environ | {"PYTHONPATH": path}, text=True,
                    stdout=subprocess.PIPE,
                )  # fmt: skip
                if done.returncode:
                    print(f"{what}: {tree} failed")
                    continue
                for name, value in json.loads(done.stdout.splitlines()[-1]).items():
                    found.setdefault(name, [[], []])[side].append(value)
        for name, (old, new) in found.items():
            if old and new:
                before, after = statistics.median(old), statistics.median(new)
                print(f"{name:16} old {before:12,.4g}   new {after:12,.4g}   ratio {after / before:.3f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
