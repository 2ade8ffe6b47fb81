"""The config of a run: one TOML file, read into frozen values, with every problem named at once. No torch is loaded.

[model]      what is trained: a base and changes, or a whole spec; fresh weights, or those of a folder
[data]       where the tokens are, and how rows are made of documents
[objective]  what is learned from them
[optim]      which optimizer moves which parameters
[schedule]   the factor on the learning rates
[[stages]]   steps, length and batch, one after the other
[compute]    device, precision, compilation, recomputation
[guard]      what happens to numbers that are not finite, and to spikes
[many]       how the model is spread over processes
[run]        the folder, the seed, and how often to evaluate, save and sample
"""

import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from anyformer.data.objectives import Objective
from anyformer.data.packing import Packing
from anyformer.errors import InputError
from anyformer.optim.schedule import Schedule, at_least
from anyformer.specs.axes import Problem
from anyformer.specs.codec import MISSING, Problems, Table, draft, flatten, read_fields, write
from anyformer.specs.layer import default
from anyformer.specs.overrides import Overrides, merge
from anyformer.train.loggers import unknown_services
from anyformer.train.optim_config import Optim

ROWS = Literal["stream", "packed", "padded"]
EVALS, SAVES = 20, 10
"""So often in a run, unless the config says otherwise."""


@dataclass(frozen=True, kw_only=True)
class ModelPart:
    """[model]: what is trained."""

    base: str = ""
    """A preset's name, a spec file, or a folder with a model; empty: `spec` is the whole architecture."""
    spec: Overrides = field(default_factory=Overrides)
    """The architecture, or what is changed of the base. A vocabulary that is left out is the tokenizer's."""
    weights: str = ""
    """A folder whose weights the run begins from; empty: fresh ones by the spec's init."""

    def problems(self) -> Iterator[Problem]:
        if not self.base and not self.spec.items and not self.weights:
            yield "base", "is missing: name a preset, a spec file or a folder, or write the spec in [model.spec]"


@dataclass(frozen=True, kw_only=True)
class DataPart:
    """[data]: what is learned from."""

    folder: str
    """A folder that `anyformer tokenize` wrote."""
    make: str = ""
    """What `anyformer tokenize` is given to make that folder if it is not there: files and options, without --out."""
    rows: ROWS = "packed"
    """packed: whole documents side by side, none sees another; padded: one document in each row; stream: all documents
    one after the other in a circle, cut anywhere, every token read in each epoch."""
    packing: Packing = default(Packing, "best_fit")
    restart: bool = True
    """Whether positions begin again with each document of a packed row."""
    train: str = "train"
    """The part that is learned from."""
    valid: str = "valid"
    """The part that is measured on; empty: none."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One of [[stages]]: a stretch of the run with its own sizes."""

    steps: int
    length: int
    """Tokens of a row."""
    batch: int
    """Rows of a step, over all processes."""
    spec: Overrides = field(default_factory=Overrides)
    """What is otherwise in the architecture during this stage, such as a smaller window; no weight may change its shape."""

    def problems(self) -> Iterator[Problem]:
        yield from at_least(self, 1, "steps", "length", "batch")


@dataclass(frozen=True, kw_only=True)
class Compute:
    """[compute]: where and in what numbers."""

    device: str = ""
    """cpu, cuda, cuda:1; empty: a CUDA device if there is one, else the CPU."""
    dtype: Literal["float32", "bfloat16", "float64"] = "float32"
    """Of the weights and their gradients."""
    autocast: Literal["none", "bfloat16"] = "none"
    """What products run in while the weights keep their dtype."""
    tf32: bool = False
    """Whether products in float32 on a CUDA device may round their factors to 11 bits, which is several times as fast."""
    compile: Literal["none", "block", "model"] = "none"
    """block: one block is compiled and serves all layers that are alike; model: the whole pass."""
    capture: bool = False
    """Record a step as a CUDA graph and replay it: for models so small that the host can't launch kernels fast enough."""
    recompute: Literal["none", "block", "selective"] = "none"
    """What the backward pass computes once more to save memory: nothing, whole blocks, or what is cheap."""
    micro: int = 0
    """Rows that go through the model at once, on each process; gradients add up over the batch. 0: all of them."""
    threads: int = 0
    """Cores that are used on a CPU; 0: as many as there are."""
    deterministic: bool = False
    """Only kernels that give the same bits each time; on CUDA it costs speed. A CPU always does."""

    def problems(self) -> Iterator[Problem]:
        yield from at_least(self, 0, "micro", "threads")
        if self.autocast != "none" and self.dtype != "float32":
            yield "autocast", f"the weights are {self.dtype}, and it is float32 that is cast; leave one of the two out"


