"""What a run works with, made from its config: data, model, optimizers, guard, and the way back to a checkpoint.

Everything that can be wrong is looked at before anything is written.
"""

import resource
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from anyformer.data.dataset import Examples
from anyformer.data.loader import DRAW, VERSION, BatchLoader
from anyformer.data.objectives import source_eos
from anyformer.data.shards import Index, open_examples
from anyformer.data.tokenizer import SOURCE, Tokenizer
from anyformer.errors import CapabilityError, DataError, InputError
from anyformer.families.io import load
from anyformer.files import replace_file
from anyformer.model.build import Initializer, build
from anyformer.model.model import Model
from anyformer.model.native_checkpoint import SPEC, empty_model, metadata_of
from anyformer.parts.quantized import is_quantized
from anyformer.specs.codec import flatten
from anyformer.specs.model import ModelSpec
from anyformer.specs.parameters import weights
from anyformer.train.checkpoint import FOLDER, Contents, Saver, Table, last_state, name_of, resume, verify
from anyformer.train.compile import compiled, recompute
from anyformer.train.config import Config, identity
from anyformer.train.cpu_workers import CpuWorkers, draws
from anyformer.train.cuda_graph import Captured
from anyformer.train.distributed.sharded_checkpoint import fill, gathered_contents, save_parts
from anyformer.train.lock import Lock
from anyformer.train.optim import Ema, Optimizers
from anyformer.train.ranks import ALONE, Meshes, Ranks, joined
from anyformer.train.resolve import Needs, needs
from anyformer.train.run_state import (
    Progress,
    RunState,
    check_resume,
    extension,
    machine,
    order_of,
    versions,
    with_defaults,
)
from anyformer.train.train_step import Precision, SpikeGuard, TrainStep

CONFIG = "config.toml"
STAGE = 7919
"""Between the seeds of two stages, so that each has an order of its own."""
TABLES = ("model.safetensors", "optimizer.safetensors", "ema.safetensors")


