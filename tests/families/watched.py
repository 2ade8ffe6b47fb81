"""A process that reads hostile files under an audit hook, and tells what came of each: run by test_hostile.py.

`python -m tests.families.watched samples FOLDER...` or `python -m tests.families.watched fuzz GOOD SCRATCH SEED COUNT`.
One JSON document on standard output. The hook is set once everything that a load imports is imported.
"""

import copy
import json
import os
import random
import resource
import shutil
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import anyformer as af
from anyformer.errors import AnyformerError
from anyformer.families.io import spec_of
from anyformer.specs.model import ModelSpec

ROOMS = tuple(
    str(Path(place).resolve())
    for place in (sys.prefix, sys.base_prefix, *sys.path, Path(af.__file__).parents[1])
    if place
)
FORBIDDEN = (
    "subprocess.", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "socket.", "pickle.find_class",
    "webbrowser.", "ctypes.dlopen", "os.remove", "os.rename", "os.chmod", "os.link", "os.symlink",
)  # fmt: skip
MEMORY = 12 * 2**30


class Watch:
    """Notes whatever a reader of data has no business with."""

    def __init__(self) -> None:
        self.on, self.found = False, list[str]()
        sys.addaudithook(self.hook)

    def hook(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.on:
            return
        strange = event.startswith(FORBIDDEN)
        if event == "exec":
            # Modules of the library and of its dependencies may still be imported; code from anywhere else may not.
            strange = not str(args[0].co_filename).startswith((*ROOMS, "<frozen", "<string>", "<attrs"))
        if event == "open" and isinstance(args[1], str):
            strange = any(letter in args[1] for letter in "wax+")
        if event == "import":
            strange = "hostile" in str(args[0])
        if strange:
            self.found.append(f"{event} {str(args)[:200]}")


def outcome(act: Callable[[], Any]) -> tuple[str, str]:
    """How a call ended: loaded, refused (and what was said), or anything else."""
    try:
        act()
    except AnyformerError as error:
        return "refused", str(error)
    except BaseException as error:
        return "crashed", f"{type(error).__name__}: {error}"
    return "loaded", ""


def samples(watch: Watch, folders: list[str]) -> Any:
    told = {}
    for folder in folders:
        watch.on, watch.found = True, []
        result, message = outcome(lambda folder=folder: af.load(folder))
        watch.on = False
        told[Path(folder).name] = {"result": result, "message": message, "events": watch.found}
    return told


VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 2, 7, 2**31, 2**63, 10**30, -(10**30), 10**18, 0.0, -1.5, 1e308, float("inf"), float("nan"),
    "", "x", "../x", "/etc/passwd", "a" * 5000, "\ud800", "\x00", [], [0], [[]], [-1, 3], [2**62, 2**62], ["x"], {}, {"kind": "x"},
    {"a": {"b": []}}, [1] * 50, "F32", "BF16", [0, 10**12], "model.safetensors",
]  # fmt: skip


def spoil(rng: random.Random, data: Any) -> Any:
    """One place of a tree changed: another value, a name gone, a name new, a name twice removed."""
    data = copy.deepcopy(data)
    node, path = data, []
    while isinstance(node, dict | list) and node and (not path or rng.random() < 0.75):
        key = rng.choice(list(node)) if isinstance(node, dict) else rng.randrange(len(node))
        path.append((node, key))
        node = node[key]
    above, key = path[-1]
    what = rng.random()
    if what < 0.15:
        del above[key]
    elif what < 0.3 and isinstance(above, dict):
        above[str(key) + rng.choice(["x", "_", "\u00e9"])] = above[key]
    else:
        above[key] = copy.deepcopy(rng.choice(VALUES))
    return data


def scramble(rng: random.Random, raw: bytes) -> bytes:
    """Bytes flipped, cut out, doubled or cut off."""
    data = bytearray(raw)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data) or 1)
        what = rng.random()
        if what < 0.5 and data:
            data[at] = rng.randrange(256)
        elif what < 0.7:
            del data[at : at + rng.randint(1, 40)]
        elif what < 0.9:
            data[at:at] = data[at : at + rng.randint(1, 40)]
        else:
            del data[at:]
    return bytes(data)


def header_of(raw: bytes) -> tuple[Any, bytes]:
    size = int.from_bytes(raw[:8], "little")
    return json.loads(raw[8 : 8 + size]), raw[8 + size :]


