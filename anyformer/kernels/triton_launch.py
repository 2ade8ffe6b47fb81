"""Launches of Triton kernels, one thread at a time: Triton compiles a kernel in the launch that first needs it."""

from __future__ import annotations

import threading
from typing import Any

LOCK = threading.RLock()
"""While it compiles, Triton changes the process's warning filters (`warnings.catch_warnings`, at every node of a kernel's
syntax tree). Of two threads that do so at once each puts back what the other had set, and the filters stay changed.
"""


class OneAtATime:
    """A kernel that is launched as it always is, `kernel[grid](...)`, but by one thread at a time.

    For kernels that the host launches; what they call stays plain, as Triton looks into it.
    """

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel

    def __getitem__(self, grid: Any) -> Any:
        launch = self.kernel[grid]

        def one(*args: Any, **named: Any) -> Any:
            with LOCK:
                return launch(*args, **named)

        return one


def one_at_a_time(kernel: Any) -> Any:
    """As a decorator above `triton.jit`."""
    return OneAtATime(kernel)
