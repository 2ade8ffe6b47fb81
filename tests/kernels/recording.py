"""A device without CUDA on which recordings fail as they do on one: what torch leaves behind is left behind here too."""

import contextlib
from dataclasses import dataclass, field

import torch

FAULTS = ("warm", "begin", "work", "invalid", "end", "interrupt")
"""Where a recording fails: the work itself, when it is only tried out; the capture when it begins, by an exception of the
work, by something that is forbidden meanwhile, when it ends; or somebody presses Ctrl-C."""


@dataclass
class State:
    """The state of a random generator, which a failed capture leaves unusable."""

    seed: int = 0
    capturing: bool = False


class Generator:
    """A random generator, which may share its state with another."""

    def __init__(self, state=None):
        self.state = State() if state is None else state

    def graphsafe_get_state(self):
        return Generator(self.state)

    def graphsafe_set_state(self, other):
        self.state = other.state

    def manual_seed(self, seed):
        self.state.seed = seed


@dataclass
class FakeDevice:
    """Fails in the `nth` recording at one of FAULTS; None: never."""

    fault: str | None = None
    nth: int = 1
    memory: str = "pool"
    stream: str = "main"
    open: int = 0
    """Captures that the allocator believes to be under way."""
    held: int = 0
    """How often the pool is held."""
    begun: int = 0
    invalid: bool = False
    random: Generator = field(default_factory=Generator)

    def settle(self):
        assert self.open == 0
        assert self.stream == "main"

    @contextlib.contextmanager
    def aside(self):
        before, self.stream = self.stream, "side"
        try:
            if self.fault == "warm" and not self.begun:
                raise RuntimeError("CUDA error: out of memory\nmore lines")
            yield
        finally:
            self.stream = before

    def join(self, *, begin):
        assert self.stream == "main"

    def forked(self):
        return torch.random.fork_rng([])

    def default(self):
        return self.random

    def generator(self):
        return Generator()

    def graph(self):
        return FakeGraph(self)

    def close(self):
        if not self.open:
            return False
        self.open, self.held = self.open - 1, self.held - 1
        return True

    def failing(self, work):
        """Work that fails in the middle, if that is the fault."""

        def both():
            work()
            if self.open:
                for place in ("work", "invalid", "interrupt"):
                    self.fail(place)

        return both

    def fail(self, place):
        """Fail if this is the place, and ruin what such a failure ruins."""
        if self.fault == place and self.begun == self.nth:
            self.invalid = place in ("begin", "invalid", "end")
            if place == "interrupt":
                raise KeyboardInterrupt
            raise RuntimeError(f"CUDA error: operation not permitted when stream is capturing ({place})\nmore lines")


class FakeGraph:
    """A graph that holds nothing."""

    def __init__(self, device):
        self.device, self.ended = device, False

    def capture_begin(self, pool, capture_error_mode):
        device = self.device
        assert device.stream == "side"
        assert capture_error_mode == "thread_local"
        device.begun += 1
        self.state = device.random.state
        self.state.capturing = True
        device.open, device.held = device.open + 1, device.held + 1
        device.fail("begin")

    def capture_end(self):
        device = self.device
        assert device.stream == "side"
        device.fail("end")
        if device.invalid:
            # The generator stays as it is, and the pool open: torch does no more after this.
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")
        self.state.capturing, device.open, self.ended = False, device.open - 1, True

    def reset(self):
        if self.ended:
            self.ended, self.device.held = False, self.device.held - 1

    def __del__(self):
        self.reset()

    def replay(self):
        if self.state.capturing:
            raise RuntimeError("Offset increment outside graph capture encountered unexpectedly.")


def untouched(device):
    """Nothing of an attempt is left: stream, pool and generator are what they were."""
    return device.stream == "main" and device.open == 0 and not device.random.state.capturing