@dataclass(frozen=True, kw_only=True)
class GuardPart:
    """[guard]: numbers that must not reach the weights."""

    action: Literal["skip", "stop"] = "skip"
    """Leave such a step out, or end the run; the batch is named either way."""
    spike: float | None = None
    """A gradient norm of so many times the median of the last ones is such a number too; unset: only what is not finite."""
    patience: int = 10
    """So many steps in a row may be left out before the run ends."""

    def problems(self) -> Iterator[Problem]:
        if self.spike is not None and self.spike <= 1:
            yield "spike", f"{self.spike:g} is not above 1"
        yield from at_least(self, 1, "patience")


@dataclass(frozen=True, kw_only=True)
class Many:
    """[many]: how a run under torchrun is spread over processes."""

    shard: Literal["none", "full", "hybrid"] = "full"
    """full: weights, gradients and optimizer state are cut over all processes (FSDP2); hybrid: within a machine, with
    a copy on each; none: a whole copy on each process."""
    tensor: int = 1
    """Processes that share each product (tensor parallel)."""
    save: Literal["plain", "parts"] = "plain"
    """plain: checkpoints as one process writes them, gathered by the first; parts: each process writes what it holds,
    all at once. Any number of processes reads either; what a finished run leaves is always plain."""
    timeout: int = 1800
    """Seconds that a process waits for another before it gives up."""

    def problems(self) -> Iterator[Problem]:
        yield from at_least(self, 1, "tensor", "timeout")


