"""AWQ (Lin et al. 2023) in the layout of its GEMM kernel: four bits, groups of inputs, outputs interleaved in words.

`X.qweight` (in, out/8) and `X.qzeros` (groups, out/8) hold eight outputs in a word, in the order 0 2 4 6 1 3 5 7 from
the lowest bits on; `X.scales` is (groups, out).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from anyformer.families.quantization import (
    FLOATS,
    INT32,
    Quantization,
    QuantizedWeight,
    Read,
    StoredError,
    check_groups,
    group_size,
    matrix,
    need,
    unpacked,
    whole_or,
    wrong_group_size,
)

if TYPE_CHECKING:
    from torch import Tensor

    from anyformer.model.safetensors_header import Place

ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""The output that each half byte of a word holds."""
FORMAT = "gemm"


class Awq(Quantization, kind="awq"):
    """Four bits and a zero for each group of inputs."""

    main = ".qweight"

    def problems(self) -> Iterable[str]:
        found: list[str] = []
        if "bits" in self.config or "w_bit" not in self.config:
            whole_or({"bits": 4} | dict(self.config), "bits", (4,), found)
        layout = str(self.config.get("version") or self.config.get("format") or FORMAT).lower()
        if layout != FORMAT:
            found.append(f"version: {layout!r:.40} can't be read (known: {FORMAT})")
        return [*found, *wrong_group_size(self.config)]

    def described(self, stem: str, held: Mapping[str, Place], read: Read) -> QuantizedWeight:
        names = {part: f"{stem}.{part}" for part in ("qweight", "qzeros", "scales")}
        into, words = matrix(names["qweight"], need(held, names["qweight"], INT32))
        out, (groups, columns) = words * len(ORDER), matrix(names["scales"], need(held, names["scales"], FLOATS))
        if columns != out or not groups or into % groups:
            found = (groups, columns)
            raise StoredError(
                names["scales"], f"has shape {found}, and its weight needs (groups of {into} inputs, {out})"
            )
        check_groups(names["scales"], groups, into, group_size(self.config, into))
        need(held, names["qzeros"], INT32, (groups, words))
        return QuantizedWeight(f"{stem}.weight", (out, into), names)

    def rows(self, weight: QuantizedWeight, stored: Mapping[str, Tensor], rows: slice) -> Tensor:
        number, zero, scale = self._parts(stored, rows)
        each = weight.shape[1] // scale.shape[0]
        return ((number - zero.repeat_interleave(each, 0)).float() * scale.float().repeat_interleave(each, 0)).T

    def integers(self, weight: QuantizedWeight, stored: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, int] | None:
        number, zero, scale = self._parts(stored, slice(0, weight.shape[0]))
        return None if bool((zero != 8).any()) else ((number - 8).T, scale.T.contiguous(), 4)

    def _parts(self, stored: Mapping[str, Tensor], rows: slice) -> tuple[Tensor, Tensor, Tensor]:
        """Numbers and zeros of some outputs, in order, and their scales."""
        # Whole words, of which the rows that are asked for are cut out.
        first = rows.start // len(ORDER)
        words = slice(first, -(-rows.stop // len(ORDER)))
        cut = slice(rows.start - first * len(ORDER), rows.stop - first * len(ORDER))

        def ordered(name: str) -> Tensor:
            halves = unpacked(stored[name][:, words], 4, 1).unflatten(1, (-1, len(ORDER)))
            return halves[:, :, [ORDER.index(i) for i in range(len(ORDER))]].flatten(1)[:, cut]

        return ordered("qweight"), ordered("qzeros"), stored["scales"][:, rows]
