"""A run before it begins: what each stage reads, how much it computes, how much memory it takes and how long it lasts."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch

from anyformer.errors import TrainingError
from anyformer.kernels.memory import free
from anyformer.specs.number_format import data
from anyformer.train import estimate
from anyformer.train.components import Components
from anyformer.train.estimate import Cure, Load, Memory, step_flops
from anyformer.train.train_step import DTYPES, Precision


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """A stage of a run, in numbers."""

    first: int
    steps: int
    words: str
    cells: int
    """Room for tokens in a step, over all processes."""
    flops: int
    rows: int
    waste: float
    """Share of the cells that is padding."""
    epochs: float
    left_out: int
    shortened: int
    repeated: int = 0
    """Tokens of a stream that an epoch reads twice, to fill its last row."""

    @property
    def flops_per_token(self) -> float:
        return self.flops / self.cells

    @property
    def tokens(self) -> float:
        return self.steps * self.cells * (1 - self.waste)


_known: WeakKeyDictionary[Components, tuple[Stretch, ...]] = WeakKeyDictionary()


def stretches(components: Components) -> tuple[Stretch, ...]:
    """The stages of a run whose data are read."""
    if components not in _known:
        stages, found = components.config.stages, list[Stretch]()
        # From the last to the first: the loaders that are needed first are still there when the run begins.
        for number, stage in reversed([*enumerate(stages)]):
            loader = components.loader(number)
            flops, cells = step_flops(components.specs[number], loader.batch(0).inputs)
            read = {name: getattr(loader, name) for name in ("rows", "waste", "left_out", "shortened", "repeated")}
            found.append(Stretch(
                first=sum(each.steps for each in stages[:number]), steps=stage.steps, cells=cells, flops=flops, **read,
                words=f"length {stage.length:,}, {stage.batch:,} rows", epochs=stage.steps * stage.batch / loader.rows,
            ))  # fmt: skip
        _known[components] = tuple(reversed(found))
    return _known[components]


def load_of(components: Components, stage: int, device: torch.device) -> Load:
    """What decides how much memory a step of a stage takes on one process."""
    config, ranks = components.config, components.ranks
    batch = ranks.share(components.loader(stage).batch(0))
    return Load(
        spec=components.specs[stage], objective=components.objective, optim=config.optim, compute=config.compute,
        inputs=batch.inputs, rows=batch.units, averages=config.run.ema is not None, device=device.type,
        workers=components.workers(device).size, shards=1 if config.many.shard == "none" else ranks.world,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class HeldOutPasses:
    """Evaluations of a run on a sample of `rows`, and at its end on `all_rows`; `flops` of all of them."""

    count: int = 0
    rows: int = 0
    all_rows: int = 0
    """Of the held-out part, all of which are read once more at the end if the sample is smaller."""
    flops: float = 0.0


def evals_of(components: Components) -> HeldOutPasses:
    """Evaluations of a run whose data are read."""
    run, total, valid = components.config.run, components.config.steps, components.valid
    if valid is None:
        return HeldOutPasses()
    batch = next(valid.sweep())
    flops, _ = step_flops(components.specs[-1], batch.inputs)
    rows, every = valid.swept(run.eval_batches), valid.swept()
    # The last one is at the end, whether or not it is due there.
    count = (total - 1) // run.eval_interval(total) + 1
    read = count * rows + (every if rows < every else 0)
    return HeldOutPasses(count=count, rows=rows, all_rows=every, flops=flops / estimate.TRAINING / batch.units * read)


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """All of it."""

    stretches: tuple[Stretch, ...]
    memory: Memory
    """Of the stage that takes most."""
    stage: int
    load: Load
    rate: float
    """FLOP/s of a large product in the dtype and on the cores that the run will use."""
    efficiency: float
    evals: HeldOutPasses
    spoken: float
    saved: float

    @property
    def flops(self) -> float:
        return sum(float(each.flops) * each.steps for each in self.stretches)

    def parts(self) -> dict[str, float]:
        """Seconds that each part of the run is expected to take on one process."""
        speed = self.rate * self.efficiency
        named = {"steps": self.flops / speed, "held-out loss": self.evals.flops / speed}
        named |= {"samples": self.spoken, "checkpoints": self.saved}
        return {name: seconds for name, seconds in named.items() if seconds}

    @property
    def seconds(self) -> float:
        return sum(self.parts().values())

    def cures(self) -> list[Cure]:
        return estimate.cures(self.load)


def forecast(components: Components, device: torch.device) -> Forecast:
    """Estimate a run whose data are read; nothing is built and nothing is written."""
    config, spec = components.config, components.spec
    run, total, compute = config.run, config.steps, config.compute
    loads = [load_of(components, i, device) for i in range(len(config.stages))]
    sizes = [estimate.memory(load) for load in loads]
    stage = max(range(len(sizes)), key=lambda i: sizes[i].total)
    most = sizes[stage]
    speaks = components.tokenizer is not None and spec.head.predicts_tokens and spec.topology != "encoder"
    # The samples on the way, and the one at the end.
    samples = 1 + ((total - 1) // run.sample_every if run.sample_every else 0) if speaks else 0
    spoken = samples * min(run.sample_tokens, spec.context) * len(spec.stacks[-1].layers) * estimate.SPOKEN[device.type]
    # One checkpoint before the first step, those on the way, and the last.
    saves, (least, speed) = 1 + -(-total // run.save_interval(total)), estimate.SAVED
    saved = saves * (least + (most.weights + most.optimizer + most.average) / speed)
    dtype = torch.bfloat16 if compute.autocast == "bfloat16" else DTYPES[compute.dtype]
    before = torch.get_num_threads()
    torch.set_num_threads(compute.threads or before)
    try:
        with Precision(tf32=compute.tf32).step(device):
            rate = estimate.product_rate(device, dtype)
    finally:
        torch.set_num_threads(before)
    share = estimate.EFFICIENCY["cuda compiled" if device.type == "cuda" and compute.compile != "none" else device.type]
    return Forecast(
        stretches=stretches(components), memory=most, stage=stage, load=loads[stage], rate=rate, efficiency=share,
        evals=evals_of(components), spoken=spoken, saved=saved,
    )  # fmt: skip


WORDS = re.compile(r"(?i)out of memory|not enough memory|can.t allocate|failed to allocate|CUBLAS_STATUS_ALLOC_FAILED")
SHOWN = 4
"""Ways out that are named."""


def is_oom(error: BaseException) -> bool:
    """Whether an error says that there was no memory left; torch's words depend on the device."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and WORDS.search(str(error)) is not None


