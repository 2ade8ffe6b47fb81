"""Settings of every test: one thread each (workers share the cores), and nothing uninitialised goes unnoticed."""

import gc
import signal
import subprocess

import pytest
import torch

torch.set_num_threads(1)
gc.set_threshold(100_000, 20, 50)
QUICK = "quick"
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Shells start background jobs so, and children would inherit it: Ctrl-C has to mean something in every test.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_ignore_collect(collection_path, config):
    """With `-m quick`, files without such a test are not even imported."""
    if config.option.markexpr == QUICK and collection_path.suffix == ".py":
        text = collection_path.read_text(encoding="utf-8")
        return True if f"mark.{QUICK}" not in text and f"tests.{QUICK} import" not in text else None
    return None


def pytest_collection_modifyitems(items):
    """Skip what needs a CUDA device where there is none."""
    if torch.cuda.is_available():
        return
    for item in items:
        if any(mark.kwargs.get("required", True) for mark in item.iter_markers("cuda")):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def pytest_collection_finish():
    """Thousands of collected tests are no garbage: a collection of garbage need not look through them each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def poisoned_memory():
    """torch.empty gives NaN, so that a result that reads it can't pass."""
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(autouse=True)
def one_thread():
    """Workers share the cores: torch with more threads would slow down every test that comes after."""
    yield
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    assert threads == 1, f"the test left torch with {threads} threads"


@pytest.fixture
def launch():
    """Starts child processes, none of which outlives the test."""
    started: list[subprocess.Popen] = []

    def start(command, **how):
        started.append(subprocess.Popen(command, **how))
        return started[-1]

    yield start
    for process in started:
        with process:
            process.kill()