class Components:
    """The parts of a run. `open` makes them all; `close` lets go of the folder."""

    index: Index
    tokenizer: Tokenizer | None
    source_tokenizer: Tokenizer | None
    """Of the source, where it has a vocabulary of its own; `tokenizer` is then the target's."""
    spec: ModelSpec
    model: Model
    train_step: TrainStep
    saver: Saver
    device: torch.device
    precision: Precision
    valid: BatchLoader | None
    ema: Ema | None
    order: int
    """The rule by which the rows of a stream are cut: `data.loader.VERSION` of when the run was begun."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.ranks: Ranks = ALONE
        self.meshes: Meshes | None = None
        """How a model is spread over the ranks; None on a process of its own."""
        self.folder = Path(config.run.folder)
        self.totals: list[list[int]] = []
        self._stage = -1
        self._workers: CpuWorkers | None = None
        self._loaders: dict[int, BatchLoader] = {}
        self._open = ExitStack()

    def read(self) -> None:
        """The data and the architecture, checked against each other; nothing is written."""
        begun = last_state(self.folder)
        # A run keeps the order of batches that it was begun with, whatever the rule is by now.
        self.order = self.ranks.broadcast(VERSION if begun is None else order_of(begun))
        config, found = self.config, needs(self.config)
        if found.index is not None and found.spec is not None and config.data.train in found.index.parts:
            self._fit(found, found.index, found.spec)
        self.index, self.spec, self.specs = found.ready()
        self.spec, *self.specs = (self.objective.with_names(spec, self.examples) for spec in (self.spec, *self.specs))
        self.valid = None
        if config.data.valid:
            self.held_out = open_examples(config.data.folder, config.data.valid)
            try:
                # Rows, and what is masked in them, are the same in every run, so that their figures can be compared.
                self.valid = self._loader(self.held_out, len(config.stages) - 1, VERSION, seed=DRAW)
            except DataError as error:
                raise DataError(f"data.valid: the part {config.data.valid!r} can't be measured on: {error}") from error

    @property
    def input_tokenizer(self) -> Tokenizer | None:
        """The tokenizer of the texts that the model reads, with what it was trained to see after them."""
        made, end = self.source_tokenizer or self.tokenizer, source_eos(self.spec)
        return made if made is None or end is None or not self.objective.ends_source else made.ending_with(end)

    def _fit(self, found: Needs, index: Index, spec: ModelSpec) -> None:
        """The tokenizer, the objective and the examples, and whether they fit the architecture and the machine."""
        config, dp_size = self.config, self.ranks.dp_size
        with found.noting("data.folder"):
            self.tokenizer = None if index.tokenizer_sha256 is None else index.tokenizer()
            self.source_tokenizer = index.source_tokenizer()
            self.examples = open_examples(config.data.folder, config.data.train)
            self.objective = config.objective.ready(index, self.tokenizer)
            wrong = [f"{path}: {what}" for path, what in self.objective.problems(spec, self.examples)]
            for i, stage in enumerate(config.stages):
                if stage.batch % dp_size:
                    rows = f"stages[{i}].batch: {stage.batch} rows"
                    wrong.append(f"{rows} can't be shared out over {dp_size} processes; pick a multiple of {dp_size}")
            if config.many.tensor > 1:
                from anyformer.train.distributed.tensor_parallel import misfits

                wrong += misfits(config.many, config.compute, found.specs)
            if wrong:
                title = "the model, the data and the objective don't fit each other:"
                found.add(InputError("\n  ".join([title, *wrong])), wrong)

    def open(self) -> None:
        """Read, build, and take the folder; it is made if need be. After an error, `close`."""
        config, compute = self.config, self.config.compute
        found = self._open.enter_context(joined(config.many, device_of(compute.device)))
        self.ranks, self.meshes, self.device = found
        self.read()
        self.precision = Precision(weights=compute.dtype, autocast=compute.autocast, tf32=compute.tf32)
        if compute.threads:
            self._open.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(compute.threads)
        if compute.deterministic and not torch.are_deterministic_algorithms_enabled():
            torch.use_deterministic_algorithms(True, warn_only=True)
            self._open.callback(torch.use_deterministic_algorithms, False)
        # Now: CPU workers share the threads, and each then knows of its own only.
        self.machine = machine(self.device, self.ranks.world)
        self._build()
        with self.ranks.rank0_first() as first:
            if first:
                self.folder.mkdir(parents=True, exist_ok=True)
                self._open.enter_context(Lock(self.folder))
        saver = Saver(self.folder, keep=config.run.keep, background=self.device.type == "cuda")
        self.saver = self._open.enter_context(saver)

    def _build(self) -> None:
        config, dtype = self.config, self.precision.dtype
        if self.meshes is not None:
            # Takes a second to import, which a run of one process need not wait for.
            from anyformer.train.distributed.fsdp import check_stages, spread

            values, family = self._first_values()
            self.model = spread(
                self.spec, self.meshes, values, device=self.device, dtype=dtype,
                autocast=config.compute.autocast != "none",
            )  # fmt: skip
            self.model.family = family
            check_stages(self.model, self.specs, config.many.tensor)
        elif config.model.weights:
            self.model = load_weights(config.model.weights, self.spec, self.device, dtype)
        else:
            self.model = build(self.spec, device=self.device, dtype=dtype, seed=config.run.seed)
        self.model.train()
        self.optimizers = Optimizers(self.model, config.optim)
        self.ema = None if config.run.ema is None else Ema(self.model, config.run.ema)
        guard = config.guard
        self.train_step = TrainStep(
            model=self.model, objective=self.objective, optimizers=self.optimizers, precision=self.precision,
            guard=SpikeGuard(guard.action, guard.spike, guard.patience), workers=self._open.enter_context(self.workers(self.device)),
            clip=config.run.clip, micro=config.compute.micro, ranks=self.ranks,
        )  # fmt: skip
        self.captured = Captured(self.train_step) if config.compute.capture else None
        if self.meshes is not None:
            from anyformer.train.distributed.fsdp import syncing

            self.train_step.last = syncing(self.model)
        # What the first stage can't have is heard of before anything is written.
        self.enter(0)
        if self.captured is not None:
            self.captured.check(self.loader(0).batch(0))

    def workers(self, device: torch.device) -> CpuWorkers:
        if self._workers is None:
            # Threads would take turns at one source of random numbers, and no two runs would drop the same; and how
            # evenly routers choose, which a loss may ask for, is another number for each way to cut a batch.
            alone = any(draws(spec) or spec.loss.balance for spec in self.specs)
            alone = alone or self.ranks.world > 1 or self.config.compute.compile != "none"
            self._workers = CpuWorkers.on(device, 1 if alone else min(stage.batch for stage in self.config.stages))
        return self._workers

    def _first_values(self) -> tuple[Callable[[str], torch.Tensor], str | None]:
        """What each parameter begins with, whole, one at a time; and the family that they were published by."""
        if self.config.model.weights:
            # On the host, where what is not asked for stays in its file.
            found = load(self.config.model.weights, device="cpu", dtype=self.precision.dtype)
            check_fit(found, self.spec, self.config.model.weights)
            held = dict(found.named_parameters())
            return lambda name: held[name].detach(), found.family
        first = Initializer(self.spec, weights(self.spec), self.config.run.seed)
        return lambda name: first.value(name, self.device), None

    def enter(self, stage: int) -> None:
        """Be ready for the steps of a stage."""
        if stage == self._stage:
            return
        self.train_step.guard.enter(stage)
        self._stage = stage
        if self.meshes is None:
            self.model = restaged(self.model, self.specs[stage])
        else:
            from anyformer.train.distributed.fsdp import restage

            shared = self.meshes.tensor
            restage(self.model, self.specs[stage], self.config.many.tensor, shared.get_local_rank() if shared else 0)
        recompute(self.model, self.config.compute.recompute)
        compiled(self.model, self.config.compute.compile)
        self.train_step.model = self.model

    def loader(self, stage: int) -> BatchLoader:
        """The batches of a stage. Those of two are kept: a plan of packed rows takes time, and memory."""
        found = self._loaders.pop(stage, None) or self._loader(self.examples, stage, self.order)
        self._loaders = dict([*self._loaders.items()][-1:]) | {stage: found}
        return found

    def _loader(self, examples: Examples, stage: int, version: int, seed: int | None = None) -> BatchLoader:
        data, sizes = self.config.data, self.config.stages[stage]
        own = self.config.run.seed + STAGE * stage
        return BatchLoader(
            examples, self.objective, spec=self.specs[stage], length=sizes.length, batch=sizes.batch,
            seed=own if seed is None else seed, rows=data.rows, packing=data.packing, restart=data.restart,
            version=version,
        )  # fmt: skip

    def state(self, progress: Progress) -> RunState:
        data = {self.config.data.train: self.examples.fingerprint}
        if self.valid is not None:
            data[self.config.data.valid] = self.held_out.fingerprint
        return RunState(
            step=progress.step, tokens=progress.tokens, seconds=progress.seconds, seed=self.config.run.seed, data=data,
            tokenizer=self.index.tokenizer_sha256 or "", spec=dict(flatten(self.spec.to_data())), config=identity(self.config),
            versions=versions(), machine=self.machine, guard=self.train_step.guard.state(), digest=progress.batch,
            order=self.order, totals=self.totals,
        )  # fmt: skip

    def restore(self) -> tuple[Progress, Path | None]:
        """Go on from the newest checkpoint of the folder that is whole, if there is one."""
        # The checkpoint that all processes go on from: rank 0 finds it.
        with self.ranks.rank0_first() as first:
            found = resume(self.folder) if first else None
        step = self.ranks.broadcast(-1 if found is None else found.step)
        if found is None and step >= 0:
            found = verify(self.folder / FOLDER / name_of(step), step, hashes=False)
        now = self.state(Progress())
        if found is None:
            self._describe(new=True)
            return Progress(), None
        before = RunState.from_data(found.state, str(found.folder))
        before = replace(before, spec=with_defaults(before.spec, self.spec))
        longer = extension(before, self.config)
        check_resume(before, now, self.folder, () if longer is None else longer.keys)
        if longer is not None and longer.words:
            warnings.warn(f"{self.folder} {longer.words}", stacklevel=2)
        self.totals = before.totals if longer is None else longer.totals
        if before.order != self.order:
            # A newer checkpoint, which is damaged, said otherwise.
            self.order, self._loaders = before.order, {}
        self._describe(new=False)
        fill(found, TABLES[0], dict(self.model.named_parameters()))
        fill(found, TABLES[1], self.optimizers.state())
        if self.ema is not None:
            metadata = fill(found, TABLES[2], self.ema.means)
            self.ema.steps.fill_(int(metadata.get("steps", "0")))
        self.train_step.guard.restore(before.guard)
        self.saver.last = before.step
        done = Progress(step=before.step, tokens=before.tokens, seconds=before.seconds, batch=before.digest)
        return done, found.folder

    def save(self, progress: Progress) -> Path:
        """Leave a checkpoint. What a finished run leaves is plain, whatever the ones before it were."""
        metadata = metadata_of(self.specs[-1], self.model.family)
        own = Table(dict(self.model.named_parameters()), metadata)
        tables, public = {TABLES[0]: own, TABLES[1]: Table(self.optimizers.state())}, TABLES[0]
        if self.ema is not None:
            public = TABLES[2]
            tables[public] = Table(self.ema.means, {**metadata, "steps": str(int(self.ema.steps))})
        state, texts = asdict(self.state(progress)), {SPEC: self.specs[-1].to_toml()}
        contents = Contents(tables=tables, state=state, texts=texts, public=public)
        if self.meshes is not None and self.config.many.save == "parts" and progress.step < self.config.steps:
            save_parts(self.ranks, self.folder, progress.step, contents, self.config.run.keep)
        else:
            contents = contents if self.meshes is None else gathered_contents(contents, self.ranks)
            with self.ranks.rank0_first() as first:
                if first:
                    self.saver.save(progress.step, contents)
        return self.folder / FOLDER / name_of(progress.step)

    def _describe(self, *, new: bool) -> None:
        """Write the resolved config and spec, which a part of the run may change, and the tokenizers of a new run."""
        with self.ranks.rank0_first() as first:
            if not first:
                return
            for name, text in ((CONFIG, self.config.to_toml()), (SPEC, self.specs[-1].to_toml())):
                place = self.folder / name
                if not place.is_file() or place.read_bytes() != text.encode():
                    replace_file(place, lambda beside, text=text: beside.write_text(text, encoding="utf-8"))
            if new and self.tokenizer is not None and (reads := self.input_tokenizer) is not None:
                (self.tokenizer if self.source_tokenizer else reads).save(self.folder)
                if self.source_tokenizer:
                    reads.save(self.folder / SOURCE)

    def averaged(self) -> AbstractContextManager[Any]:
        """With the averaged weights, if there are any."""
        return nullcontext() if self.ema is None else self.ema.used(self.model)

    @contextmanager
    def assembled(self) -> Iterator[bool]:
        """With the whole model, averaged if there is a mean, as `model`: true on the first process, and the others wait."""
        with self.averaged():
            if self.meshes is None:
                yield True
                return
            from anyformer.train.distributed.fsdp import assembled

            spread, spec = self.model, self.specs[max(self._stage, 0)]
            plain = assembled(spread, spec, self.device, keep=self.ranks.is_rank0)
            with self.ranks.rank0_first() as first:
                self.model = spread if plain is None else plain
                try:
                    yield first
                finally:
                    self.model = spread

    def bits_per_byte(self, loss: float) -> float | None:
        """Nats per token as bits per byte of the held-out text; None where a label is not the next token of a text."""
        return None if self.valid is None else self.objective.bits_per_byte(loss, self.held_out)

    def memory(self) -> int:
        """Bytes in use at most so far: of the device, or of this process."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

    def close(self, error: BaseException | None = None) -> None:
        """Let go of the folder and of everything that was changed for this run, because of an error if there is one."""
        self._open.__exit__(type(error) if error is not None else None, error, None)


