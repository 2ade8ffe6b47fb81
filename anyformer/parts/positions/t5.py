"""T5's relative bias: one learned number for each head and bucket of distances (Raffel et al. 2019, section 2.1)."""

import bisect
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from anyformer.specs.axes import Dims, Params, ParamSpec, Position, Problem, QKPositions, ScoreBias, Tensor


def thresholds(buckets: int, max_distance: int) -> list[int]:
    """The distances at which bucket 1, 2, ... begins: each distance at first, then logarithmically wider.

    Some distances lie exactly between two buckets (4, 8, 16 ... of 9 buckets up to 128), and rounding decides. The
    published code divides logarithms of fp32, whatever the model's dtype, and so does this.
    """
    import numpy as np

    exact = buckets // 2
    distance = np.arange(exact, max_distance + 1, dtype=np.float32)
    width = np.float32(math.log(max_distance / exact))
    share = np.log(distance / np.float32(exact)) / width * np.float32(buckets - exact)
    # Where a bucket begins. The last distance of all is in the last bucket even if it was rounded out of it.
    later = np.minimum(share.astype(np.int64), buckets - exact - 1).tolist()
    later[-1] = buckets - exact - 1
    starts = [exact + bisect.bisect_left(later, bucket) for bucket in range(1, buckets - exact)]
    return [*range(1, exact + 1), *starts]


@dataclass(frozen=True, kw_only=True)
class T5Bias(Position, kind="t5"):
    """A table (buckets, heads) added to the scores."""

    title = "T5 bias"
    relative = True
    buckets: int = 32
    max_distance: int = 128
    bidirectional: bool | None = None
    """Half of the buckets for keys after the query; unset: yes in an encoder, no in a decoder."""
    shared: bool = True
    """One table for all layers (T5), or one in each (UMT5)."""

    @property
    def reach(self) -> int:
        return self.max_distance

    def problems(self) -> Iterator[Problem]:
        # Unset, the direction is the stack's: only what no direction allows is known to be wrong here.
        both = self.bidirectional is True
        if self._per_side(both) < 2:
            yield "buckets", f"{self.buckets} leaves less than 2 for a direction; pick at least {4 if both else 2}"
        else:
            yield from self._too_near(self.bidirectional is not False)

    def check(self, dims: Dims) -> Iterator[Problem]:
        both = self._both_ways(dims)
        if self._per_side(both) < 2:
            yield "buckets", f"{self.buckets} are {self._per_side(both)} for each direction here; pick at least 4"
        else:
            yield from self._too_near(both)

    def _per_side(self, both: bool) -> int:
        return self.buckets // 2 if both else self.buckets

    def _too_near(self, both: bool) -> Iterator[Problem]:
        exact = self._per_side(both) // 2
        if self.max_distance <= exact:
            why = f"{self.max_distance} is not above {exact}, up to where each distance has its own bucket"
            yield "max_distance", why

    def equation(self) -> str:
        return f"s_ij = scale q_i . k_j + table[bucket(i - j), h]; {self.buckets} buckets, the last from {self.max_distance}"

    def _both_ways(self, dims: Dims) -> bool:
        return not dims.causal if self.bidirectional is None else self.bidirectional

    def weights(self, dims: Dims) -> dict[str, ParamSpec]:
        return {"table": ParamSpec(shape=(self.buckets, dims.heads), role="relative")}

    def constants(self, dims: Dims) -> dict[str, Sequence[float]]:
        both = self._both_ways(dims)
        per_side = self._per_side(both)
        return {"start": thresholds(per_side, self.max_distance), "after": [per_side if both else 0]}

    def scores(self, own: Params, q_BTHK: Tensor, k_BSGK: Tensor, where: QKPositions, scale: float) -> ScoreBias:
        start, after = own["start"].long(), own["after"].long()

        def bucket(gap: Tensor) -> Tensor:
            import torch

            # One-sided tables put every key after the query into bucket 0.
            distance = torch.where(after > 0, gap.abs(), (-gap).clamp(min=0))
            return torch.bucketize(distance.contiguous(), start, right=True) + torch.where(gap > 0, after, 0)

        return ScoreBias(table_BHTN=own["table"].T[None, :, None], pick=bucket, reach=self.reach)
