"""One walk: actions drawn by its seed, everything looked at after each; and the shortest walk that still fails."""

import os
import random
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch

from tests.walks import learning, reading
from tests.walks.actions import ACTIONS, drawn
from tests.walks.surroundings import staying, surroundings, threads
from tests.walks.world import Picture, Settings, Violation, World

STEPS = 30
REPLAYS = 60
"""So many shorter walks are tried at most."""
Taken = tuple[str, int]
"""The name of an action, and the number of the step whose arguments it has."""

if not (learning and reading and ACTIONS):
    raise RuntimeError("there are no actions")


@dataclass
class Outcome:
    """What a walk came to."""

    seed: int
    number: int
    """Of its spec."""
    taken: list[Taken] = field(default_factory=list)
    violations: list[Violation] = field(default_factory=list)
    trace: str = ""
    """Where an error came from that nobody expected."""

    @property
    def failed(self) -> bool:
        return bool(self.violations)

    @property
    def kinds(self) -> set[str]:
        return {violation.kind for violation in self.violations}

    def told(self) -> str:
        """What is wrong, and how to see it again."""
        last = self.taken[-1][0] if self.taken else "the beginning"
        lines = [f"walk {self.seed} (spec {self.number}): after {len(self.taken)} actions, at {last}:"]
        lines += [f"  {violation}" for violation in self.violations]
        if self.trace:
            lines.append(self.trace)
        again = ",".join(f"{name}:{step}" for name, step in self.taken)
        return "\n".join([*lines, f"  python -m tests.walks --only {self.seed} --actions {again}"])


def settle() -> None:
    """As under test: one thread, nothing uninitialised goes unnoticed."""
    # Read when CUDA's libraries start: without it their products differ from run to run.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True, warn_only=torch.cuda.is_available())
    torch.utils.deterministic.fill_uninitialized_memory = True


def some(seeds: list[int], settings: Settings, steps: int) -> list[Outcome]:
    """What one process does at a time."""
    settle()
    return [walk(seed, settings, steps=steps) for seed in seeds]


@contextmanager
def settled(seed: int) -> Iterator[None]:
    """Generators that belong to the walk, and none of its traces in those of the process."""
    numpy_state, python_state = np.random.get_state(), random.getstate()
    with torch.random.fork_rng([torch.cuda.current_device()] if torch.cuda.is_available() else []):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        try:
            yield
        finally:
            np.random.set_state(numpy_state)
            random.setstate(python_state)


def walk(seed: int, settings: Settings, *, steps: int = STEPS, taken: Sequence[Taken] | None = None) -> Outcome:
    """Walk until something is wrong, or to the end. `taken` are the actions to take instead of drawn ones."""
    with settled(seed), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        outcome = Outcome(seed, seed % settings.specs)
        world = World(seed, settings)
        try:
            for step in range(steps if taken is None else len(taken)):
                name, place = ("", step) if taken is None else taken[step]
                rng = random.Random(f"{seed} {place}")
                chosen = drawn(world, rng)
                if name:
                    chosen = ACTIONS[name]
                    if not chosen.when(world):
                        continue
                outcome.taken.append((chosen.name, place))
                outcome.violations, outcome.trace = acted(world, chosen.name, rng)
                if outcome.failed:
                    break
        finally:
            world.close()
    return outcome


def acted(world: World, name: str, rng: random.Random) -> tuple[list[Violation], str]:
    """Take an action, and look at everything."""
    chosen, ignored = ACTIONS[name], world.settings.ignored
    before, around, alive = Picture.of(world.model), surroundings(), threads()
    found: list[Violation] = []
    trace, draws_nothing = "", world.exact
    try:
        chosen.run(world, rng)
    except Violation as violation:
        found.append(violation)
    except Exception as error:
        found.append(Violation("raised", f"{type(error).__name__}: {error}"))
        trace = "".join(traceback.format_exception(error))
    now = surroundings()
    # A mixer that is not exact draws in every pass, as its paper has it.
    drawn_from = () if draws_nothing else ("torch's generator", "the device's generator")
    for what, value in around.items():
        if now[what] != value and what not in drawn_from:
            found.append(Violation("surroundings", f"{what} changed"))
    # The compiler keeps threads of its own.
    if not world.compiles and (left := staying(threads() - alive)):
        found.append(Violation("surroundings", f"threads were left behind: {', '.join(left)}"))
    try:
        found += world.check(before, chosen.changes)
    except Exception as error:
        found.append(Violation("raised", f"{type(error).__name__} while everything was looked at: {error}"))
        trace = trace or "".join(traceback.format_exception(error))
    found = [violation for violation in found if violation.kind not in ignored]
    if not found:
        try:
            wrong = world.forward(rng.randrange(1000))
        except Exception as error:
            wrong = Violation("forward", f"{type(error).__name__}: {error}")
            trace = "".join(traceback.format_exception(error))
        found += [wrong] if wrong is not None and wrong.kind not in ignored else []
    return found, trace


def shrunk(outcome: Outcome, settings: Settings) -> Outcome:
    """The same fault after fewer actions: each is left out in turn, and stays out if it is not needed."""
    best, tries, place = outcome, 0, 0
    while place < len(best.taken) - 1 and tries < REPLAYS:
        shorter = [*best.taken[:place], *best.taken[place + 1 :]]
        tries += 1
        found = walk(outcome.seed, settings, taken=shorter)
        if found.failed and found.kinds & outcome.kinds:
            best = found
        else:
            place += 1
    return best
