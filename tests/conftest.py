"""Settings of every test: one thread each (workers share the cores), and nothing uninitialised goes unnoticed."""

import signal

import pytest
import torch

torch.set_num_threads(1)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Shells start background jobs so, and children would inherit it: Ctrl-C has to mean something in every test.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def poisoned_memory():
    """torch.empty gives NaN, so that a result that reads it can't pass."""
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(False)
