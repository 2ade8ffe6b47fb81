"""Disentangled attention (He et al. 2020, DeBERTa, eqs. 2-4): content and relative positions meet both ways.

score = scale (q_i . k_j + q_i . K[d] + k_j . Q[d]), where d is the clipped or bucketed distance i - j. K and Q are one
table of vectors as wide as the model, which every layer sends through its own key and query projections.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from anyformer.specs.axes import Dims, Norm, Params, ParamSpec, Position, Problem, QKPositions, ScoreBias, Tensor


def starts(buckets: int, max_distance: int) -> list[int]:
    """The distances at which bucket 1, 2, ... `buckets` begins: one for each distance up to half of them, then
    logarithmically wider. A bucket that no distance falls into begins where the next one does.

    As the published code, in fp32 whatever the model's dtype: rounding decides on which side of an edge a distance lies.
    """
    import numpy as np

    middle = buckets // 2
    distance = np.arange(middle + 1, max_distance + 1, dtype=np.float32)
    width = np.log(np.float32((max_distance - 1) / middle))
    bucket = np.ceil(np.log(distance / np.float32(middle)) / width * np.float32(middle - 1)).astype(np.int64) + middle
    # All from the largest distance on are in the last bucket.
    bucket[-1] = buckets
    later = middle + 1 + np.searchsorted(bucket, np.arange(middle + 1, buckets + 1))
    return [*range(1, middle + 1), *later.tolist()]


@dataclass(frozen=True, kw_only=True)
class Disentangled(Position, kind="disentangled"):
    """A vector for each distance, projected by every layer as if it were a token."""

    relative = True
    reads_content = True
    products = True
    buckets: int | None = 256
    """Vectors for each direction: half of them for one distance each, the rest logarithmically wider; unset: one for
    each distance."""
    max_distance: int = 512
    """All from here on share a vector."""
    on_queries: bool = True
    """Queries meet the vectors as keys (content to position, c2p)."""
    on_keys: bool = True
    """Keys meet the vectors as queries (position to content, p2c)."""
    norm: Norm | None = None
    """A norm on the vectors (DeBERTa v3)."""
    shared: bool = True
    """One table for all layers, or one in each."""

    @property
    def reach(self) -> int:
        return self.max_distance

    @property
    def span(self) -> int:
        """Vectors for each direction."""
        return self.max_distance if self.buckets is None else self.buckets

    def problems(self) -> Iterator[Problem]:
        if self.buckets is not None and (self.buckets < 4 or self.buckets % 2):
            yield (
                "buckets",
                f"{self.buckets} is not an even number from 4 on; unset it for one bucket for each distance",
            )
        elif self.buckets is not None and self.max_distance <= self.buckets // 2 + 1:
            why = f"{self.max_distance} is not above {self.buckets // 2 + 1}: half of the buckets are for one distance each"
            yield "max_distance", why
        elif self.max_distance < 1:
            yield "max_distance", f"{self.max_distance} is not at least 1"
        if not (self.on_queries or self.on_keys):
            yield (
                "on_keys",
                "without on_queries nothing would meet the vectors; set one of them, or pick position 'none'",
            )
        for name, message in () if self.norm is None else self.norm.problems():
            yield f"norm.{name}", message

    def equation(self) -> str:
        terms = ["q_i . k_j"] + ["q_i . K[d]"] * self.on_queries + ["k_j . Q[d]"] * self.on_keys
        vectors = "R" if self.norm is None else "norm(R)"
        named = " and ".join(["K = W_k {0}"] * self.on_queries + ["Q = W_q {0}"] * self.on_keys).format(vectors)
        distance = "clip(i - j)" if self.buckets is None else "bucket(i - j)"
        return f"s_ij = scale ({' + '.join(terms)}), d = {distance} up to {self.max_distance}, {named}"

    def weights(self, dims: Dims) -> dict[str, ParamSpec]:
        table = {"table": ParamSpec(shape=(2 * self.span, dims.width), role="relative")}
        own = {} if self.norm is None else self.norm.weights((dims.width,))
        return table | {f"norm_{name}": weight for name, weight in own.items()}

    def constants(self, dims: Dims) -> dict[str, Sequence[float]]:
        by_distance = self.buckets is None
        return {"start": range(1, self.span + 1) if by_distance else starts(self.span, self.max_distance)}

    def flops(self, dims: Dims) -> tuple[int, int]:
        return 0, 2 * dims.heads * dims.head_dim * 2 * self.span * (self.on_queries + self.on_keys)

    def projects(self) -> tuple[int, int]:
        return 2 * self.span * self.on_keys, 2 * self.span * self.on_queries

    def projected_vectors(self, own: Params) -> Tensor:
        if self.norm is None:
            return own["table"]
        named = {name.removeprefix("norm_"): value for name, value in own.items() if name.startswith("norm_")}
        return self.norm.apply(own["table"], named)

    def scores(self, own: Params, q_BTHK: Tensor, k_BSGK: Tensor, where: QKPositions, scale: float) -> ScoreBias:
        import torch

        start, span = own["start"].long(), self.span

        def index(gap: Tensor) -> Tensor:
            # Keys before the query have positive distances.
            bucket = torch.bucketize(gap.abs().contiguous(), start, right=True)
            return (span - gap.sign() * bucket).clamp(max=2 * span - 1)

        heads, groups = q_BTHK.shape[2], k_BSGK.shape[2]
        by_query = by_key = None
        if self.on_queries:
            of_heads_NHK = own["k_NGK"].repeat_interleave(heads // groups, 1)
            by_query = torch.einsum("bthk,nhk->bhtn", q_BTHK, of_heads_NHK) * scale
        if self.on_keys:
            q_NGRK = own["q_NHK"].unflatten(1, (groups, -1))
            by_key = torch.einsum("bsgk,ngrk->bgrsn", k_BSGK, q_NGRK).flatten(1, 2) * scale
        return ScoreBias(table_BHTN=by_query, pick=index, key_table_BHSN=by_key, reach=self.reach)
