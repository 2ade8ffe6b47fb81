"""Quickstart: a small decoder, trained, measured and kept in two minutes on two cores; and how two such runs compare."""

import itertools
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import get_type_hints

import numpy as np
import torch

from anyformer.data.corpus import Corpus, gzip_bits_per_byte, standard_library, text_corpus, unigram_nats
from anyformer.data.dataset import Examples
from anyformer.data.loader import BatchLoader
from anyformer.data.objectives.causal import Causal
from anyformer.data.tokenizer import END, Tokenizer, train_bpe
from anyformer.data.tokenizer import FILE as TOKENIZER_FILE
from anyformer.errors import AnyformerError, DataError, InputError
from anyformer.explain.difference import Difference, difference
from anyformer.files import NewFolder, settle
from anyformer.generation.generate import generate
from anyformer.generation.text.detokenizer import detokenizer
from anyformer.generation.text.prompt import read_prompt
from anyformer.lab.quickstart_plan import LEAST, Budget, Plan, left_for_steps
from anyformer.model.build import build
from anyformer.model.model import Model
from anyformer.model.native_checkpoint import SPEC as SPEC_FILE
from anyformer.model.native_checkpoint import WEIGHTS as WEIGHTS_FILE
from anyformer.model.native_checkpoint import save
from anyformer.optim.schedule import Schedule
from anyformer.specs.model import ModelSpec
from anyformer.train.components import device_of
from anyformer.train.cpu_workers import CpuWorkers, draws
from anyformer.train.loggers import FILE as METRICS_FILE
from anyformer.train.loggers import Metrics, read_metrics
from anyformer.train.optim import Optimizers
from anyformer.train.perplexity import score, score_ids
from anyformer.train.report.chart import draw_curve
from anyformer.train.signals import StopSignals
from anyformer.train.train_step import Precision, SpikeGuard, TrainStep

CURVE = "loss.png"
FILES = (SPEC_FILE, WEIGHTS_FILE, TOKENIZER_FILE, METRICS_FILE, CURVE)
"""What a run folder holds."""
RESULT = "result"
"""The event under which metrics.jsonl holds it, last."""
QUICK_EVALS = 20
"""How often a run is evaluated on some of the held-out text, for the curve."""
QUICK_ROWS = 16
KEEPING = 3.0
"""Seconds in which the model is kept, the picture drawn and a sample spoken."""


@dataclass(frozen=True, kw_only=True)
class StepRecord:
    """What a step did."""

    step: int
    loss: float
    """Mean cross-entropy of the step's rows in nats per token, before the update; smoothed if the spec says so."""
    gradient_norm: float
    rate: float
    tokens: int
    seconds: float
    progress: float
    skipped: bool
    """Loss or gradient were not finite, so the weights were left as they were."""


def train(
    train_step: TrainStep,
    loader: BatchLoader,
    *,
    schedule: Schedule,
    budget: Budget,
    seed: int,
    clock: Callable[[], float] | None = None,
) -> Iterator[StepRecord]:
    """Train until the budget is spent; the caller's time between steps counts only if `clock` measures it."""
    model = train_step.model
    model.train()
    step = tokens = 0
    seconds = 0.0

    def over() -> float:
        return budget.progress(step, seconds if clock is None else clock())

    while (progress := over()) < 1.0:
        begun = time.perf_counter()
        batch, rate = loader.batch(step), schedule.at(progress)
        found = train_step.step(batch, seed=seed, step=step, factor=rate).read()
        tokens += batch.tokens
        step += 1
        seconds += time.perf_counter() - begun
        yield StepRecord(
            step=step, loss=found.loss, gradient_norm=found.norm, rate=rate, tokens=tokens, seconds=seconds,
            progress=over(), skipped=found.skipped,
        )  # fmt: skip
        train_step.settle(found, step, batch)
    model.eval()


