"""Launches of Triton kernels: where they can run, and one thread at a time, since a first launch compiles its kernel."""

import threading
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch

LOCK = threading.RLock()
"""While it compiles, Triton changes the process's warning filters (`warnings.catch_warnings`, at every node of a kernel's
syntax tree). Of two threads that do so at once each puts back what the other had set, and the filters stay changed.
"""


@cache
def has_triton() -> bool:
    """Whether Triton is installed; it comes with torch for CUDA on Linux."""
    return find_spec("triton") is not None


@cache
def capability(device: torch.device) -> int:
    """The major compute capability of a CUDA device that Triton can serve; 0 for every other device."""
    if device.type != "cuda" or torch.version.cuda is None or not has_triton():
        return 0
    return torch.cuda.get_device_capability(device)[0]


def pdl_options(device: torch.device) -> dict[str, bool]:
    """How a kernel is launched that waits for the one before it itself, so that it may start before that has ended
    (programmatic dependent launch); empty where a device, or Triton's interpreter, knows no such option.
    """
    return {"launch_pdl": True} if capability(device) >= 9 else {}


class one_at_a_time:
    """A kernel that is launched as it always is, `kernel[grid](...)`, but by one thread at a time.

    A decorator above `triton.jit`, for kernels that the host launches; what they call stays plain, as Triton looks into it.
    """

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel

    def __getitem__(self, grid: Any) -> Any:
        launch = self.kernel[grid]

        def one(*args: Any, **named: Any) -> Any:
            with LOCK:
                return launch(*args, **named)

        return one