def with_header(header: Any, body: bytes) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


class Fuzz:
    """Each kind of file, spoiled in its tree or in its bytes, read the way a person would."""

    def __init__(self, good: Path, scratch: Path, seed: int) -> None:
        self.good, self.scratch, self.rng = good, scratch, random.Random(seed)
        scratch.mkdir(exist_ok=True)

    def folder(self, name: str, content: bytes) -> Path:
        place = self.scratch / "model"
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(self.good, place)
        (place / name).write_bytes(content)
        return place

    def spoiled_json(self, raw: bytes) -> bytes:
        if self.rng.random() < 0.3:
            return scramble(self.rng, raw)
        return json.dumps(spoil(self.rng, json.loads(raw))).encode()

    def header(self) -> tuple[bytes, Callable[[Path], Any]]:
        raw = (self.good / "model.safetensors").read_bytes()
        if self.rng.random() < 0.3:
            size = int.from_bytes(raw[:8], "little")
            return scramble(self.rng, raw[: 8 + size]) + raw[8 + size :], af.load
        header, body = header_of(raw)
        return with_header(spoil(self.rng, header), body), af.load

    def config(self) -> tuple[bytes, Callable[[Path], Any]]:
        return self.spoiled_json((self.good / "config.json").read_bytes()), af.load

    def index(self) -> tuple[bytes, Callable[[Path], Any]]:
        names = header_of((self.good / "model.safetensors").read_bytes())[0]
        placed = {name: "only.safetensors" for name in names if name != "__metadata__"}
        raw = json.dumps({"metadata": {"total_size": 1}, "weight_map": placed}).encode()
        return self.spoiled_json(raw), af.load

    def tokenizer(self) -> tuple[bytes, Callable[[Path], Any]]:
        raw = (self.good / "tokenizer.json").read_bytes()

        def read(folder: Path) -> Any:
            found = af.tokenizer(folder)
            found.decode(found.encode("the cat"))

        return self.spoiled_json(raw), read

    def spec(self) -> tuple[bytes, Callable[[Path], Any]]:
        text = ModelSpec.to_toml(spec_of(self.good)).encode()
        if self.rng.random() < 0.4:
            return scramble(self.rng, text), spec_of
        import tomli_w

        try:
            return tomli_w.dumps(spoil(self.rng, tomllib.loads(text.decode()))).encode(), spec_of
        except (TypeError, ValueError):
            return scramble(self.rng, text), spec_of


FILES = {
    "header": "model.safetensors", "config": "config.json", "index": "model.safetensors.index.json",
    "tokenizer": "tokenizer.json", "spec": "spec.toml",
}  # fmt: skip


def fuzz(watch: Watch, good: str, scratch: str, seed: str, count: str) -> Any:
    made, told = Fuzz(Path(good), Path(scratch), int(seed)), {}
    for kind, name in FILES.items():
        counts: dict[str, Any] = {
            "executions": 0,
            "loaded": 0,
            "refused": 0,
            "crashed": [],
            "nameless": [],
            "events": [],
        }
        for _ in range(int(count)):
            content, read = getattr(made, kind)()
            folder = made.folder(name, content)
            if kind == "index":
                (folder / "model.safetensors").rename(folder / "only.safetensors")
            watch.on, watch.found = True, []
            result, message = outcome(lambda read=read, folder=folder: read(folder))
            watch.on = False
            counts["executions"] += 1
            counts["events"] += watch.found
            if result == "crashed":
                counts["crashed"].append([message, content[:400].decode("latin-1")])
            else:
                counts[result] += 1
            if result == "refused" and str(folder) not in message:
                counts["nameless"].append(message[:300])
        told[kind] = counts
    return told


def main(what: str, *rest: str) -> None:
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    good = rest[0]
    # Leaves and parsers are imported when they are first needed: that is done here.
    outcome(lambda: af.load(good))
    outcome(lambda: af.tokenizer(good))
    outcome(lambda: spec_of(Path(good)).to_toml())
    outcome(lambda: af.spec("no such name"))
    watch = Watch()
    told = samples(watch, list(rest[1:])) if what == "samples" else fuzz(watch, *rest)
    sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    sys.stdout.reconfigure(errors="backslashreplace")
    main(*sys.argv[1:])
    sys.stdout.flush()
    os._exit(0)
