"""T5's relative bias: one learned number for each head and bucket of distances (Raffel et al. 2019, section 2.1)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from anyformer.specs.axes import Dims, Position, Problem, ScoreTerms, Weight, Where

if TYPE_CHECKING:
    from torch import Tensor


def thresholds(buckets: int, max_distance: int) -> list[int]:
    """The distances at which bucket 1, 2, ... begins: each distance at first, then logarithmically wider."""
    exact = buckets // 2
    starts = list(range(1, exact + 1))

    def bucket_of(distance: int) -> int:
        share = math.log(distance / exact) / math.log(max_distance / exact)
        return exact + math.floor(share * (buckets - exact))

    for bucket in range(exact + 1, buckets):
        # Near the inverse of the formula; rounding may be off by one, so the formula itself decides.
        distance = int(exact * (max_distance / exact) ** ((bucket - exact) / (buckets - exact))) - 1
        while bucket_of(max(distance, 1)) < bucket:
            distance += 1
        starts.append(distance)
    return starts


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

    @property
    def per_layer(self) -> bool:
        return not self.shared

    def problems(self) -> Iterator[Problem]:
        least = 4 if self.bidirectional is not False else 2
        if self.buckets < least or self.buckets % least:
            yield "buckets", f"{self.buckets} can't be halved evenly; pick a multiple of {least}"
        elif self.max_distance <= self.buckets // 2:
            yield "max_distance", f"{self.max_distance} is not above buckets / 2 = {self.buckets // 2}"

    def equation(self) -> str:
        return f"s_ij = scale q_i . k_j + table[bucket(i - j), h]; {self.buckets} buckets, the last from {self.max_distance}"

    def _both_ways(self, dims: Dims) -> bool:
        return not dims.causal if self.bidirectional is None else self.bidirectional

    def weights(self, dims: Dims) -> dict[str, Weight]:
        return {"table": Weight(shape=(self.buckets, dims.heads), role="relative")}

    def constants(self, dims: Dims) -> dict[str, Sequence[float]]:
        both = self._both_ways(dims)
        per_side = self.buckets // 2 if both else self.buckets
        return {"start": thresholds(per_side, self.max_distance), "after": [per_side if both else 0]}

    def scores(
        self, own: Mapping[str, Tensor], q_BTHK: Tensor, k_BSGK: Tensor, where: Where, scale: float
    ) -> ScoreTerms:
        start, after = own["start"].long(), own["after"].long()

        def bucket(gap: Tensor) -> Tensor:
            import torch

            # One-sided tables put every key after the query into bucket 0.
            distance = torch.where(after > 0, gap.abs(), (-gap).clamp(min=0))
            return torch.bucketize(distance.contiguous(), start, right=True) + torch.where(gap > 0, after, 0)

        return ScoreTerms(table_BHTN=own["table"].T[None, :, None], pick=bucket, reach=self.reach)
