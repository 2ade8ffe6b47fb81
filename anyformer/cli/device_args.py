"""What measuring commands share: the device that they measure on, and times for people."""

from __future__ import annotations

from anyformer.errors import InputError

DTYPES = ("float64", "float32", "bfloat16", "float16")
KINDS = ("cpu", "cuda")


def device_of(given: str | None) -> str:
    """The device that was asked for, if it is there; else cuda where there is one."""
    import torch

    device = given or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        kind = torch.device(device).type
    except RuntimeError:
        kind = ""
    if kind not in KINDS:
        raise InputError(f"--device: {device!r} is neither cpu nor cuda (or cuda:1 ...)")
    if kind == "cuda" and not torch.cuda.is_available():
        raise InputError("--device: torch finds no CUDA device here; leave it out to measure the CPU")
    if kind == "cuda" and (torch.device(device).index or 0) >= torch.cuda.device_count():
        raise InputError(f"--device: {device!r} is not there; the last one is cuda:{torch.cuda.device_count() - 1}")
    return device


def clock(seconds: float) -> str:
    """A time for people: 12.3 ms."""
    for unit, name in ((1.0, "s"), (1e-3, "ms")):
        if float(f"{seconds / unit:.3g}") >= 1:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds * 1e6:.3g} us"