def restaged(model: Model, spec: ModelSpec) -> Model:
    """A model of another spec with the very parameters of this one, so that optimizers go on with them."""
    if spec == model.spec:
        return model
    like = next(model.parameters())
    made = empty_model(spec, like.device, like.dtype)
    modules: dict[str, nn.Module] = dict(made.named_modules())
    for name, parameter in model.named_parameters():
        above, _, last = name.rpartition(".")
        modules[above]._parameters[last] = parameter
    made.train(model.training)
    made.family = model.family
    return made


def load_weights(folder: str, spec: ModelSpec, device: torch.device, dtype: torch.dtype) -> Model:
    """A model of the spec with the weights of a folder, which must have their shapes."""
    found = load(folder, device=device, dtype=dtype)
    check_fit(found, spec, folder)
    # In memory of its own: a view of a file must not be trained in.
    return restaged(found._apply(torch.clone), spec)


def check_fit(found: Model, spec: ModelSpec, folder: str) -> None:
    """Refuse a model whose parameters are not those of a spec."""
    if is_quantized(found):
        raise InputError(
            f"model.weights: {folder} is quantised, and whole numbers can't learn; begin from the model that it was made "
            "from, or from what anyformer convert --dequantize makes of it"
        )
    have = {name: tuple(p.shape) for name, p in found.named_parameters()}
    want = {name: weight.shape for name, weight in weights(spec).items()}
    wrong = sorted(name for name in have.keys() | want.keys() if have.get(name) != want.get(name))
    if wrong:
        name = wrong[0]
        raise InputError(
            f"model.weights: {folder} does not fit the spec in {len(wrong)} places: {name} has {have.get(name)}, the spec "
            f"says {want.get(name)}; change its shape first, with anyformer convert"
        )


def device_of(name: str) -> torch.device:
    """The device that is asked for, or the best that is there."""
    if not name:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError) as error:
        # torch reports a device that it was not built for by a failed assertion.
        first = str(error).splitlines()[0]
        raise CapabilityError(f"device {name!r} can't be used here: {first}; leave it out, or give cpu") from error
    return device
