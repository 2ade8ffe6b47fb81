"""What generating costs on this machine: the first token, each one after it, and how near that is to reading memory."""

import statistics
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from anyformer.errors import InputError
from anyformer.evals.memory import machine, now, rounds, typical
from anyformer.generation.generate import generate
from anyformer.generation.params.generation_request import check_model, context_length
from anyformer.model.model import Model
from anyformer.verify.differences import Progress, Report

READ = 2**30
"""Bytes of the largest buffer with which memory is timed."""
TURNS = 5
"""How often memory is timed."""
PATIENCE = 2.0
"""Seconds after which no further round of timing begins, unless told otherwise."""
WARM = 3
"""Steps that are taken before anything is timed: kernels are chosen and memory is taken for the first time."""


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


CACHED, UNCACHED = "cached", "uncached"
"""Decoding with a KV cache, and reading the whole row again in each step."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measurement."""

    mode: str
    batch: int
    prompt: int
    first: float
    """Seconds until the first token: the prompt is read and a token chosen."""
    steps: tuple[float, ...]
    """Seconds of each step after it."""
    bytes: int | None
    """Least that a step in the middle reads and writes: weights, keys and values. None: uncached."""
    limit: float | None
    """Seconds in which memory gives so many bytes."""

    @property
    def step(self) -> float:
        return statistics.median(self.steps)

    @property
    def total(self) -> float:
        return self.first + sum(self.steps)

    @property
    def rate(self) -> float:
        """Tokens in a second, the first ones aside."""
        return self.batch * len(self.steps) / sum(self.steps)

    @property
    def prefill(self) -> float:
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
        same = [other for other in self.rows if (other.batch, other.prompt) == (row.batch, row.prompt)]
        return next((other.total / row.total for other in same if other.mode == UNCACHED and other is not row), None)


def measure(model: Model, setting: Setting, report: Report | None = None) -> Table:
    """Every mode, batch and length. The time of a step is its best of the rounds on a CPU, its median on CUDA."""
    check_model(model.spec)
    if model.spec.topology != "decoder":
        raise InputError(f"bench generate measures decoders, and this model is an {model.spec.topology}")
    like, (size, hard) = next(model.parameters()), context_length(model)
    longest = max(setting.lengths) + setting.new - 1
    if hard and longest > size:
        wanted = f"a prompt of {max(setting.lengths)} and {setting.new} tokens need {longest} positions"
        raise InputError(f"{wanted}, and the model has {size}")
    bandwidth = read_speed(sum(p.numel() * p.element_size() for p in model.parameters()), like.device)
    cases = [
        (mode, batch, prompt)
        for batch in setting.batches
        for prompt in setting.lengths
        for mode in (CACHED, UNCACHED)
        if mode == CACHED or (setting.uncached and batch == 1)
    ]
    rows, progress = list[Row](), Progress(report, len(cases))
    for case in cases:
        rows.append(_row(model, *case, setting, bandwidth))
        progress.tick()
    return Table(
        rows=tuple(rows), bandwidth=bandwidth, params=sum(p.numel() for p in model.parameters()), device=str(like.device),
        dtype=str(like.dtype).removeprefix("torch."), machine=machine(like.device),
    )  # fmt: skip


def _row(model: Model, mode: str, batch: int, prompt: int, setting: Setting, bandwidth: float) -> Row:
    like = next(model.parameters())
    generator = torch.Generator().manual_seed(0)
    ids_BT = torch.randint(model.spec.input_vocab, (batch, prompt), generator=generator).to(like.device)
    list(times(model, ids_BT, min(WARM, setting.new), cached=mode == CACHED))
    found = [list(times(model, ids_BT, setting.new, cached=mode == CACHED)) for _ in rounds(setting.repeats, PATIENCE)]
    first, *steps = [typical(each, like.device) for each in zip(*found, strict=True)]
    middle = prompt + setting.new // 2
    moved = model.spec.count().bytes_moved("decode", middle, like.dtype, batch) if mode == CACHED else None
    return Row(
        mode=mode, batch=batch, prompt=prompt, first=first, steps=tuple(steps), bytes=moved,
        limit=None if moved is None else moved / bandwidth,
    )  # fmt: skip


def times(model: Model, ids_BT: Tensor, new: int, *, cached: bool = True) -> Iterator[float]:
    """Seconds from each token to the next, from the call to the first one at the beginning."""
    before = now(ids_BT.device)
    steps: Any = generate(model, ids_BT, max_new_tokens=new, stop=(), stream=True, use_cache=cached)
    with closing(steps):
        for _ in steps:
            after = now(ids_BT.device)
            yield after - before
            before = after


def read_speed(size: int, device: torch.device) -> float:
    """Bytes in a second that memory gives of a buffer of `size` bytes, read as weights are: by a product with a vector."""
    width = 4096
    rows = max(min(size, READ) // (4 * width), 1)
    matrix_RD, vector_D = torch.ones(rows, width, device=device), torch.ones(width, device=device)
    turns: list[float] = []
    # The first turn is not counted.
    for _ in range(TURNS + 1):
        began = now(device)
        torch.mv(matrix_RD, vector_D)
        turns.append(now(device) - began)
    return rows * width * 4 / min(turns[1:])
