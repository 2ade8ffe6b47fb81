"""What the server costs on top of the engine that it wraps: the same requests over HTTP and straight to the engine.

    python bench/serve.py                       all of it on a CPU: a 15M shape in fp32, 64 streams
    python bench/serve.py throughput --rounds 3
    python bench/serve.py --device cuda         throughput on a GPU: a Qwen3-0.6B shape in bf16, 256 streams, in one
                                                process and with the front end apart

throughput   tokens/s of streams over HTTP against the engine alone; best of the rounds, in turns. On a CPU the server has
             one core (torch with one thread) and the client another.
latency      time to the first token and between tokens, over HTTP and of the engine alone; CPU time of the event loop's
             thread for each streamed token.
start        `anyformer serve --help`, time until ready, CPU while idle.
disconnect   from a closed connection to a free slot, streaming and not.
overload     ten times as many requests as the server takes: goodput, and how fast the others are refused.

Random weights, no stop tokens, prompts of 16 to 256 ids. All sub-benchmarks start `anyformer serve` as a user would.
"""

import argparse
import asyncio
import itertools
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import torch

SMALL = {
    "vocab": 8192, "width": 320, "depth": 8, "context": 1024, "attention": {"heads": 10, "kv_heads": 5},
    "ffn": {"kind": "swiglu", "width": 896},
}  # fmt: skip
LARGE = {"vocab": 151936}
ROOT = Path(__file__).resolve().parent.parent
PATHS = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(PATHS)}
TICK = os.sysconf("SC_CLK_TCK")


def make_folder(place, device):
    """A model with random weights and a byte-level tokenizer with as many tokens."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers

    import anyformer as af
    from anyformer.data.tokenizer import Tokenizer

    large = device == "cuda"
    spec = af.spec("qwen3-0.6b", LARGE) if large else af.spec("llama-7b", SMALL)
    dtype = torch.bfloat16 if large else torch.float32
    af.save(af.build(spec, device=device, dtype=dtype, seed=0), place)
    rng = random.Random(0)
    signs = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = dict.fromkeys(signs)
    while len(names) < spec.vocab:
        names["\u0120" * rng.randint(0, 1) + "".join(rng.choices("etaoinshrdlu", k=rng.randint(1, 7)))] = None
    inner = tokenizers.Tokenizer(models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=[]))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    Tokenizer(inner).save(place)
    return spec.vocab


def mix(count, low, high, vocab, seed):
    rng = random.Random(seed)
    prompts = [[rng.randrange(vocab) for _ in range(rng.randint(low, high))] for _ in range(count)]
    return prompts, [rng.randint(low, high) for _ in range(count)]


class Server:
    """`anyformer serve` as a child."""

    def __init__(self, folder, *flags, pin=None):
        words = [sys.executable, "-m", "anyformer", "serve", str(folder), "--port", "0", "--log", "none", *flags]
        self.began = time.perf_counter()
        self.process = subprocess.Popen(
            (["taskset", "-c", pin] if pin else []) + words,
            stderr=subprocess.PIPE, text=True, env=ENVIRONMENT,
        )  # fmt: skip
        line = ""
        while not (found := re.search(r"http://([\d.]+):(\d+)", line)):
            line = self.process.stderr.readline()
            if not line and self.process.poll() is not None:
                raise SystemExit("the server did not start")
        self.ready = time.perf_counter() - self.began
        self.host, self.port = found[1], int(found[2])

    def cpu(self, thread=False):
        """Seconds of CPU so far: of the process, or of its first thread, which runs the event loop."""
        pid = self.process.pid
        place = f"/proc/{pid}/task/{pid}/stat" if thread else f"/proc/{pid}/stat"
        fields = Path(place).read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICK

    def close(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)


@contextmanager
def serving(folder, *flags, pin=None):
    server = Server(folder, *flags, pin=pin)
    try:
        yield server
    finally:
        server.close()


def request_bytes(server, path, body):
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: {server.host}:{server.port}\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    return head.encode() + data


async def stream(server, prompt, new, times=None, **more):
    """One streamed completion: how many events with text came. `times` gets when each did."""
    reader, writer = await asyncio.open_connection(server.host, server.port)
    body = {
        "prompt": prompt,
        "max_tokens": new,
        "stream": True,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": False,
    }
    writer.write(request_bytes(server, "/v1/completions", body | more))
    count, status = 0, int((await reader.readline()).split()[1])
    try:
        while True:
            data = await reader.read(65536)
            if not data:
                return count, status
            new_events = data.count(b'"text":')
            if new_events and times is not None:
                times += [time.perf_counter()] * new_events
            count += new_events
            if b"data: [DONE]" in data or (status != 200 and b"error" in data):
                return count, status
    finally:
        writer.close()


async def all_streams(server, prompts, news):
    began = time.perf_counter()
    found = await asyncio.gather(*(stream(server, p, n) for p, n in zip(prompts, news, strict=True)))
    if any(status != 200 for _, status in found):
        raise SystemExit(f"statuses: {sorted({status for _, status in found})}")
    return sum(news) / (time.perf_counter() - began)


ENGINE = """
import json, sys, time, torch, anyformer as af
from anyformer.generation.engine import Engine
given = json.loads(sys.stdin.readline())
if given["threads"]: torch.set_num_threads(given["threads"])
model = af.load(given["folder"], device=given["device"]).eval()
engine = Engine(model, max_num_seqs=given["slots"], max_model_len=given["length"])
def run(prompts, news):
    for i, (p, n) in enumerate(zip(prompts, news)):
        engine.add_request(p, id=i, max_new_tokens=n, stop=(), temperature=0)
    first, steps, begun = {}, [], time.perf_counter()
    while not engine.idle:
        at = time.perf_counter()
        for out in engine.step():
            first.setdefault(out.request, time.perf_counter() - begun)
        steps.append(time.perf_counter() - at)
    return time.perf_counter() - begun, list(first.values()), steps
