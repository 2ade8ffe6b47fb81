"""Launches of Triton kernels from several threads, with a kernel that compiles as Triton's do."""

import importlib.util
import re
import threading
import warnings
from pathlib import Path

import pytest

import anyformer
from anyformer.kernels.triton_launch import one_at_a_time

KERNELS = Path(anyformer.__file__).parent / "kernels"


class Kernel:
    """One whose first launches compile: they change the warning filters, and who came first leaves first."""

    def __init__(self):
        self.inside, self.both, self.first_left, self.launched = 0, threading.Event(), threading.Event(), []

    def __getitem__(self, grid):
        def launch(*args, **named):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)
                self.inside += 1
                if self.inside == 2:
                    self.both.set()
                    self.first_left.wait(10)
                # Nobody else comes while this one is in here, unless two may.
                self.both.wait(0.3)
                self.launched.append((grid, args, named))
            self.inside -= 1
            self.first_left.set()

        return launch


def launched_by_two(kernel):
    threads = [threading.Thread(target=lambda i=i: kernel[(i,)](i, WARPS=4)) for i in range(2)]
    before = list(warnings.filters)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return warnings.filters == before
    finally:
        warnings.filters[:] = before
        warnings._filters_mutated()


def test_triton_launches_of_two_threads_leave_the_warning_filters():
    kernel = Kernel()
    assert launched_by_two(one_at_a_time(kernel))
    assert sorted(kernel.launched) == [((0,), (0,), {"WARPS": 4}), ((1,), (1,), {"WARPS": 4})]


def test_triton_kernels_that_the_host_launches_are_launched_one_at_a_time():
    """In the source: where Triton is not installed its modules can't be imported."""
    defined, launched = {}, set()
    for file in KERNELS.rglob("*.py"):
        text = file.read_text()
        for above, name in re.findall(
            r"(@one_at_a_time\n)?@triton\.jit(?:\((?:[^()]|\([^()]*\))*\))?\ndef (\w+)", text
        ):
            defined[name] = bool(above)
        launched |= set(re.findall(r"(\w+)\[\(.*\)\]\($", text, re.MULTILINE))
        launched |= set(re.findall(r"triton_kernels\.(\w+)$", text, re.MULTILINE))
    hosts = launched & defined.keys()
    assert len(hosts) >= 8
    assert {name for name, one in defined.items() if one} == hosts


@pytest.mark.cuda
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_triton_first_launches_of_two_threads_leave_the_warning_filters():
    import torch

    from anyformer.kernels.small_gemm.launch import product

    x, weight = torch.randn(1, 72, device="cuda"), torch.randn(56, 72, device="cuda")
    found = [None, None]

    def work(i):
        # Of two sizes, so that each is compiled.
        found[i] = product(x[:, : 72 - 8 * i].contiguous(), weight[:, : 72 - 8 * i].contiguous(), None)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    before = list(warnings.filters)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert warnings.filters == before
    assert all(each is not None for each in found)
