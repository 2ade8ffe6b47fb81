"""What belongs to the whole process and no call may leave changed: generators, defaults, threads, modes."""

import os
import random
import signal
import threading
import time
import warnings
from typing import Any

import numpy as np
import torch

THEIRS = ("CUDA_", "TRITON_", "TORCHINDUCTOR_", "_TORCHINDUCTOR_", "TORCH_")
GLOBAL_HOOKS = (
    "_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks", "_global_backward_pre_hooks",
    "_global_module_registration_hooks", "_global_parameter_registration_hooks", "_global_buffer_registration_hooks",
)  # fmt: skip


def surroundings() -> dict[str, Any]:
    """All of it, by name; two of these are equal where nothing has changed."""
    numpy_state = np.random.get_state()
    found: dict[str, Any] = {
        "torch's generator": torch.get_rng_state().numpy().tobytes(),
        "python's generator": random.getstate(),
        "numpy's generator": (numpy_state[1].tobytes(), *numpy_state[2:]),  # type: ignore[union-attr]
        "the default dtype": torch.get_default_dtype(),
        "the default device": str(torch.get_default_device()),
        "torch's threads": torch.get_num_threads(),
        "gradients enabled": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "deterministic algorithms": (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
            torch.utils.deterministic.fill_uninitialized_memory,
        ),
        "precision of products": torch.get_float32_matmul_precision(),
        "autocast": tuple(
            (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda")
        ),
        "autocast's cache": torch.is_autocast_cache_enabled(),
        "attention backends": (
            torch.backends.cuda.flash_sdp_enabled(), torch.backends.cuda.math_sdp_enabled(),
            torch.backends.cuda.mem_efficient_sdp_enabled(), torch.backends.cuda.cudnn_sdp_enabled(),
        ),
        "cudnn": (torch.backends.cudnn.enabled, torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic),
        "mkldnn": torch.backends.mkldnn.enabled,
        "anomaly detection": torch.is_anomaly_enabled(),
        "hooks on all modules": tuple(len(getattr(torch.nn.modules.module, name)) for name in GLOBAL_HOOKS),
        "function modes": len(torch.overrides._get_current_function_mode_stack()),
        "dispatch modes": torch._C._len_torch_dispatch_stack(),
        "warning filters": tuple(warnings.filters),
        "the working directory": os.getcwd(),
        # What CUDA and the compilers of kernels note there when they are first used is theirs.
        "the environment": {name: value for name, value in os.environ.items() if not name.startswith(THEIRS)},
        "the signal handler": signal.getsignal(signal.SIGINT),
    }  # fmt: skip
    if torch.cuda.is_initialized():
        found["the device's generator"] = torch.cuda.get_rng_state().numpy().tobytes()
        found["tf32"] = (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32)
    return found


def threads() -> set[threading.Thread]:
    """Python's threads that are alive, but for the one that watches other libraries' progress bars."""
    alive = (thread for thread in threading.enumerate() if type(thread).__name__ != "TMonitor")
    # Inductor's own, which stay for the next kernel.
    return {thread for thread in alive if not thread.name.startswith(("InductorSubproc", "subproc_worker"))}


def staying(some: set[threading.Thread], patience: float = 10.0) -> list[str]:
    """Those of these threads that do not end. Some libraries tell a pool to end and do not wait for it (transformers, when
    it has filled a model), so each is given a while.
    """
    end = time.monotonic() + patience
    for thread in some:
        if thread is not threading.current_thread():
            thread.join(max(0.0, end - time.monotonic()))
    return sorted(f"{thread.name} ({thread.ident})" for thread in some if thread.is_alive())