@dataclass(frozen=True, kw_only=True)
class RunPart:
    """[run]: the folder, and how often to look."""

    folder: str
    """Where everything is kept."""
    seed: int = 0
    clip: float = 1.0
    """The largest norm of all gradients together; 0: no limit."""
    ema: float | None = None
    """Weights are averaged by this factor from step to step, and measured, spoken with and kept; unset: not at all."""
    eval_every: int = 0
    """Steps between looks at the valid part; 0: twenty looks in the run."""
    eval_batches: int = 8
    """Batches of such a look, of rows that are drawn once from the whole part and are the same in every look and for every
    seed; 0, or more than there are: the whole part. At the end the whole part is measured in any case."""
    save_every: int = 0
    """Steps between checkpoints; 0: ten in the run."""
    keep: int = 2
    """Checkpoints that are kept."""
    sample_every: int = 0
    """Steps between samples; 0: none before the end."""
    sample_tokens: int = 100
    prompt: str = ""
    """What a sample begins with."""
    log: tuple[str, ...] = ()
    """Loggers besides metrics.jsonl: tensorboard, wandb, trackio."""

    def eval_interval(self, total: int) -> int:
        return self.eval_every or max(1, -(-total // EVALS))

    def save_interval(self, total: int) -> int:
        return self.save_every or max(1, -(-total // SAVES))

    def problems(self) -> Iterator[Problem]:
        if not 0 <= self.seed < 2**53:
            yield "seed", f"{self.seed} is not from 0 to 2^53 - 1"
        if self.ema is not None and not 0 < self.ema < 1:
            yield "ema", f"{self.ema:g} is not between 0 and 1"
        yield from at_least(self, 0, "clip", "eval_every", "eval_batches", "save_every", "sample_every")
        yield from at_least(self, 1, "sample_tokens")
        if self.keep < 2:
            yield "keep", f"{self.keep} is not at least 2: a damaged checkpoint must have one before it"
        yield from (("log", problem) for problem in unknown_services(self.log))


@dataclass(frozen=True, kw_only=True)
class Config:
    """All that a run depends on."""

    model: ModelPart
    data: DataPart
    objective: Objective = default(Objective, "causal")
    optim: Optim = field(default_factory=Optim)
    schedule: Schedule = default(Schedule, "wsd")
    stages: tuple[Stage, ...]
    compute: Compute = field(default_factory=Compute)
    guard: GuardPart = field(default_factory=GuardPart)
    many: Many = field(default_factory=Many)
    run: RunPart

    @classmethod
    def from_data(cls, data: Mapping[str, Any], source: str = "", problems: Problems | None = None) -> Self:
        """Read plain data. Every problem is named in one InputError, after the `problems` that are known already."""
        problems = Problems() if problems is None else problems
        if isinstance(data.get("stages"), Mapping):
            problems.add("stages", "is one table, and there may be several; write [[stages]], with two brackets")
            data = {**data, "stages": [data["stages"]]}
        values = read_fields(cls, data, "", problems) or {}
        config = cls(**draft(cls, values))
        for path, part in config.parts():
            for name, message in part.problems():
                place = f"{path}.{name}" if name else path
                # A field that could not be read has a stand-in, of which nothing is to be said.
                if not problems.touches(place):
                    problems.add(place, message)
        if not config.stages and values.get("stages") is not MISSING:
            problems.add("stages", "there is none; write [[stages]] with steps, length and batch")
        if problems.found:
            from anyformer.train.resolve import needs

            lines = [*map(in_familiar_words, problems.lines), *needs(config, problems.touches).lines]
            raise InputError("\n  ".join([f"{source or 'the config'} can't be used:", *lines]))
        return config

    @classmethod
    def from_toml(cls, text: str, source: str = "", changes: Mapping[str, Any] | None = None) -> Self:
        """Read a config's text, with dotted changes such as {"run.seed": 3}."""
        try:
            data = tomllib.loads(text)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{source or 'the config'} is not TOML: {error}") from error
        problems = Problems()
        return cls.from_data(_changed(cls, data, changes or {}, problems), source, problems)

    @classmethod
    def from_file(cls, path: str | Path, changes: Mapping[str, Any] | None = None) -> Self:
        """Read a config file. Relative paths in it begin where the command is called, not at the file."""
        place = Path(path)
        try:
            text = place.read_text(encoding="utf-8-sig")
        except OSError as error:
            raise InputError(f"{place}: can't be read: {error.strerror}; give a config, e.g. recipes/*.toml") from error
        except UnicodeDecodeError as error:
            raise InputError(f"{place}: is not UTF-8 text (byte {error.start})") from error
        return cls.from_toml(text, str(place), changes)

    def parts(self) -> list[tuple[str, Any]]:
        named = ("model", "optim", "schedule", "compute", "guard", "many", "run")
        stages = [(f"stages[{i}]", stage) for i, stage in enumerate(self.stages)]
        return [(name, getattr(self, name)) for name in named] + stages

    @property
    def steps(self) -> int:
        return sum(stage.steps for stage in self.stages)

    def place(self, step: int) -> tuple[int, int]:
        """The stage of a step and the step within it, all from 0; a step after the end belongs to the last stage."""
        for number, stage in enumerate(self.stages[:-1]):
            if step < stage.steps:
                return number, step
            step -= stage.steps
        return len(self.stages) - 1, step

    def to_data(self) -> Table:
        return write(self)

    def to_toml(self) -> str:
        import tomli_w

        return tomli_w.dumps(self.to_data())


OTHER_NAMES: Mapping[str, str] = {
    "optim.matrices, optim.tables and optim.vectors, learning rates by group": "lr learning_rate max_lr peak_lr base_lr",
    "schedule.floor, a share of the peak": "min_lr lr_end min_learning_rate",
    "optim.decay.matrices, and tables, head, vectors beside it": "weight_decay wd",
    "optim.betas = [0.9, 0.95]": "beta1 beta2 adam_beta1 adam_beta2",
    "optim.eps": "epsilon adam_eps adam_epsilon",
    "optim.kind": "optimizer optimiser",
    "schedule.kind": "scheduler lr_scheduler lr_scheduler_type lr_schedule",
    "schedule.warmup, below 1 a share of the run": "warmup_steps warmup_iters warmup_ratio lr_warmup_steps warmup",
    "batch in [[stages]], over all processes": "batch_size train_batch_size global_batch_size per_device_train_batch_size",
    "compute.micro, rows that go through the model at once": "micro_batch_size gradient_accumulation_steps grad_accum",
    "steps in [[stages]]": "max_steps num_steps total_steps max_iters train_steps iterations",
    "steps in [[stages]]; --dry-run says how many epochs they are": "epochs num_epochs num_train_epochs",
    "length in [[stages]]": "seq_len seq_length sequence_length block_size max_seq_length max_seq_len",
    "run.clip": "grad_clip clip_grad gradient_clip max_grad_norm gradient_clip_val",
    "run.seed": "seed random_seed",
    "run.folder": "output_dir out_dir save_dir",
    "run.eval_every": "eval_interval eval_steps",
    "run.eval_batches": "eval_iters",
    "run.save_every": "save_interval save_steps",
    "run.keep": "save_total_limit",
    'run.log, such as ["wandb"]': "report_to wandb tensorboard",
    'compute.autocast = "bfloat16", or compute.dtype for the weights too': "bf16 fp16 precision mixed_precision amp",
    "compute.device": "device",
    "compute.dtype": "dtype torch_dtype",
    "compute.compile": "torch_compile",
    "compute.recompute": "gradient_checkpointing activation_checkpointing",
    "data.folder, made by anyformer tokenize": "dataset dataset_name data_dir train_file",
    "model.base for the spec, model.weights for weights": "model_name model_name_or_path pretrained init_from",
    "no key: a run goes on by itself from the newest in run.folder": "resume resume_from_checkpoint",
    "model.spec.depth": "n_layer n_layers num_layers num_hidden_layers",
    "model.spec.width": "d_model n_embd hidden_size embed_dim",
    "model.spec.attention.heads": "n_head n_heads num_heads num_attention_heads",
    "model.spec.vocab; left out it is the tokenizer's": "vocab_size",
}
"""What other trainers call a setting, by what it is here."""
FAMILIAR = {name: ours for ours, names in OTHER_NAMES.items() for name in names.split()}


def in_familiar_words(line: str) -> str:
    """A problem, with what a familiar name is called here in the place of names that are spelled like it."""
    path, unknown, _ = line.partition(": is unknown")
    ours = FAMILIAR.get(path.rpartition(".")[2].replace("-", "_").lower()) if unknown else None
    return line if ours is None else f"{path}: is unknown; here it is {ours}"


def _changed(root: type[Config], data: Table, changes: Mapping[str, Any], problems: Problems) -> Table:
    """Plain data with dotted changes; `stages.0.steps` is of the first stage, `stages.steps` of every one."""
    plain = {path: value for path, value in changes.items() if not path.startswith("stages.")}
    table = merge(root, data, plain)
    stages = table.get("stages", [])
    if not isinstance(stages, list) or not all(isinstance(stage, dict) for stage in stages):
        # What is wrong with them is said where they are read.
        return table
    for path, value in changes.items():
        if path in plain:
            continue
        _, place, *rest = path.split(".")
        chosen = stages if not place.isdigit() else stages[int(place) : int(place) + 1]
        name = ".".join(rest if place.isdigit() else [place, *rest])
        if not chosen or not name:
            count = f"{len(stages)} stage{'' if len(stages) == 1 else 's'}"
            problems.add(path, f"the config has {count}, counted from 0; write stages.0.steps=100")
            continue
        for stage in chosen:
            stage |= merge(Stage, stage, {name: value})
    return table


FREE = {
    "data.folder", "data.make", "run.folder", "run.eval_every", "run.eval_batches", "run.save_every", "run.keep",
    "run.sample_every", "run.sample_tokens", "run.prompt", "run.log", "compute.threads", "compute.device", "many",
    "model.weights",
}  # fmt: skip
"""What may change between two parts of one run without a word: nothing that is learned depends on it."""
WARNED = {"guard", "compute"}
STRICT = {"compute.dtype"}
"""What may change with a warning, so that a run that met a lack of memory or bad numbers can go on; and what may not:
the tensors of a checkpoint have their dtype."""


def identity(config: Config) -> dict[str, str]:
    """What a resume must find as it was: dotted names and their values as JSON. The spec has an identity of its own."""
    free = tuple(f"{name}." for name in (*FREE, "model.base", "model.spec"))
    named = sorted((path, value) for path, value in flatten(config.to_data()) if value != {})
    return {path: json.dumps(value, sort_keys=True) for path, value in named if not f"{path}.".startswith(free)}


def only_warned(name: str) -> bool:
    """Whether a run may go on with another value of a setting."""
    return name.split(".")[0] in WARNED and name not in STRICT
