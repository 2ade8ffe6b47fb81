"""A folder of shards made from examples in memory, and configs of runs that take a second."""

import hashlib
import json
from pathlib import Path

import numpy as np

from anyformer.data.dataset import Examples, Ragged
from anyformer.data.shards import VERSION, ShardWriter
from anyformer.data.tokenizer import Tokenizer
from anyformer.train.config import Config

DTYPES = {"i": "int32", "f": "float32"}


def write_data(folder: Path, parts: dict[str, Examples], tokenizer: Tokenizer | None = None, vocab=0, ids=None) -> Path:
    """What `anyformer tokenize` would have left, from examples that are there already."""
    folder.mkdir(parents=True)
    told, some = {}, next(iter(parts.values()))
    dtypes = {c: DTYPES[some.dtype(c).kind] for c in some.columns}
    for part, examples in parts.items():
        finished: list = []
        writer = ShardWriter(folder, part, dtypes, size=2**20, finished=finished, done=lambda: None)
        lists = {c: Ragged.of([examples.read(c, i) for i in range(len(examples))]) for c in examples.columns}
        writer.add(lists, bytes=np.zeros(len(examples), np.int64), more=np.zeros(len(examples), bool))
        writer.finish()
        values = {c: int(examples.lengths(c).sum()) for c in examples.columns}
        told[part] = {
            "examples": len(examples), "values": values, "bytes": examples.bytes, "fingerprint": examples.fingerprint,
            "shards": finished,
        }  # fmt: skip
    made = None
    if tokenizer is not None:
        tokenizer.save(folder)
        digest = hashlib.sha256((folder / "tokenizer.json").read_bytes()).hexdigest()
        made = {"sha256": digest, "vocab": tokenizer.vocab}
    index = {
        "version": VERSION, "format": "text", "columns": dtypes, "names": dict(some.names), "parts": told, "tokenizer": made,
        "ids": ids or {}, "sentinels": [], "inputs": [], "options": {},
    }  # fmt: skip
    (folder / "index.json").write_text(json.dumps(index))
    return folder


def text_examples(count=60, seed=0, longest=30) -> Examples:
    """Documents in which each token follows from the one before it."""
    draw = np.random.default_rng(seed)
    starts, lengths = draw.integers(4, 30, count), draw.integers(2, longest, count)
    rows = [(start + 3 * np.arange(n)) % 28 + 4 for start, n in zip(starts, lengths, strict=True)]
    return Examples.of({"tokens": rows}, bytes=int(lengths.sum()))


def text_data(folder: Path) -> Path:
    """The same as a folder, with held-out documents."""
    return write_data(folder, {"train": text_examples(), "valid": text_examples(20, 1)})


CONFIG = """
[model.spec]
vocab = 32
width = 16
depth = 2
context = 32
attention = { heads = 2 }
head = { kind = "lm", tied = true }
ids = { pad = 0, bos = 1, eos = [2] }
[data]
folder = "DATA"
[[stages]]
steps = 12
length = 32
batch = 4
[run]
folder = "RUN"
eval_every = 5
eval_batches = 1
save_every = 4
"""


def text_config(data: Path, run: Path, changes=None) -> Config:
    """A run of twelve steps on a small text."""
    return Config.from_toml(CONFIG, changes={"data.folder": str(data), "run.folder": str(run)} | (changes or {}))
