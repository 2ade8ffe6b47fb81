"""What the attention step alone costs (q, k, v -> out): time and bytes, by kernel, kv heads and length."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from anyformer.errors import InputError
from anyformer.evals.memory import Used, machine, now, rounds, typical, used
from anyformer.kernels.attention import KERNELS, attend
from anyformer.kernels.attention_mask import AttentionMask, Shape
from anyformer.kernels.dispatch import Kernel, KernelRequest, choose
from anyformer.kernels.memory import free
from anyformer.parts.mixers.softmax import Softmax
from anyformer.parts.patterns.causal import Causal
from anyformer.parts.patterns.window import Window
from anyformer.specs.patterns import Pattern, Tokens
from anyformer.verify.differences import Progress, Report

FIRST = 512
"""From this length on a kernel's bytes are followed in doublings, so that the next step can be foreseen."""
SHARE = 0.5
"""Of the free memory, what a step may be expected to take."""
PATIENCE = 1.0
"""Seconds after which no further round of timing begins, unless told otherwise."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What is measured."""

    heads: int
    kv_heads: int
    """Of grouped-query attention; multi-head attention has as many as heads, multi-query attention one."""
    head_dim: int
    window: int
    lengths: tuple[int, ...]
    batch: int = 1
    backward: bool = False
    repeats: int | None = None
    """How often each step is timed; unset: as often as fits into a second, up to five times."""
    device: str = "cpu"
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise InputError(f"kv_heads: {self.kv_heads} does not divide heads={self.heads}")

    def attentions(self) -> dict[str, int]:
        """Kv heads by the name of the attention; those that are alike once."""
        named = {"MHA": self.heads, "GQA": self.kv_heads, "MQA": 1}
        if self.kv_heads in (1, self.heads):
            del named["GQA"]
        return {"MHA": 1} if self.heads == 1 else named


class Case(NamedTuple):
    """A kernel on a pattern."""

    kernel: Kernel
    pattern: Pattern
    shape: Shape

    @property
    def name(self) -> str:
        return self.kernel.name if self.shape == "causal" else f"{self.pattern}: {self.kernel.name}"


class Refusal(NamedTuple):
    """A kernel that does not serve."""

    pattern: str
    kernel: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measurement."""

    attention: str
    kv_heads: int
    tokens: int
    kernel: str
    seconds: float | None = None
    allocated_bytes: int | None = None
    """Bytes allocated after the forward pass: the output, and what is kept for the backward pass."""
    peak_bytes: int | None = None
    """The most bytes at one moment of the step, beyond q, k, v and the gradient that comes in."""
    skipped: str | None = None
    """Why there is no measurement."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """All measurements, and who did not take part."""

    setting: Setting
    rows: tuple[Row, ...]
    refusals: tuple[Refusal, ...]
    threads: int
    machine: str


def cases(setting: Setting) -> tuple[list[Case], list[Refusal]]:
    """Every kernel that serves plain causal attention, and the one that is chosen for a window."""
    causal, window = _request(setting, Causal(), "causal"), Window(size=setting.window)
    reasons = {kernel: kernel.why_not(causal) for kernel in KERNELS}
    served = [Case(kernel, Causal(), "causal") for kernel, reason in reasons.items() if reason is None]
    refused = [Refusal("causal", kernel.name, reason) for kernel, reason in reasons.items() if reason is not None]
    found = choose(_request(setting, window, "pattern"), KERNELS)
    refused += [Refusal(str(window), name, reason) for name, reason in found.refusals]
    return [*served, Case(found.kernel, window, "pattern")], refused


def _request(setting: Setting, pattern: Pattern, shape: Shape) -> KernelRequest:
    phase = "train" if setting.backward else "prefill"
    return KernelRequest(
        device=torch.device(setting.device).type, dtype=setting.dtype, phase=phase, shape=shape, pattern=pattern,
        mixer=Softmax(),
    )  # fmt: skip


class Step:
    """Attention on tensors of one size."""

    def __init__(self, setting: Setting, kv_heads: int, length: int) -> None:
        self.setting, device = setting, setting.device
        generator = torch.Generator(device).manual_seed(0)
        heads = (setting.heads, kv_heads, kv_heads, *([setting.heads] if setting.backward else []))
        sizes = [(setting.batch, length, count, setting.head_dim) for count in heads]
        drawn = [torch.randn(size, generator=generator, device=device).to(setting.dtype) for size in sizes]
        self.inputs, self.coming = [x.requires_grad_(setting.backward) for x in drawn[:3]], drawn[3:]
        self.places = Tokens(torch.arange(length, device=device)[None])

    def mask(self, case: Case) -> AttentionMask:
        """A new one, from which no kernel has derived anything yet."""
        heads, places = self.setting.heads, self.places
        return AttentionMask(case.pattern, places, places, plain=True, heads=heads, shape=case.shape)

    def forward(self, case: Case, mask: AttentionMask | None = None) -> Tensor:
        q, k, v = self.inputs
        scale, mask = q.shape[-1] ** -0.5, mask or self.mask(case)
        return attend(q, k, v, kernel=case.kernel, scale=scale, mixer=Softmax(), own={}, mask=mask)

    def whole(self, case: Case, mask: AttentionMask | None = None) -> Any:
        """The same, and the backward pass if it is asked for."""
        out = self.forward(case, mask)
        return torch.autograd.grad(out, self.inputs, self.coming) if self.coming else out

    def bytes(self, case: Case) -> Used:
        """What is left after the forward pass, and the peak of the whole step; masks are made anew."""
        device = self.setting.device
        found = used(lambda: self.forward(case), device)
        return Used(found.left, used(lambda: self.whole(case), device).peak) if self.coming else found

    def seconds(self, served: Sequence[Case]) -> dict[Case, float]:
        """The time of each, measured in turn so that whatever else the machine does meets all alike."""
        device, masks = self.setting.device, {case: self.mask(case) for case in served}
        for case in served:
            # This makes the masks, and is not counted.
            self.whole(case, masks[case])
        found: dict[Case, list[float]] = {case: [] for case in served}
        for _ in rounds(self.setting.repeats, PATIENCE):
            for case in served:
                began = now(device)
                self.whole(case, masks[case])
                found[case].append(now(device) - began)
        return {case: typical(seconds, device) for case, seconds in found.items()}


class MemoryGrowth:
    """How a kernel's peak grows with the length, and whether the next one can be afforded."""

    def __init__(self) -> None:
        self.known: list[tuple[int, int]] = []
        self.stopped = ""

    def expected(self, length: int) -> int:
        """Bytes at a length: as the last two grew, at least linearly and at most with the square."""
        if not self.known:
            return 0
        (last, peak), power = self.known[-1], 2.0
        if len(self.known) > 1:
            before, less = self.known[-2]
            power = min(2.0, max(1.0, math.log(peak / max(less, 1)) / math.log(last / before)))
        return round(peak * (length / last) ** power)


