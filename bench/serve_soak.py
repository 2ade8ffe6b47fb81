"""A server that many clients treat badly for a long time: what it answers, and what it has left in the end.

    python bench/serve_soak.py fuzz --count 100000      malformed requests over all routes
    python bench/serve_soak.py soak --minutes 10        overload, clients that leave at any moment, requests of every kind

A tiny model on a CPU, with one thread, in a process of its own, which tells its tasks, threads, files and memory. Both
print what came back, and what was left when nobody asked any more: sequences, KV blocks, tasks, threads, files.
"""

import argparse
import asyncio
import contextlib
import dataclasses
import http.client
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

ROOM = 256
WORKERS = 8
"""Connections of the fuzzer at once."""
CLIENTS = 48
"""Clients of the soak, six for each slot."""
PATIENCE = 60.0
REFERENCE = {"prompt": "the dog sat on the mat", "max_tokens": 40, "seed": 12, "ignore_eos": True}
SCHEMA = {
    "type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}, "n": {"type": "integer", "minimum": 0, "maximum": 999}},
    "required": ["city", "n"], "additionalProperties": False,
}  # fmt: skip
TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}


def serve(folder, kind):
    """The child: serves, and answers each line on its standard input with what it holds."""
    import torch

    from tests.serve.running import config_of, serving_engine

    torch.set_num_threads(1)
    limits = (
        {"body_seconds": 0.3, "head_seconds": 0.3} if kind == "fuzz" else {"queue": 24, "connections_per_address": 512}
    )
    config = config_of(limits, model=folder, dtype="float64", max_num_seqs=8, max_model_len=ROOM, slots=True)
    with serving_engine(config) as running:
        print(json.dumps({"port": running.port}), flush=True)
        for _ in sys.stdin:
            print(json.dumps(held(running)), flush=True)


def held(running):
    """What the process holds."""
    now, loop = running.client.snapshot, running.server.loop
    engine = running.client.worker.engine
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    return {
        "requests": running.state.active, "running": now["running"], "waiting": now["waiting"], "sequences": running.client._sequences,
        "engine": len(engine.requests), "blocks": now["num_blocks"] - now["free_blocks"], "connections": len(running.server.server_state.connections),
        "tasks": len(asyncio.all_tasks(loop)), "threads": threading.active_count(), "files": len(os.listdir("/proc/self/fd")),
        "rss_mib": int(status["VmRSS"].split()[0]) / 1024, "steps": now["steps"], "tokens": now["generation_tokens"],
    }  # fmt: skip


BUSY = ("requests", "running", "waiting", "sequences", "engine", "blocks", "connections")
KEPT = ("tasks", "threads", "files")


class Child:
    """The server's process."""

    def __init__(self, folder, kind):
        words = [sys.executable, __file__, "serve", str(folder), kind]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.port = json.loads(self.process.stdout.readline())["port"]

    def held(self):
        self.process.stdin.write("?\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def idle(self):
        """What it holds when nothing is under way any more, or after a while."""
        end = time.monotonic() + PATIENCE
        while any((found := self.held())[name] for name in BUSY) and time.monotonic() < end:
            time.sleep(0.1)
        return found

    def close(self):
        self.process.stdin.close()
        self.process.wait(PATIENCE)

    def post(self, path, body):
        """One request, alone."""
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)) as connection:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            return json.loads(connection.getresponse().read())

    def reference(self):
        """A request whose answer nobody else may change."""
        return self.post("/v1/completions", REFERENCE)["choices"]

    def warm(self):
        """What it holds after its first work: workers for texts, templates, grammars and looks are there from then on."""
        messages = [{"role": "user", "content": "the cat " * 300}]
        for _ in range(4):
            self.post("/v1/completions", {"prompt": "the cat " * 300})
            self.post("/tokenize", {"content": "the cat " * 300})
            self.post("/v1/chat/completions", {"messages": messages})
            self.post("/v1/completions", {"prompt": "a", "max_tokens": 1, "structured_outputs": {"json": SCHEMA}})
            self.post("/api/look", {"prompt": "the cat"})
            self.post("/v1/embeddings", {"input": "the cat"})
        return self.idle()


@contextlib.contextmanager
def serving(kind):
    with tempfile.TemporaryDirectory() as made:
        from tests.serve.chat_model import write_chat_model

        child = Child(write_chat_model(Path(made) / "chatty"), kind)
        try:
            yield child
        finally:
            child.close()


def report(title, first, last):
    """What was left."""
    left = {name: last[name] for name in BUSY}
    more = {name: last[name] - first[name] for name in KEPT}
    print(f"{title}: left over: {left}; more than at the start: {more}")
    return any(left.values())


# Malformed requests


