"""Relative vectors on keys and values (Shaw et al. 2018, eqs. 3-4): score q.(k + a_{j-i}), output sum p (v + b_{j-i}).

With fixed sine vectors instead of learned ones this is NEZHA's scheme.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from anyformer.specs.axes import Dims, Params, ParamSpec, Position, Problem, QKPositions, ScoreBias, Tensor, ValueTerms

WIDEST = 2**16
"""Sine vectors are a list of so many rows, made before anything else."""


@dataclass(frozen=True, kw_only=True)
class Shaw(Position, kind="shaw"):
    """A vector for each clipped distance, shared by the heads of a layer."""

    title = "Shaw"
    relative = True
    reads_content = True
    clip: int = 16
    vectors: Literal["learned", "sine"] = "learned"
    on_values: bool = True
    shared: bool = False
    """One set of vectors for all layers, or one in each."""

    @property
    def reach(self) -> int:
        return self.clip

    def problems(self) -> Iterator[Problem]:
        if not 1 <= self.clip <= WIDEST:
            yield "clip", f"{self.clip} is not between 1 and {WIDEST}"

    def check(self, dims: Dims) -> Iterator[Problem]:
        if self.vectors == "sine" and dims.head_dim % 2:
            yield "vectors", f"'sine' pairs sines with cosines, so head_dim must be even, got {dims.head_dim}"

    def equation(self) -> str:
        clipped = f"clip(j - i, +-{self.clip})"
        values = f", o_i = sum_j p_ij (v_j + b[{clipped}])" if self.on_values else ""
        return f"s_ij = scale q_i . (k_j + a[{clipped}]){values}"

    def reads_probs(self) -> bool:
        return self.on_values

    def weights(self, dims: Dims) -> dict[str, ParamSpec]:
        if self.vectors == "sine":
            return {}
        table = ParamSpec(shape=(2 * self.clip + 1, dims.head_dim), role="relative")
        return {"keys": table} | ({"values": table} if self.on_values else {})

    def constants(self, dims: Dims) -> dict[str, Sequence[Any]]:
        if self.vectors == "learned":
            return {}
        half = [10000.0 ** (-2 * i / dims.head_dim) for i in range(dims.head_dim // 2)]
        waves, distances = (math.sin, math.cos), range(2 * self.clip + 1)
        return {"sine": [[wave(distance * f) for f in half for wave in waves] for distance in distances]}

    def flops(self, dims: Dims) -> tuple[int, int]:
        return 0, 2 * dims.heads * dims.head_dim * (2 * self.clip + 1) * (2 if self.on_values else 1)

    def _table(self, own: Params, name: str, like: Tensor) -> Tensor:
        return (own["sine"] if self.vectors == "sine" else own[name]).to(like.dtype)

    def _index(self, gap: Any) -> Any:
        return gap.clamp(-self.clip, self.clip) + self.clip

    def scores(self, own: Params, q_BTHK: Tensor, k_BSGK: Tensor, where: QKPositions, scale: float) -> ScoreBias:
        # Against every distance first; a pair then picks one: no (T, S, head_dim) tensor is made.
        by_distance = (q_BTHK @ self._table(own, "keys", q_BTHK).T).transpose(1, 2) * scale
        return ScoreBias(table_BHTN=by_distance, pick=self._index, reach=self.reach)

    def values(self, own: Params, like: Tensor) -> ValueTerms | None:
        return None if not self.on_values else ValueTerms(self._table(own, "values", like), self._index)
