"""Settings of every test: one thread each (workers share the cores), and nothing uninitialised goes unnoticed."""

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def poisoned_memory():
    """torch.empty gives NaN, so that a result that reads it can't pass."""
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(False)
