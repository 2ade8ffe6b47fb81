"""What generating costs on this machine: the first token, each one after it, and how near that is to reading memory."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from anyformer.errors import InputError
from anyformer.generation.asking.request import check_model, room
from anyformer.generation.engine import generate
from anyformer.model.model import Model

READ = 2**30
"""Bytes of the largest buffer with which memory is timed."""
TURNS = 5
"""How often memory is timed."""
ROUNDS, PATIENCE = 5, 2.0
"""Unless told otherwise: the most rounds of timing, and the seconds after which no further one begins."""
WARM = 3
"""Steps that are taken before anything is timed: kernels are chosen and memory is taken for the first time."""

Report = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What is measured."""

    batches: tuple[int, ...]
    lengths: tuple[int, ...]
    """Tokens of the prompt."""
    new: int
    """Tokens that are generated."""
    repeats: int | None = None
    """Rounds of timing; unset: as many as fit into two seconds, up to five."""
    uncached: bool = True
    """Whether reading everything again in each step is measured too, with one row."""


class Way(NamedTuple):
    """A way to generate: steps of new ids (B,) after a prompt (B,T)."""

    name: str
    steps: Callable[[Model, Tensor, int], Iterable[Any]]
    cached: bool = True
    """Without a cache a step reads all that came before, and is no match for the read limit."""


def _cached(model: Model, ids_BT: Tensor, new: int) -> Any:
    return generate(model, ids_BT, max_new_tokens=new, stop=(), stream=True)


def _uncached(model: Model, ids_BT: Tensor, new: int) -> Any:
    return generate(model, ids_BT, max_new_tokens=new, stop=(), stream=True, use_cache=False)


CACHED, UNCACHED = Way("cached", _cached), Way("uncached", _uncached, cached=False)
WAYS = (CACHED, UNCACHED)
"""Every way has its rows in the table."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measurement."""

    way: str
    batch: int
    prompt: int
    first: float
    """Seconds until the first token: the prompt is read and a token chosen."""
    steps: tuple[float, ...]
    """Seconds of each step after it."""
    bytes: int | None
    """Least that a step in the middle reads and writes: weights, keys and values. None: not of this way."""
    limit: float | None
    """Seconds in which memory gives so many bytes."""

    @property
    def step(self) -> float:
        """Seconds of a step."""
        return statistics.median(self.steps)

    @property
    def total(self) -> float:
        """Seconds of all tokens."""
        return self.first + sum(self.steps)

    @property
    def rate(self) -> float:
        """Tokens in a second, the first ones aside."""
        return self.batch * len(self.steps) / sum(self.steps)

    @property
    def reading(self) -> float:
        """Tokens of the prompts read in a second."""
        return self.batch * self.prompt / self.first

    @property
    def share(self) -> float | None:
        """Of the speed at which memory can be read; 1 is the limit."""
        return None if self.limit is None else self.limit / self.step


@dataclass(frozen=True, kw_only=True)
class Table:
    """All measurements."""

    rows: tuple[Row, ...]
    bandwidth: float
    """Bytes in a second, of a buffer as large as the weights."""
    params: int
    device: str
    dtype: str
    machine: str

    def gain(self, row: Row) -> float | None:
        """How many times as fast a row's tokens come as without a cache."""
        for other in self.rows:
            if (
                other.way == UNCACHED.name
                and (other.batch, other.prompt) == (row.batch, row.prompt)
                and other is not row
            ):
                return other.total / row.total
        return None


def measure(model: Model, setting: Setting, report: Report | None = None) -> Table:
    """Every way, batch and length. The time of a step is its best of the rounds on a CPU, its median on CUDA."""
    check_model(model.spec)
    if model.spec.topology != "decoder":
        raise InputError(f"bench generate measures decoders, and this model is an {model.spec.topology}")
    like = next(model.parameters())
    size, hard = room(model)
    longest = max(setting.lengths) + setting.new - 1
    if hard and longest > size:
        raise InputError(
            f"a prompt of {max(setting.lengths)} and {setting.new} tokens need {longest} positions, and the model has {size}"
        )
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    bandwidth = read_speed(weights, like.device)
    asked = [
        (way, batch, prompt)
        for batch in setting.batches
        for prompt in setting.lengths
        for way in WAYS
        if _asked(way, batch, setting)
    ]
    rows: list[Row] = []
    for i, (way, batch, prompt) in enumerate(asked):
        rows.append(_row(model, way, batch, prompt, setting, bandwidth))
        if report is not None:
            report(i + 1, len(asked))
    return Table(
        rows=tuple(rows), bandwidth=bandwidth, params=sum(p.numel() for p in model.parameters()), device=str(like.device),
        dtype=str(like.dtype).removeprefix("torch."), machine=machine(like.device),
    )  # fmt: skip


def _asked(way: Way, batch: int, setting: Setting) -> bool:
    return way.cached or (setting.uncached and batch == 1)


def _row(model: Model, way: Way, batch: int, prompt: int, setting: Setting, bandwidth: float) -> Row:
    like = next(model.parameters())
    generator = torch.Generator().manual_seed(0)
    ids_BT = torch.randint(model.spec.input_vocab, (batch, prompt), generator=generator).to(like.device)
    list(times(way, model, ids_BT, min(WARM, setting.new)))
    began, rounds = time.perf_counter(), list[list[float]]()
    while len(rounds) < (setting.repeats or ROUNDS):
        if rounds and setting.repeats is None and time.perf_counter() - began > PATIENCE:
            break
        rounds.append(list(times(way, model, ids_BT, setting.new)))
    typical = statistics.median if like.device.type == "cuda" else min
    first, *steps = [typical(each) for each in zip(*rounds, strict=True)]
    moved = None
    if way.cached:
        middle = prompt + setting.new // 2
        moved = model.spec.count().bytes_moved("decode", middle, like.dtype, batch)
    return Row(
        way=way.name, batch=batch, prompt=prompt, first=first, steps=tuple(steps), bytes=moved,
        limit=None if moved is None else moved / bandwidth,
    )  # fmt: skip


def times(way: Way, model: Model, ids_BT: Tensor, new: int) -> Iterator[float]:
    """Seconds from each token to the next, from the call to the first one at the beginning."""
    before = _now(ids_BT.device)
    steps: Any = way.steps(model, ids_BT, new)
    with closing(steps):
        for _ in steps:
            now = _now(ids_BT.device)
            yield now - before
            before = now


def read_speed(size: int, device: torch.device) -> float:
    """Bytes in a second that memory gives of a buffer of `size` bytes, read as weights are: by a product with a vector."""
    width = 4096
    rows = max(min(size, READ) // (4 * width), 1)
    matrix_RD, vector_D = torch.ones(rows, width, device=device), torch.ones(width, device=device)
    best = float("inf")
    for turn in range(TURNS + 1):
        began = _now(device)
        torch.mv(matrix_RD, vector_D)
        # The first turn is not counted.
        best = min(best, _now(device) - began) if turn else best
    return rows * width * 4 / best


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def machine(device: torch.device) -> str:
    """What it runs on, for people."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
