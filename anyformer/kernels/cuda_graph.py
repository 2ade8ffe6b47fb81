"""Recording a CUDA graph so that a failure leaves everything as it was, and has one error that says why.

A recording that torch gives up leaves three things behind: the default random generator, which believes that it is still
being captured and refuses every draw from then on; the current stream, which stays the one of the capture; and the
allocator, which keeps the graph's pool open. So a recording draws from a random state of its own, which a failure may
ruin, its stream is left whatever happens, and its pool is closed by hand.

What makes a recording fail that went well before is mostly the rest of the process: Python's collector, which frees
events and graphs of others in its midst (torch has stopped to collect before a capture), or another thread that asks the
device for memory. The collector therefore rests meanwhile, and only this thread is held to the rules of a capture.

What is recorded has fixed shapes and asks nothing of the device: code that would look at values asks `fixed_shapes` first.
A replay reads the memory that its recording read, so what a cache gave to a recording lives as long as the graph (`hold`).
"""

import functools
import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, TypeVar

import torch

from anyformer.errors import CapabilityError

Value = TypeVar("Value")
_now = threading.local()


def fixed_shapes(device: str) -> bool:
    """Whether shapes may not depend on values and values may not be looked at: code is traced, or what this thread does on
    a device of this kind is being recorded, or tried out for a recording.
    """
    if torch.compiler.is_compiling() or getattr(_now, "held", None) is not None:
        return True
    return device == "cuda" and torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def hold(value: Value) -> Value:
    """The value itself. If a recording is under way, its graph keeps the value alive: replays read its memory."""
    held: list[Any] | None = None if torch.compiler.is_compiling() else getattr(_now, "held", None)
    if held is not None:
        held.append(value)
    return value


@contextmanager
def recording() -> Iterator[list[Any]]:
    """What is held meanwhile."""
    before, _now.held = getattr(_now, "held", None), []
    try:
        yield _now.held
    finally:
        _now.held = before


class CaptureError(CapabilityError):
    """Work that could not be recorded. Nothing of the attempt is left, and the work can be done without a graph."""


ONE = threading.RLock()
"""One thread records at a time: all recordings of a device share a stream."""


@functools.cache
def _stream(index: int) -> torch.cuda.Stream:
    """The stream of a device's recordings. Libraries keep a workspace for every stream that they have seen."""
    return torch.cuda.Stream(torch.device("cuda", index))


class CudaDevice:
    """What a recording asks of a CUDA device, in one place, so that a test can let each of it fail."""

    def __init__(self, device: torch.device) -> None:
        self.device = torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
        self.stream = _stream(self.device.index)
        self.memory: Any = torch.cuda.graph_pool_handle()
        """The pool that graphs of one recorder share."""

    def settle(self) -> None:
        """Wait for all work, and give back memory that nobody holds."""
        torch.cuda.synchronize(self.device)
        torch.cuda.empty_cache()

    def aside(self) -> AbstractContextManager[object]:
        """For a while another stream than the default one is the current one."""
        return torch.cuda.stream(self.stream)

    def join(self, *, begin: bool) -> None:
        """That stream waits for the current one (`begin`), or the current one for it."""
        current = torch.cuda.current_stream(self.device)
        first, then = (current, self.stream) if begin else (self.stream, current)
        then.wait_stream(first)

    def forked(self) -> AbstractContextManager[object]:
        """Random states of host and device are afterwards what they were."""
        return torch.random.fork_rng([self.device])

    def default(self) -> torch.Generator:
        """The device's default random generator."""
        return torch.cuda.default_generators[self.device.index]

    def generator(self) -> torch.Generator:
        """A random generator of the same kind."""
        return torch.Generator(self.device)

    def graph(self) -> Any:
        """An empty graph."""
        return torch.cuda.CUDAGraph()

    def close(self) -> bool:
        """Close the pool if it is still open for allocations, and let go of it; whether it was open."""
        # A capture that ended well has closed it, and torch then says that it is not open.
        native: Any = torch._C
        try:
            native._cuda_endAllocateToPool(self.device.index, self.memory)
        except RuntimeError:
            return False
        native._cuda_releasePool(self.device.index, self.memory)
        return True


class Graph:
    """Recorded work, and the random state that it draws from."""

    def __init__(self, graph: Any, state: Any, held: list[Any] | None = None) -> None:
        self._graph, self._state, self._held = graph, state, held

    def replay(self, seed: int | None = None) -> None:
        """Do the work again. What it draws is what the default generator would give after `manual_seed(seed)`."""
        if seed is not None:
            self._state.manual_seed(seed)
        self._graph.replay()


class Recorder:
    """Records work on one device; its graphs share their memory."""

    def __init__(self, device: torch.device | CudaDevice) -> None:
        self.on = CudaDevice(device) if isinstance(device, torch.device) else device

    def warm(self, work: Callable[[], object], times: int = 1) -> None:
        """Do the work on the recording's stream: kernels are compiled, and libraries take their memory there.

        No random state moves by it.
        """
        with ONE:
            self.on.join(begin=True)
            try:
                with self.on.forked(), self.on.aside(), recording():
                    for _ in range(times):
                        work()
            finally:
                self.on.join(begin=False)
            self.on.settle()

    def record(self, work: Callable[[], None]) -> Graph:
        """The work as a graph; CaptureError if it can't be one. Nothing is computed by it."""
        graph, state = self.on.graph(), self.on.generator()
        self.on.settle()
        with ONE, self.on.forked(), _undisturbed(self.on.default(), state), self.on.aside(), recording() as held:
            try:
                # Other threads may do what they want meanwhile.
                graph.capture_begin(pool=self.on.memory, capture_error_mode="thread_local")
                work()
                graph.capture_end()
            except BaseException:
                # The capture failed at any point. Each of these may find that there is nothing left to do.
                with suppress(RuntimeError):
                    graph.capture_end()
                self.on.close()
                with suppress(RuntimeError):
                    graph.reset()
                raise
        return Graph(graph, state, held)


@contextmanager
def attempt(what: str) -> Iterator[None]:
    """Whatever goes wrong in here is a CaptureError of one line; an interrupt stays one."""
    try:
        yield
    except Exception as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        if "legacy stream" in first:
            first += "; somebody holds what was computed from a parameter with gradients, a loss or a clone: detach it"
        raise CaptureError(f"{what} can't be recorded as a CUDA graph ({first})") from error


@contextmanager
def _undisturbed(default: Any, state: Any) -> Iterator[None]:
    """For a while Python's collector does nothing, and the default generator has another state.

    Its own is put back untouched, the very object: graphs that others recorded draw from it.
    """
    works, before = gc.isenabled(), default.graphsafe_get_state()
    try:
        gc.disable()
        default.graphsafe_set_state(state)
        yield
    finally:
        default.graphsafe_set_state(before)
        if works:
            gc.enable()