@dataclass(frozen=True, kw_only=True)
class Result:
    """The figures of a finished run."""

    loss: float
    """Mean nats per token on the held-out text."""
    perplexity: float
    bits_per_byte: float
    gzip_bits_per_byte: float
    unigram_bits_per_byte: float
    params: int
    steps: int
    tokens: int
    seconds: float
    corpus: str
    fingerprint: str
    """A hash of the text and its split: figures compare only where it is equal."""
    seed: int
    budget: str
    """How long it was to last: figures of runs with other budgets don't say which model is better."""
    device: str


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A run beside an earlier one on the same text."""

    before: Result
    after: Result
    difference: Difference

    @property
    def fair(self) -> bool:
        """Whether both had the same budget, on the same kind of machine."""
        return (self.before.budget, self.before.device) == (self.after.budget, self.after.device)

    @property
    def gain(self) -> float:
        """By what share the bits per byte fell; negative if they rose."""
        return 1 - self.after.bits_per_byte / self.before.bits_per_byte


class Quickstart:
    """One run. Its steps are called in order, inside `with run.folder`: read, prepare, train, measure, keep, sample.

    Each does its part and answers what there is to show; nothing here prints.
    """

    corpus: Corpus
    tokenizer: Tokenizer
    spec: ModelSpec
    model: Model

    def __init__(
        self, plan: Plan, *, began: float | None = None, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        """`began`: when it was asked for, by the clock; a budget in seconds is of all that is done from then on."""
        self.plan, self.clock = plan, clock
        self.began = clock() if began is None else began
        self.steps_seconds: float | None = None
        """Seconds that the budget leaves for steps and evaluations; None: it is a number of steps, or not known yet."""
        self.allotted = plan.budget
        """The budget of the steps alone, once it is known."""
        # Problems of the spec come before any work.
        self.wanted = plan.spec()
        self.device = device_of(plan.device or "")
        self.folder = NewFolder(plan.place, FILES)
        self.records: list[StepRecord] = []
        self.quick_evals: list[tuple[int, float]] = []

    def read(self) -> Corpus:
        self.corpus = standard_library() if self.plan.text is None else text_corpus(self.plan.text)
        return self.corpus

    def prepare(self) -> ModelSpec:
        """Train the tokenizer, encode the text, build the model, and make sure that the folder can hold it."""
        corpus, plan = self.corpus, self.plan
        self.tokenizer = train_bpe((document.text for document in corpus.train), self.wanted.vocab)
        end = self.tokenizer.id_of(END)
        learned = self.tokenizer.encode_many([document.text for document in corpus.train])
        examples = Examples.of({"tokens": learned}, bytes=corpus.train_bytes)
        self.held_out = [[end, *ids] for ids in self.tokenizer.encode_many([d.text for d in corpus.held_out])]
        self.tokens = np.fromiter(itertools.chain.from_iterable([end, *ids] for ids in learned), dtype=np.uint32)
        if len(self.tokens) < self.wanted.context:
            raise DataError(
                f"{corpus.title}: has {len(self.tokens)} tokens to learn from, and one row takes "
                f"{self.wanted.context} (the context); give a longer text, or --set context=N"
            )
        self.spec = self.wanted.vary({"vocab": self.tokenizer.vocab, "ids.bos": end, "ids.eos": [end]})
        rows = {"length": self.spec.context, "batch": plan.batch, "rows": "stream"}
        self.loader = BatchLoader(examples, Causal(), spec=self.spec, seed=plan.seed, **rows)
        self.model = build(self.spec, device=self.device, seed=plan.seed)
        # The untrained weights take as much room as the trained ones will: a full disk shows now, not after training.
        self._write()
        return self.spec

    def train(self) -> Iterator[StepRecord]:
        done = 0
        # Workers would take turns at one source of random numbers, and no two runs would drop the same; and how evenly
        # routers choose is asked of whole batches.
        alone = draws(self.spec) or self.spec.loss.balance
        workers = CpuWorkers(1) if alone else CpuWorkers.on(self.device, self.plan.batch)
        # A flag, because an exception out of a signal handler can be lost in somebody else's code (numpy's modules lose
        # it while they are imported).
        with StopSignals(quiet=True) as stopping, Metrics(self.folder.path) as metrics, workers:
            train_step = TrainStep(
                model=self.model, objective=self.loader.objective, optimizers=Optimizers(self.model, self.plan.optim),
                precision=Precision(), guard=SpikeGuard(), workers=workers,
            )  # fmt: skip
            budget, clock = self._allotted()
            given = {"schedule": self.plan.schedule, "budget": budget, "seed": self.plan.seed, "clock": clock}
            for record in train(train_step, self.loader, **given):
                self.records.append(record)
                metrics.write("step", **asdict(record))
                yield record
                stopping.raise_if_requested()
                if record.progress * QUICK_EVALS >= done + 1 and record.progress < 1:
                    done = int(record.progress * QUICK_EVALS)
                    bits = self._quick_eval()
                    self.quick_evals.append((record.tokens, bits))
                    metrics.write("glimpse", step=record.step, tokens=record.tokens, bits_per_byte=bits)
            stopping.raise_if_requested()
        if not self.records:
            raise InputError("there was no step to train; give more minutes or steps")

    def _allotted(self) -> tuple[Budget, Callable[[], float] | None]:
        """What the steps may take: of a budget in seconds, what getting ready and measuring at the end leave of it."""
        whole = self.plan.budget.seconds
        if whole is None:
            return self.plan.budget, None
        # The first evaluation loads what later ones find ready.
        self._quick_eval()
        first = self.clock()
        self._quick_eval()
        spent = self.clock() - first
        now, context = self.clock(), self.spec.context
        # In windows that move on by half of their length, every token is read about twice.
        windows = sum(2 * len(ids) for ids in self.held_out) / (QUICK_ROWS * (context + 1))
        before, after, most = now - self.began, spent * windows + KEEPING, self.plan.budget.most_seconds
        self.steps_seconds = left_for_steps(whole, before, after)
        most = None if most is None else left_for_steps(most, before, after)
        self.allotted = replace(self.plan.budget, seconds=self.steps_seconds, most_seconds=most)
        return self.allotted, lambda: self.clock() - now

    @property
    def late(self) -> bool:
        """Whether the run will take longer than was asked for, as its steps have their least share."""
        whole = self.plan.budget.seconds
        return whole is not None and self.steps_seconds is not None and self.steps_seconds <= LEAST * whole

    def _quick_eval(self) -> float:
        """Bits per byte on a few rows of the held-out text: a point of the curve, not the final word."""
        stream = list(itertools.chain.from_iterable(self.held_out))
        length = min(self.spec.context + 1, len(stream))
        last = len(stream) - length
        starts = sorted({last * i // max(1, QUICK_ROWS - 1) for i in range(QUICK_ROWS)})
        return self._bits(score_ids(self.model, [stream[i : i + length] for i in starts]).nats_per_token)

    def _bits(self, nats_per_token: float) -> float:
        """Bits per byte, at the held-out text's own number of tokens per byte."""
        tokens = sum(map(len, self.held_out)) - len(self.held_out)
        return nats_per_token * tokens / math.log(2) / self.corpus.held_out_bytes

    def measure(self) -> Result:
        """Score the whole held-out text, beside gzip and a unigram model."""
        size, last = self.corpus.held_out_bytes, self.records[-1]
        measured = score(self.model, self.tokenizer, [document.text for document in self.corpus.held_out])
        self.rule = measured.rule
        flat = np.fromiter(itertools.chain.from_iterable(ids[1:] for ids in self.held_out), dtype=np.int64)
        unigram = unigram_nats(self.tokens, flat, self.spec.vocab) / math.log(2) / size
        self.result = Result(
            loss=measured.nats_per_token, perplexity=measured.perplexity, params=self.spec.count().params,
            bits_per_byte=measured.nats / math.log(2) / size, unigram_bits_per_byte=unigram,
            gzip_bits_per_byte=gzip_bits_per_byte(self.corpus.held_out), steps=last.step, tokens=last.tokens,
            seconds=last.seconds, corpus=self.corpus.title, fingerprint=self.corpus.fingerprint(), seed=self.plan.seed,
            budget=self.plan.budget.words, device=self.device.type,
        )  # fmt: skip
        return self.result

    def keep(self) -> Path:
        """Write the trained model, the result and the picture, and let the folder take its place."""
        with Metrics(self.folder.path) as metrics:
            metrics.write(RESULT, **asdict(self.result), rule=self.rule)
        self._write()
        points = [(record.tokens, self._bits(record.loss)) for record in self.records if not record.skipped]
        result = self.result
        title = f"{result.bits_per_byte:.2f} bits per byte on {result.corpus}, {result.params:,} parameters"
        yardsticks = {"gzip -9": result.gzip_bits_per_byte, "unigram": result.unigram_bits_per_byte}
        # A quick evaluation is of a few rows, each token seen with less before it: no point of the same line.
        final = [(result.tokens, result.bits_per_byte)]
        place, held_out = self.folder.path / CURVE, self.quick_evals
        draw_curve(place, title=title, train=points, held_out=held_out, final=final, yardsticks=yardsticks)
        self.folder.commit()
        return self.plan.place

    def _write(self) -> None:
        # Nobody sees this folder yet, so the weights that were there first need not be kept until others are written.
        (self.folder.path / WEIGHTS_FILE).unlink(missing_ok=True)
        save(self.model, self.folder.path)
        self.tokenizer.save(self.folder.path)

    @property
    def prompt(self) -> str | None:
        """What the sample begins with: something that fits the text, or nothing."""
        return "class Reader:\n    def " if self.plan.text is None else None

    def sample(self, new_tokens: int = 120) -> Iterator[str]:
        """A sample, piece by piece, the prompt first. The same weights say the same thing."""
        read = read_prompt(self.spec, self.tokenizer, self.prompt)
        stream = detokenizer(self.tokenizer, read.ids, repeated=read.repeated)
        yield self.prompt or ""
        room = min(new_tokens, self.spec.context - len(read.ids))
        if room < 1:
            return
        for ids_B in generate(
            self.model, torch.tensor([read.ids]), first=read.first, max_new_tokens=room, temperature=0.9, top_p=0.95,
            seed=self.plan.seed, stop=(), stream=True,
        ):  # fmt: skip
            yield stream.push(int(ids_B[0]))
        yield stream.end()