@contextmanager
def explain_oom(components: Components, stage: int) -> Iterator[None]:
    """Around what a run computes: out of memory becomes a TrainingError with the estimate and what to change."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_oom(error):
            raise
        cause = str(error).splitlines()[0][:160] if str(error) else type(error).__name__
    else:
        return
    # Outside of the handler: what the failed step held is let go of first.
    sizes, load = components.config.stages[stage], load_of(components, stage, components.device)
    needed = estimate.memory(load)
    parts = sorted(needed.parts().items(), key=lambda part: -part[1])
    lines = [
        f"there was not enough memory on {components.device} for a step of {sizes.batch:,} rows of {sizes.length:,} tokens "
        f"({cause})",
        f"a step is estimated to take {data(needed.total)}: "
        f"{', '.join(f'{name} {data(size)}' for name, size in parts)}; {data(free(components.device))} are free now",
        *advice(estimate.cures(load)),
        "the last checkpoint is unharmed: the same command with the change goes on from there",
    ]
    raise TrainingError("\n  ".join(lines))


def advice(found: list[Cure]) -> list[str]:
    """What to change, one on a line."""
    if not found:
        return ["nothing in [compute] makes it smaller; take a smaller model or a larger device"]
    lines = [f"{c.setting}: {data(c.total)} in all{'' if c.same else ', and another result'}" for c in found]
    return ["what helps, what helps most first:", *(f"  {line}" for line in lines[:SHOWN])]