async def exchange(port, data, *, ends):
    """What comes back for some bytes until the server closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(PATIENCE):
            with contextlib.suppress(ConnectionError):
                writer.write(data)
                if ends:
                    writer.write_eof()
                return await reader.read()
    finally:
        writer.close()
    return b""


async def fuzz(child, count, seed):
    from tests.serve.malformed import Malformer, Tally

    document = json.loads(
        (await exchange(child.port, get("/openapi.json", child.port), ends=False)).partition(b"\r\n\r\n")[2]
    )
    made = itertools.islice(Malformer(document, f"127.0.0.1:{child.port}", seed), count)
    tally, began = Tally(), time.perf_counter()

    async def worker():
        for each in made:
            try:
                tally.add(each, await exchange(child.port, each.data, ends=each.kind == "raw"))
            except TimeoutError:
                tally.requests += 1
                tally.wrong.append(f"no answer within {PATIENCE:g} s: {each.kind}: {each.data[:600]!r}")
            if tally.requests % 10_000 == 0:
                print(f"{tally.requests:,} in {time.perf_counter() - began:.0f} s: {dict(tally.statuses)}", flush=True)

    await asyncio.gather(*(worker() for _ in range(WORKERS)))
    return tally, time.perf_counter() - began


def get(path, port):
    return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n".encode()


def run_fuzz(args):
    with serving("fuzz") as child:
        right = child.reference()
        first = child.warm()
        tally, seconds = asyncio.run(fuzz(child, args.count, args.seed))
        last = child.idle()
        same = child.reference() == right
    bad = sum(n for status, n in tally.statuses.items() if status >= 500)
    print(f"{tally.requests:,} requests in {seconds:.0f} s; by kind {dict(tally.kinds)}")
    print(
        f"statuses (0: closed without an answer to bytes that are no request): {dict(sorted(tally.statuses.items()))}"
    )
    print(f"5xx: {bad}; wrong answers: {len(tally.wrong)}; the same tokens afterwards: {same}")
    leaked = report("after it", first, last)
    print(f"RSS: {first['rss_mib']:.0f} MiB at the start, {last['rss_mib']:.0f} MiB at the end")
    for each in tally.wrong[:10]:
        print(each)
    return int(bool(tally.wrong) or leaked or not same)


# Overload


def asked(rng):
    """A path and a body of any kind."""
    tokens = rng.choice((1, 5, 20, 60, 150))
    prompt = rng.choice(("the cat", "x" * rng.randint(1, 90), "the dog sat on the mat, and " * 3))
    stream = rng.random() < 0.5
    sampled = {"temperature": rng.choice((0, 0.7, 1.3)), "top_p": rng.choice((0.5, 1)), "stream": stream}
    messages = [{"role": "user", "content": prompt}]
    kinds = {
        "completion": ("/v1/completions", {"prompt": prompt, "max_tokens": tokens, "n": rng.choice((1, 1, 2, 4)), "ignore_eos": rng.random() < 0.7} | sampled),
        "logprobs": ("/v1/completions", {"prompt": prompt, "max_tokens": tokens, "logprobs": rng.randint(0, 5), "echo": rng.random() < 0.5} | sampled),
        "prompts": ("/v1/completions", {"prompt": [prompt] * rng.randint(2, 5), "max_tokens": min(tokens, 20)} | sampled),
        "guided": ("/v1/completions", {"prompt": prompt, "max_tokens": 150, "structured_outputs": {"json": SCHEMA}} | sampled),
        "regex": ("/v1/chat/completions", {"messages": messages, "max_tokens": 60, "structured_outputs": {"regex": f"[a-f]{{{rng.randint(1, 40)}}}"}} | sampled),
        "chat": ("/v1/chat/completions", {"messages": messages, "max_tokens": tokens, "logprobs": rng.random() < 0.3, "stop": ["the"]} | sampled),
        "tools": ("/v1/chat/completions", {"messages": messages, "tools": [TOOL], "tool_choice": "required"} | sampled),
        "responses": ("/v1/responses", {"input": prompt, "max_output_tokens": tokens, "stream": stream}),
        "native": ("/completion", {"prompt": prompt, "n_predict": tokens, "n_probs": rng.choice((0, 3)), "stream": stream}),
        "messages": ("/v1/messages", {"messages": messages, "max_tokens": tokens, "stream": stream}),
        "embeddings": ("/v1/embeddings", {"input": [prompt] * rng.randint(1, 4)}),
        "look": ("/api/look", {"prompt": "the cat"}),
        "wrong": ("/v1/completions", {"prompt": prompt, "max_tokens": rng.choice((-1, 10**6, "x"))}),
    }  # fmt: skip
    weights = [12, 8, 4, 6, 4, 10, 4, 4, 5, 4, 3, 1, 2]
    kind = rng.choices(list(kinds), weights)[0]
    return kind, *kinds[kind]


@dataclasses.dataclass
class Seen:
    """What the clients of a soak saw."""

    statuses: Counter = dataclasses.field(default_factory=Counter)
    kinds: Counter = dataclasses.field(default_factory=Counter)
    left: Counter = dataclasses.field(default_factory=Counter)
    """Clients that went, by when."""
    wrong: list = dataclasses.field(default_factory=list)

    @property
    def requests(self):
        return sum(self.kinds.values())


async def client(port, rng, seen, end):
    """Asks again and again, and leaves half of the time before the answer is there."""
    while time.monotonic() < end:
        kind, path, body = asked(rng)
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\nConnection: close\r\n\r\n"
        seen.kinds[kind] += 1
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError as error:
            seen.wrong.append(f"no connection: {error}")
            continue
        try:
            what = rng.random()
            if what < 0.05:
                seen.left["in the body"] += 1
                writer.write(head.encode() + data[: len(data) // 2])
                await writer.drain()
                continue
            writer.write(head.encode() + data)
            await writer.drain()
            if what < 0.5:
                await asyncio.sleep(rng.choice((0, 0.001, 0.01, 0.05, 0.2, 1)) * rng.random())
                seen.left["before or in the answer"] += 1
                continue
            async with asyncio.timeout(PATIENCE):
                answer = await reader.read()
            status = int(answer.split(b" ", 2)[1])
            seen.statuses[status] += 1
            if status >= 500 or b"server_error" in answer:
                seen.wrong.append(f"{kind}: {json.dumps(body)[:300]} -> {answer[-400:]!r}")
            if status == 429:
                if b"retry-after" not in answer.lower():
                    seen.wrong.append("429 without Retry-After")
                await asyncio.sleep(0.1 * rng.random())
        except (OSError, TimeoutError, ValueError, IndexError) as error:
            seen.wrong.append(f"{kind}: {json.dumps(body)[:300]}: {type(error).__name__}: {error}")
        finally:
            writer.close()


async def soak(child, minutes, seed):
    """All clients, and what the server holds after each minute."""
    seen, began = Seen(), time.monotonic()
    end = began + 60 * minutes
    clients = [asyncio.create_task(client(child.port, random.Random(f"{seed} {i}"), seen, end)) for i in range(CLIENTS)]
    minute, after = 1, []
    while time.monotonic() < end:
        await asyncio.sleep(min(1.0, max(0.0, end - time.monotonic())))
        if time.monotonic() - began >= 60 * minute:
            now = await asyncio.to_thread(child.held)
            after.append(now)
            print(
                f"minute {minute}: {seen.requests:,} requests, {dict(sorted(seen.statuses.items()))}, {now}", flush=True
            )
            minute += 1
    await asyncio.gather(*clients)
    return seen, after


def run_soak(args):
    with serving("soak") as child:
        right = child.reference()
        first = child.warm()
        seen, after = asyncio.run(soak(child, args.minutes, args.seed))
        last = child.idle()
        same = child.reference() == right
    print(f"{seen.requests:,} requests in {args.minutes:g} minutes by {CLIENTS} clients; by kind {dict(seen.kinds)}")
    print(f"answers that were read: {dict(sorted(seen.statuses.items()))}; clients that left: {dict(seen.left)}")
    print(
        f"{last['steps']:,} steps, {last['tokens']:,} tokens; 5xx: {sum(n for s, n in seen.statuses.items() if s >= 500)}"
    )
    print(f"wrong: {len(seen.wrong)}; the same tokens afterwards: {same}")
    leaked = report("after it", first, last)
    minute = after[0]["rss_mib"] if after else first["rss_mib"]
    print(
        f"RSS: {first['rss_mib']:.1f} MiB at the start, {minute:.1f} MiB after a minute, {last['rss_mib']:.1f} MiB at the end"
    )
    for each in seen.wrong[:10]:
        print(each)
    return int(bool(seen.wrong) or leaked or not same)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    fuzzing = commands.add_parser("fuzz")
    fuzzing.add_argument("--count", type=int, default=100_000)
    soaking = commands.add_parser("soak")
    soaking.add_argument("--minutes", type=float, default=10)
    for each in (fuzzing, soaking):
        each.add_argument("--seed", type=int, default=0)
    child = commands.add_parser("serve")
    child.add_argument("folder")
    child.add_argument("kind")
    args = parser.parse_args()
    if args.command == "serve":
        serve(args.folder, args.kind)
        return 0
    return (run_fuzz if args.command == "fuzz" else run_soak)(args)


if __name__ == "__main__":
    sys.exit(main())