def read_result(folder: Path) -> Result | None:
    """The result of a run folder, or None if it has none that we can read."""
    wanted = {name: (int, float) if kind is float else kind for name, kind in get_type_hints(Result).items()}
    for record in reversed(read_metrics(folder, RESULT)):
        if all(isinstance(record.get(name), kind) for name, kind in wanted.items()):
            return Result(**{name: record[name] for name in wanted})
    return None


def earlier(base: Path, place: Path) -> Path | None:
    """The run with which one is compared: the plain run on the same text, or else the oldest one beside it."""
    after = read_result(place)
    beside = [folder for folder in place.parent.iterdir() if folder.is_dir() and folder.name[0] != "."]
    found = {folder: read_result(folder) for folder in (settle(base), *sorted(beside))}
    others = {folder: result for folder, result in found.items() if result and folder.resolve() != place.resolve()}
    same = [folder for folder, result in others.items() if after and result.fingerprint == after.fingerprint]
    if base in same:
        return base
    return min(same, key=lambda folder: (folder / METRICS_FILE).stat().st_mtime, default=None)


def compare(first: Path, second: Path) -> Comparison | None:
    """Two run folders side by side; None if one has no result, or if they were measured on different texts."""
    before, after = read_result(first), read_result(second)
    if before is None or after is None or before.fingerprint != after.fingerprint:
        return None
    try:
        old, new = (ModelSpec.from_file(folder / SPEC_FILE) for folder in (first, second))
    except AnyformerError:
        return None
    return Comparison(before=before, after=after, difference=difference(old, new, (first.name, second.name)))
