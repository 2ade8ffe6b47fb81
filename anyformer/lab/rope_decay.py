"""RoPE's long-distance decay in closed form (Su et al. 2021, section 3.4.3): how the bound on q.k falls with the distance."""

from collections.abc import Sequence

import numpy as np


def relative_bound(distances: Sequence[int], *, head_dim: int, theta: float = 10_000.0) -> list[float]:
    """Mean of |S_i| over i = 1 ... d/2, with S_i the sum of exp(1j m theta_j) over the first i pairs, as a share of m = 0."""
    pairs = head_dim // 2
    angles_N = theta ** (-2.0 * np.arange(pairs) / head_dim)
    turned_MN = np.exp(1j * np.asarray(distances, dtype=np.float64)[:, None] * angles_N)
    sums_MN = np.abs(np.cumsum(turned_MN, axis=1))
    return [float(value) for value in sums_MN.mean(1) / np.arange(1, pairs + 1).mean()]