def measure(setting: Setting, report: Report | None = None) -> Table:
    """Every kernel at every length.

    Time is that of a step whose masks are made, as the layers of a model share them: interleaved over the kernels,
    the minimum on a CPU and the median on CUDA. Bytes are those of a step that makes its masks itself.
    """
    served, refused = cases(setting)
    attentions, lengths = setting.attentions(), steps(setting.lengths)
    rows, progress = list[Row](), Progress(report, len(attentions) * len(lengths))
    with torch.set_grad_enabled(setting.backward):
        for attention, kv_heads in attentions.items():
            growths = [(case, MemoryGrowth()) for case in served]
            for length in lengths:
                rows += _at(setting, attention, kv_heads, length, growths)
                progress.tick()
    return Table(
        setting=setting, rows=tuple(rows), refusals=tuple(refused), threads=torch.get_num_threads(),
        machine=machine(setting.device),
    )  # fmt: skip


def steps(lengths: Sequence[int]) -> list[int]:
    """The lengths that are asked for, and doublings up to the longest."""
    doublings = [FIRST << n for n in range(32) if FIRST << n < max(lengths)]
    return sorted({*lengths, *doublings})


def _at(
    setting: Setting, attention: str, kv_heads: int, length: int, growths: list[tuple[Case, MemoryGrowth]]
) -> Iterator[Row]:
    step = Step(setting, kv_heads, length)
    bytes_: dict[Case, Used] = {}
    for case, growth in growths:
        room, wanted = free(setting.device), growth.expected(length)
        if not growth.stopped and wanted > SHARE * room:
            growth.stopped = (
                f"would take about {wanted / 1e9:.3g} GB, more than half of the {room / 1e9:.3g} GB that are free"
            )
        if growth.stopped:
            continue
        try:
            if torch.device(setting.device).type == "cuda":
                # What is compiled or kept for this size is there before anything is counted.
                step.whole(case)
            bytes_[case] = step.bytes(case)
            growth.known.append((length, bytes_[case].peak))
        except torch.OutOfMemoryError:
            growth.stopped = "there is not enough memory on the device"
    if length not in setting.lengths:
        return
    times = step.seconds(list(bytes_))
    for case, growth in growths:
        found = bytes_.get(case)
        yield Row(
            attention=attention, kv_heads=kv_heads, tokens=length, kernel=case.name, seconds=times.get(case),
            allocated_bytes=found and found.left, peak_bytes=found and found.peak,
            skipped=None if found else growth.stopped,
        )  # fmt: skip
