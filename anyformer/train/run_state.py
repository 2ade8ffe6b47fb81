"""The state of a run: what state.json of a checkpoint holds beside the tensors, and what a resume must find unchanged.

No state of a random generator is kept, because there is none to keep: what a step draws depends on the seed, the step
and the process alone, and so does its batch. A state that is not there can't be restored wrongly.
"""

import contextlib
import itertools
import json
import platform
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Self, get_origin, get_type_hints

import torch

from anyformer.data.dataset import Batch
from anyformer.errors import CheckpointError
from anyformer.optim.schedule import Schedule
from anyformer.registry import own_version
from anyformer.specs.codec import flatten
from anyformer.specs.model import ModelSpec
from anyformer.train.config import Config, only_warned


@dataclass(frozen=True, kw_only=True)
class Progress:
    """What a run has behind it."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    batch: str = ""

    def after(self, batch: Batch) -> Self:
        return replace(self, step=self.step + 1, tokens=self.tokens + batch.tokens, batch=batch.digest)

    def later(self, seconds: float) -> Self:
        return replace(self, seconds=self.seconds + seconds)


@dataclass(frozen=True, kw_only=True)
class RunState:
    """Where a run is, what it is made of, and where it runs."""

    step: int
    tokens: int
    seconds: float
    """Time spent in steps so far, over all parts of the run."""
    seed: int
    data: dict[str, str]
    tokenizer: str
    spec: dict[str, Any]
    """The architecture by dotted names."""
    config: dict[str, Any]
    """What else decides what is learned, by dotted names."""
    versions: dict[str, str]
    machine: dict[str, Any]
    guard: dict[str, Any]
    digest: str
    order: int = 1
    """The rule by which streams are cut into rows, `data.loader.VERSION` when the run was begun."""
    totals: list[list[int]] = field(default_factory=list)
    """From which step on the schedule was that of a run of how many steps; empty: never of another number."""

    @classmethod
    def from_data(cls, data: Mapping[str, Any], source: str) -> Self:
        """Read plain data; CheckpointError with all that is wrong."""
        data, kinds = EARLIER | dict(data), get_type_hints(cls)
        problems = [f"{name}: is missing" for name in kinds.keys() - data.keys()]
        problems += [f"{name}: is unknown" for name in data.keys() - kinds.keys()]
        for name, kind in kinds.items():
            wanted = int | float if kind is float else get_origin(kind) or kind
            if name in data and (not isinstance(data[name], wanted) or isinstance(data[name], bool)):
                problems.append(f"{name}: {data[name]!r:.60} is of the wrong type")
        totals = data["totals"] if isinstance(data["totals"], list) else []
        if not all(isinstance(each, list) and [*map(type, each)] == [int, int] for each in totals):
            problems.append(f"totals: {totals!r:.60} are not pairs of a step and a number of steps")
        counts = ((name, data.get(name)) for name in ("step", "tokens", "seed", "order"))
        problems += [f"{name}: {count} is below 0" for name, count in counts if isinstance(count, int) and count < 0]
        if problems:
            raise CheckpointError("\n  ".join([f"{source} is no state of a run:", *sorted(problems)]))
        return cls(**data)


EARLIER: dict[str, Any] = {"order": 1, "totals": []}
"""What a state means that was written before it had a key."""


def order_of(state: Mapping[str, Any]) -> int:
    """The rule by which streams are cut, as a state says that nobody has checked yet."""
    found = (EARLIER | dict(state))["order"]
    return found if isinstance(found, int) else EARLIER["order"]


def versions() -> dict[str, str]:
    """What computes."""
    return {"python": platform.python_version(), "torch": torch.__version__, "anyformer": own_version()}


def machine(device: torch.device, world: int = 1) -> dict[str, Any]:
    """All that the last bits of a result may depend on."""
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "cpu": _cpu(),
        "threads": torch.get_num_threads(),
        "world": world,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


def _cpu() -> str:
    """The name of the processor. Linux has it in a file only."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def with_defaults(stored: Mapping[str, Any], spec: ModelSpec) -> dict[str, Any]:
    """A stored spec by dotted names, with the defaults of fields that a spec has had only since it was stored.

    Names of labels, which come from the data and compute nothing, are taken as they are.
    """
    new = ((name, value) for name, value in flatten(spec.to_data()) if name not in stored)
    return {name: value for name, value in new if name == "head.names" or _is_default(spec, name)} | dict(stored)


def _is_default(spec: ModelSpec, path: str) -> bool:
    *parents, last = path.split(".")
    node: Any = spec
    for name in parents:
        node = getattr(node, name, None)
    defaults = {field.name: field.default for field in fields(node)} if is_dataclass(node) else {}
    return last in defaults and getattr(node, last) == defaults[last]