print("ready", flush=True)
for line in sys.stdin:
    seconds, first, steps = run(*json.loads(line))
    print(json.dumps([seconds, first, steps]), flush=True)
"""


class Alone:
    """The engine in a process of its own, without HTTP."""

    def __init__(self, folder, slots, length, device, pin=None, threads=None):
        words = (["taskset", "-c", pin] if pin else []) + [sys.executable, "-c", ENGINE]
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT
        )
        given = {"folder": str(folder), "slots": slots, "length": length, "device": device, "threads": threads}
        self._say(given)
        self.process.stdout.readline()

    def _say(self, value):
        self.process.stdin.write(json.dumps(value) + "\n")
        self.process.stdin.flush()

    def run(self, prompts, news):
        self._say([prompts, news])
        return json.loads(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.wait(60)


def share(values, q):
    return sorted(values)[min(len(values) - 1, int(q * len(values)))]


def throughput(folder, vocab, given):
    cuda = given.device == "cuda"
    slots, low, high, length = (256, 100, 1024, 2048) if cuda else (64, 16, 256, 512)
    prompts, news = mix(slots, low, high, vocab, 0)
    pins = (None, None) if cuda else ("0", "1")
    flags = [
        "--max-num-seqs",
        str(slots),
        "--max-model-len",
        str(length),
        "--device",
        given.device,
        "--max-queue",
        "1000",
    ]
    flags += ["--max-connections-per-address", "1000"] + ([] if cuda else ["--threads", "1"])
    if not cuda:
        os.sched_setaffinity(0, {1})
    alone = Alone(folder, slots, length, given.device, pins[0], None if cuda else 1)
    alone.run(prompts, [2 + i // 8 for i in range(slots)])
    ways = {"one process": [], "front end apart": ["--front-end-process"]}
    for name, more in ways.items() if cuda or given.apart else list(ways.items())[:1]:
        rates = []
        with serving(folder, *flags, *more, pin=pins[0]) as server:
            asyncio.run(all_streams(server, prompts, [2 + i // 8 for i in range(slots)]))
            for _ in range(given.rounds):
                # Other tokens in each round, as the server keeps prefixes that it knows; the same ones for both.
                prompts, news = mix(slots, low, high, vocab, random.randrange(2**30))
                engine = sum(news) / alone.run(prompts, news)[0]
                before = server.cpu(thread=True)
                http = asyncio.run(all_streams(server, prompts, news))
                used = 1e6 * (server.cpu(thread=True) - before) / sum(news)
                rates.append((http / engine, http, engine))
                print(f"  round: engine {engine:,.0f}, HTTP {http:,.0f} tokens/s, {http / engine:.3f}; event loop {used:.0f} us CPU per token", flush=True)  # fmt: skip
        share, http, engine = max(rates)
        print(f"{slots} streams on {given.device}, {name}: best of {given.rounds}: {http:,.0f} of {engine:,.0f} tokens/s = {share:.3f}; median {sorted(rates)[len(rates) // 2][0]:.3f}", flush=True)  # fmt: skip
    alone.close()


def latency(folder, vocab, given):
    os.sched_setaffinity(0, {1})
    alone = Alone(folder, 64, 512, "cpu", "0", 1)
    with serving(folder, "--max-num-seqs", "64", "--max-model-len", "512", "--threads", "1", "--max-connections-per-address", "100", pin="0") as server:  # fmt: skip
        first, engine = [], []
        for i in range(given.requests):
            (prompt,), _ = mix(1, 16, 16, vocab, i + 10)
            engine.append(alone.run([prompt], [2])[1][0])
            times, began = [], time.perf_counter()
            asyncio.run(stream(server, prompt, 2, times))
            first.append(times[0] - began)
        for name, q in (("p50", 0.5), ("p99", 0.99)):
            over = share(first, q) - share(engine, q)
            print(f"time to first token {name}: HTTP {1e3 * share(first, q):.2f} ms, engine {1e3 * share(engine, q):.2f} ms, over {1e3 * over:.2f} ms")  # fmt: skip
        prompts, _ = mix(64, 16, 16, vocab, 5)
        steps = alone.run(prompts, [128] * 64)[2][4:]
        gaps = [[] for _ in prompts]

        async def run():
            await asyncio.gather(*(stream(server, p, 128, times) for p, times in zip(prompts, gaps, strict=True)))

        asyncio.run(run())
        # Once all of them have begun: before that, steps also read prompts.
        begun = max(times[1] for times in gaps)
        between = [b - a for times in gaps for a, b in itertools.pairwise(times) if a > begun]
        for name, q in (("p50", 0.5), ("p99", 0.99)):
            print(f"between tokens {name}, 64 streams: HTTP {1e3 * share(between, q):.2f} ms, engine's step {1e3 * share(steps, q):.2f} ms")  # fmt: skip
    alone.close()


def start(folder, given):
    times = []
    for _ in range(5):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-m", "anyformer", "serve", "--help"], stdout=subprocess.DEVNULL, check=True, env=ENVIRONMENT)  # fmt: skip
        times.append(time.perf_counter() - began)
    print(f"anyformer serve --help: {1e3 * min(times):.0f} ms (best of 5)")
    began = time.perf_counter()
    load = f"import time, anyformer as af; af.load({str(folder)!r}); af.tokenizer({str(folder)!r})"
    subprocess.run([sys.executable, "-c", load], check=True, env=ENVIRONMENT)
    plain = time.perf_counter() - began
    with serving(folder) as server:
        before, idle = server.cpu(), 10.0
        time.sleep(idle)
        print(
            f"ready after {server.ready:.2f} s; import and load alone {plain:.2f} s; over {server.ready - plain:.2f} s"
        )
        print(f"idle: {100 * (server.cpu() - before) / idle:.2f}% of a core")


async def _metric(server, name):
    reader, writer = await asyncio.open_connection(server.host, server.port)
    writer.write(f"GET /metrics HTTP/1.1\r\nhost: {server.host}:{server.port}\r\nconnection: close\r\n\r\n".encode())
    text = (await reader.read(-1)).decode()
    writer.close()
    return float(re.search(rf"^{name}\{{[^}}]*\}} (\S+)$", text, re.M)[1])


def disconnect(folder, vocab, given):
    async def once(server, i, streams):
        (prompt,), _ = mix(1, 16, 16, vocab, i)
        reader, writer = await asyncio.open_connection(server.host, server.port)
        body = {"prompt": prompt, "max_tokens": 400, "stream": streams, "temperature": 0, "ignore_eos": True}
        writer.write(request_bytes(server, "/v1/completions", body))
        if streams:
            await reader.readuntil(b'"text":')
        else:
            while await _metric(server, "vllm:num_requests_running") < 1:
                pass
        began = time.perf_counter()
        writer.transport.abort()
        while await _metric(server, "vllm:num_requests_running") > 0:
            pass
        return time.perf_counter() - began

    with serving(folder, "--max-model-len", "512", "--threads", "1") as server:
        for streams in (True, False):
            found = [asyncio.run(once(server, i, streams)) for i in range(given.requests)]
            print(f"disconnect to free slot, {'streaming' if streams else 'not streaming'}, {given.requests} times: p50 {1e3 * share(found, 0.5):.1f} ms, p99 {1e3 * share(found, 0.99):.1f} ms, most {1e3 * max(found):.1f} ms")  # fmt: skip


def overload(folder, vocab, given):
    async def run(server, count, seed):
        prompts, _ = mix(count, 16, 16, vocab, seed)
        refused, good, waits = 0, 0, []

        async def one(prompt):
            nonlocal refused, good
            began = time.perf_counter()
            n, status = await stream(server, prompt, 64)
            if status == 429:
                refused += 1
                waits.append(time.perf_counter() - began)
            elif status == 200:
                good += n
            else:
                print("  unexpected status", status)

        began = time.perf_counter()
        # They come within a second, as from many clients.
        rng = random.Random(0)

        async def later(prompt):
            await asyncio.sleep(rng.random())
            await one(prompt)

        await asyncio.gather(*(later(p) for p in prompts))
        return good / (time.perf_counter() - began), refused, waits

    flags = [
        "--max-num-seqs",
        "16",
        "--max-queue",
        "16",
        "--max-model-len",
        "512",
        "--max-connections-per-address",
        "1000",
    ]
    with serving(folder, *flags) as server:
        asyncio.run(run(server, 8, 0))
        peak = max(asyncio.run(run(server, 32, seed))[0] for seed in (1, 2, 3))
        rate, refused, waits = asyncio.run(run(server, 320, 4))
        slow = f"p50 {1e3 * share(waits, 0.5):.1f} ms, p99 {1e3 * share(waits, 0.99):.1f} ms" if waits else "none"
        print(
            f"overload x10: goodput {rate:,.0f} of {peak:,.0f} tokens/s = {rate / peak:.2f}; {refused} of 320 refused: {slow}"
        )


def main():
    parser = argparse.ArgumentParser(description="What the server costs on top of the engine.")
    parts = ("throughput", "latency", "start", "disconnect", "overload")
    parser.add_argument("what", nargs="*", choices=[*parts, []], default=[])
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--apart", action="store_true", help="throughput with the front end apart on a CPU too")
    given = parser.parse_args()
    wanted = given.what or (["throughput"] if given.device == "cuda" else parts)
    everywhere = os.sched_getaffinity(0)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "model"
        vocab = make_folder(folder, given.device)
        for name in wanted:
            print(f"{name}:", flush=True)
            os.sched_setaffinity(0, everywhere)
            call = {"throughput": throughput, "latency": latency, "disconnect": disconnect, "overload": overload}.get(
                name
            )
            start(folder, given) if call is None else call(folder, vocab, given)


if __name__ == "__main__":
    main()
