"""Machines, as data: how fast they compute and how fast they read, which decides what sets the pace of a model."""

from __future__ import annotations

from dataclasses import dataclass

from anyformer.errors import InputError, nearest


@dataclass(frozen=True, kw_only=True)
class Machine:
    """An accelerator in bf16."""

    name: str
    flops: float
    """FLOP/s of dense matrix products."""
    bandwidth: float
    """Bytes/s to and from its memory."""
    source: str

    @property
    def balance(self) -> float:
        """FLOP/byte at which arithmetic and memory take the same time."""
        return self.flops / self.bandwidth

    def bound(self, intensity: float) -> str:
        """What sets the pace of work that does so many FLOPs for each byte."""
        return "compute-bound" if intensity >= self.balance else "memory-bound"


MACHINES = {
    machine.name: machine
    for machine in (
        Machine(name="h200", flops=775e12, bandwidth=4.1e12, source="measured on large products and copies"),
        Machine(name="h100", flops=989e12, bandwidth=3.35e12, source="data sheet, SXM"),
        Machine(name="a100", flops=312e12, bandwidth=2.04e12, source="data sheet, 80 GB SXM"),
    )
}
USUAL = "h200"


def machine(name: str) -> Machine:
    """The machine of a name."""
    if name not in MACHINES:
        raise InputError(f"machine {name!r} is unknown{nearest(name, MACHINES)}")
    return MACHINES[name]


def peak_of(device: str, dtype: str) -> float | None:
    """FLOP/s at best of a device by what its driver calls it; None where we don't know. The table is of bfloat16."""
    if dtype != "bfloat16":
        return None
    words = device.lower().replace("-", " ").split()
    return next((found.flops for name, found in MACHINES.items() if name in words), None)