def differences(old: RunState, new: RunState) -> tuple[list[str], list[str], list[str]]:
    """What a checkpoint was made of and what is there now, where they differ: refused, settings that may be others from
    here on, and where the last bits come from. What the run counts does not matter.
    """
    lines = _differing("data.", old.data, new.data) + _differing("spec.", old.spec, new.spec)
    lines += _differing("", old.config, new.config) + _differing("run.", {"seed": old.seed}, {"seed": new.seed})
    lines += _differing("", {"tokenizer": old.tokenizer}, {"tokenizer": new.tokenizer})
    changed = [line for line in lines if only_warned(line.split(":")[0])]
    warned = _differing("versions.", old.versions, new.versions) + _differing("machine.", old.machine, new.machine)
    return [line for line in dict.fromkeys(lines) if line not in changed], changed, warned


def _differing(prefix: str, was: Mapping[str, Any], now: Mapping[str, Any], most: int = 80) -> list[str]:
    """A line for each value that differs; long ones from a little before the place where they begin to."""
    lines: list[str] = []
    for name in sorted(was.keys() | now.keys()):
        a, b = (repr(table[name]) if name in table else "not set" for table in (was, now))
        if (name in was) != (name in now) or was[name] != now[name]:
            same = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), 0)
            first = 0 if max(len(a), len(b)) <= most else max(0, same - 20)
            old, new = (f"{'...' if first else ''}{text[first : first + most]}" for text in (a, b))
            lines.append(f"{prefix}{name}: was {old}, is {new}")
    return lines


def check_resume(old: RunState, new: RunState, run: Path, allowed: Collection[str] = ()) -> None:
    """Refuse to resume a run as another one, naming every key not `allowed`; warn of what changes last bits."""
    differing, changed, warned = differences(old, new)
    starts = tuple(f"{name}{end}" for name in allowed for end in ":.")
    refused = [line for line in differing if not line.startswith(starts)]
    if refused:
        raise CheckpointError(
            "\n  ".join([f"{run} was begun otherwise, and can't be continued like this:", *refused])
            + "\nSet these back to continue it, or give run.folder another name to begin a new run"
        )
    elsewhere = "goes on elsewhere than it began, so it may differ in the last bits"
    for what, lines in (("goes on with other settings than it began with", changed), (elsewhere, warned)):
        if lines:
            warnings.warn("\n  ".join([f"{run} {what}:", *lines]), stacklevel=2)


@dataclass(frozen=True, kw_only=True)
class Extension:
    """A run that goes on further than it was to go. The steps that are done keep their stage and their batch."""

    keys: frozenset[str]
    """Names of the config in which it differs from what the checkpoint was made by."""
    totals: list[list[int]]
    """As `RunState.totals`."""
    words: str
    """What is otherwise than in a run of so many steps from the start; empty: nothing."""


def extension(before: RunState, config: Config) -> Extension | None:
    """How a config adds steps to the run of a checkpoint; None if it does not, or if a step that is done would change."""
    names = (f"stages[{i}].steps" for i in itertools.count())
    written = itertools.takewhile(lambda name: isinstance(before.config.get(name), str), names)
    old = [int(json.loads(before.config[name])) for name in written]
    new = [stage.steps for stage in config.stages]
    if not old or len(new) < len(old) or sum(new) <= sum(old) or any(a > b for a, b in zip(old, new, strict=False)):
        return None
    ended = 0
    for was, steps in zip(old, new, strict=False):
        ended += was
        if was != steps and ended < before.step:
            return None
    keys = {f"stages[{i}].steps" for i in range(len(old)) if old[i] != new[i]}
    keys |= {f"stages[{i}]" for i in range(len(old), len(new))}
    # A run that was never extended has one total.
    totals = [list(each) for each in before.totals] or [[0, sum(old)]]
    extended = [*(each for each in totals if each[0] < before.step), [before.step, sum(new)]]
    words = _words(config.schedule, totals, before.step, sum(new))
    return Extension(keys=frozenset(keys), totals=extended, words=words)


def _words(schedule: Schedule, totals: Sequence[Sequence[int]], step: int, total: int) -> str:
    """What the schedule does at the seam."""
    ends = [first for first, _ in totals[1:]] + [step]
    same = all(
        schedule.factor(i, was) == schedule.factor(i, total)
        for (first, was), end in zip(totals, ends, strict=True)
        for i in range(first, min(end, step))
    )
    if same or not step:
        return ""
    was = totals[-1][1]
    last, first = schedule.factor(step - 1, was), schedule.factor(step, total)
    return (
        f"goes on to {total:,} steps, and was begun with {totals[0][1]:,}. What the schedule ({schedule.kind}) does "
        f"depends on the end, so the steps so far were those of a run of {was:,}; from step {step + 1:,} on they are those "
        f"of a run of {total:,}: the factor on the learning rates goes from {last:.3g} to {first:.3g}. It will not end as "
        f'{total:,} steps from the start would. A run can be extended exactly by schedule.kind = "constant" with a '
        'warmup in steps, and by "wsd" with spans in steps before it goes down'
    )
