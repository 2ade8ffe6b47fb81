"""Recordings that fail: nothing of them is left, on a device that behaves like one, and on CUDA."""

import gc

import pytest
import torch

from anyformer.kernels.cuda_graph import CaptureError, Recorder, attempt
from tests.kernels.recording import FAULTS, FakeDevice, untouched

needs_cuda = pytest.mark.cuda


def tried(device, kept, times=1):
    recorder = Recorder(device)
    recorder.warm(lambda: None)
    for _ in range(times):
        kept.append(recorder.record(device.failing(lambda: torch.rand(()))))


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("fault", FAULTS)
def test_failed_recording_leaves_stream_pool_generators_and_collector_as_they_were(fault, nth):
    device, kept = FakeDevice(fault, nth), []
    state, host = device.random.state, torch.random.get_rng_state()
    with pytest.raises(KeyboardInterrupt if fault == "interrupt" else RuntimeError):
        tried(device, kept, times=2)
    assert untouched(device)
    assert device.random.state is state, "graphs of others draw from this very state"
    assert torch.equal(torch.random.get_rng_state(), host)
    assert gc.isenabled()
    # What was recorded before still holds the pool, and what failed does not.
    assert device.held == len(kept) == (nth - 1 if fault != "warm" else 0)
    device.fault, device.invalid = None, False
    tried(device, kept)
    for graph in kept:
        graph.replay(seed=3)
    assert untouched(device)


def test_graph_recorded_before_a_failure_draws_on():
    device = FakeDevice("invalid", 2)
    recorder = Recorder(device)
    first = recorder.record(lambda: None)
    with pytest.raises(RuntimeError, match="not permitted"):
        recorder.record(device.failing(lambda: None))
    first.replay(seed=5)


def test_recording_keeps_the_collector_off_and_leaves_it_off_if_it_was():
    seen = []
    device = FakeDevice()
    Recorder(device).record(lambda: seen.append(gc.isenabled()))
    gc.disable()
    try:
        Recorder(device).record(lambda: seen.append(gc.isenabled()))
        assert not gc.isenabled()
    finally:
        gc.enable()
    assert seen == [False, False]


def test_attempt_says_one_line_and_lets_an_interrupt_through():
    with pytest.raises(CaptureError, match=r"^a step can't be recorded as a CUDA graph \(first\)$"), attempt("a step"):
        raise ValueError("first\nsecond")
    with pytest.raises(KeyboardInterrupt), attempt("a step"):
        raise KeyboardInterrupt


def item(x, stream):
    """What waits for the device."""
    return x.sum().item()


def no_memory(x, stream):
    """More than there is."""
    return torch.empty(2**50, device="cuda", dtype=torch.uint8)


def broken(x, stream):
    """An error that has nothing to do with the device."""
    raise ZeroDivisionError("in the middle")


def strange_generator(x, stream):
    """A generator that the graph does not know."""
    return torch.rand(4, device="cuda", generator=torch.Generator("cuda"))


def unjoined(x, stream):
    """Another stream that is never waited for."""
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        x.add(1)


@needs_cuda
@pytest.mark.parametrize("fault", [item, no_memory, broken, strange_generator, unjoined])
def test_failed_recording_on_cuda_leaves_draws_streams_and_other_graphs_as_they_were(fault):
    x, other = torch.ones(64, 64, device="cuda"), torch.cuda.Stream()

    def draws():
        return torch.rand(8, device="cuda"), torch.nn.functional.dropout(x, 0.5), torch.randn(3)

    # A graph of somebody else, which draws from the default generator.
    before, held = torch.cuda.CUDAGraph(), torch.empty(8, device="cuda")
    with torch.cuda.graph(before):
        held.copy_(torch.rand(8, device="cuda"))

    torch.manual_seed(7)
    wanted = [t.clone() for t in draws()]
    before.replay()
    wanted.append(held.clone())

    torch.manual_seed(7)
    state = torch.cuda.get_rng_state()
    recorder = Recorder(torch.device("cuda"))
    out = torch.empty_like(x)

    def work():
        out.copy_(torch.nn.functional.dropout(x @ x, 0.5))
        if torch.cuda.is_current_stream_capturing():
            fault(x, other)

    recorder.warm(work, 2)
    with pytest.raises((RuntimeError, ZeroDivisionError)):
        recorder.record(work)
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    assert not torch.cuda.is_current_stream_capturing()
    assert torch.equal(torch.cuda.get_rng_state(), state)
    found = [t.clone() for t in draws()]
    before.replay()
    found.append(held.clone())
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
    torch.cuda.synchronize()
    torch.cuda.empty_cache()

    # The next capture, ours or torch's own, goes well, and draws what the default generator would.
    def well():
        out.copy_(torch.nn.functional.dropout(x @ x, 0.5))

    graph = Recorder(torch.device("cuda")).record(well)
    graph.replay(seed=11)
    replayed = out.clone()
    torch.manual_seed(11)
    well()
    assert torch.equal(out, replayed)
    again = torch.cuda.CUDAGraph()
    with torch.cuda.graph(again):
        well()
    torch.manual_seed(11)
    again.replay()
    assert torch.equal(out, replayed)


@needs_cuda
def test_recording_on_cuda_survives_garbage_and_threads_that_take_memory():
    import threading

    stop = threading.Event()

    def takes():
        while not stop.is_set():
            torch.empty(2**20, device="cuda").pow_(2)
            torch.empty(2**16, pin_memory=True)

    thread = threading.Thread(target=takes)
    thread.start()
    try:
        x = torch.ones(256, 256, device="cuda")
        for _ in range(5):
            # A cycle that holds a graph and an event.
            graph, event = torch.cuda.CUDAGraph(), torch.cuda.Event()
            event.record()
            cycle = {"graph": graph, "event": event}
            cycle["self"] = cycle
            del graph, event, cycle
            recorder = Recorder(torch.device("cuda"))
            recorder.warm(lambda: x @ x)
            recorder.record(lambda: [[[]] for _ in range(10_000)] and x @ x).replay()
    finally:
        stop.set()
        thread.join()
    torch.cuda.synchronize()
