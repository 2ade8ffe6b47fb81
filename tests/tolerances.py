"""Every tolerance of the suite, with its reason. A difference is max|a - b| / max|b|.

Loosening a row needs an ADR; a test that can't keep its row has found something.
"""

from typing import NamedTuple

import torch


class Tolerance(NamedTuple):
    limit: float
    reason: str


TABLE = {
    "same": Tolerance(0.0, "the same operations in the same order"),
    "formula": Tolerance(1e-12, "one formula against another way to write it, fp64: a few hundred roundings of 2e-16"),
    "promise": Tolerance(1e-9, "cached, chunked, padded and packed against whole, fp64: the promise to users"),
    "causality": Tolerance(1e-12, "a later token moves nothing before it, fp64: only the order of sums may change"),
    "kernel": Tolerance(1e-10, "a kernel against the reference, value and gradient, fp64: other order of sums"),
    "single": Tolerance(2e-6, "fp32 against fp64 rounded to fp32: a few hundred roundings of 6e-8 in short sums"),
    "reversible": Tolerance(
        1e-5, "gradients of 24 reversible pre-norm layers, fp32: inputs recomputed by 48 subtractions, each 6e-8 off"
    ),
    "fused": Tolerance(
        1e-5, "a fused fp32 kernel against fp64, value and gradient: 6e-8 over sums of a thousand products"
    ),
    "table-gradient": Tolerance(
        6e-5,
        "the gradient of an entry that many pairs look up, fp32 atomic adds in any order against fp64, relative to the sum "
        "of magnitudes: n roundings of 6e-8 add up like a random walk, sqrt(n) 6e-8 for the n = 1e6 pairs of 1000 tokens",
    ),
    "oracle": Tolerance(1e-9, "against transformers or torch, lifted to fp64"),
    "fp32-oracle": Tolerance(
        2e-5, "against transformers as it is loaded, fp32: a few layers of sums in another order, weights of 0.25 to 1"
    ),
    "fp32-lsh-oracle": Tolerance(
        2e-3,
        "against transformers' LSH as it is loaded, fp32: it masks by -1e5, beside which fp32 numbers are 0.008 apart",
    ),
    "spread": Tolerance(
        1e-5, "loss, gradient norm and held-out loss of several processes against one, fp32: sums in another order"
    ),
    "elsewhere": Tolerance(
        2e-6, "a run of an earlier version gone on with for a few steps, fp32: another processor sums in another order"
    ),
    "bf16": Tolerance(2**-8, "computed in fp32 or better, then rounded once to the 8 bits of bf16: one of the last"),
    "bf16-pair": Tolerance(
        2**-7, "two sums in other orders, each rounded to the 8 bits of bf16: one may be the next number, 2^-7 away"
    ),
    "harness": Tolerance(
        1e-4, "nats of a whole text, fp32, against another program: sums of hundreds of log-probabilities, absolute"
    ),
    "memory": Tolerance(
        0.15, "memory of a step, estimated from shapes against counted: buffers of an operator are not known in advance"
    ),
    "rounding": Tolerance(
        0.0, "bf16 logits against transformers: the same roundings in the same order, or it is another order"
    ),
}


def difference(a: torch.Tensor, b: torch.Tensor) -> float:
    """max|a - b| / max|b|; inf if either is not finite."""
    a, b = a.detach().double(), b.detach().double()
    assert a.shape == b.shape, f"{tuple(a.shape)} against {tuple(b.shape)}"
    if not (a.isfinite().all() and b.isfinite().all()):
        return float("inf")
    if a.numel() == 0:
        return 0.0
    return float((a - b).abs().max() / b.abs().max().clamp(min=1e-300))


def assert_close(row: str, a: torch.Tensor, b: torch.Tensor) -> None:
    """Fail with the figure if a and b differ by more than the row allows."""
    found = difference(a, b) if not torch.equal(a, b) else 0.0
    limit, reason = TABLE[row]
    assert found <= limit, f"difference {found:.3g} is above {limit:g} ({row}: {reason})"


def assert_sum_close(row: str, a: torch.Tensor, b: torch.Tensor, magnitudes: torch.Tensor) -> None:
    """The same for sums: each number's difference is relative to the sum of the magnitudes that it was added up from."""
    assert a.shape == b.shape == magnitudes.shape, f"{tuple(a.shape)}, {tuple(b.shape)}, {tuple(magnitudes.shape)}"
    assert (magnitudes >= 0.999 * b.abs()).all(), "these are not the magnitudes of this sum"
    found = float(((a.double() - b.double()).abs() / magnitudes.double().clamp(min=1e-300)).max())
    limit, reason = TABLE[row]
    assert found <= limit, f"difference {found:.3g} of the magnitudes is above {limit:g} ({row}: {reason})"
