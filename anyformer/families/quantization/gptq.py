"""GPTQ (Frantar et al. 2023) as AutoGPTQ and GPTQModel store it: whole numbers with a scale and a zero for each group.

`X.qweight` (in * bits / 32, out) holds words of several inputs, `X.qzeros` (groups, out * bits / 32) of several outputs,
`X.scales` is (groups, out), and `X.g_idx` (in) the group of each input, in any order if columns were quantised by
activation. Zeros are stored less 1, but in the format gptq_v2.
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

FORMATS = ("gptq", "gptq_v2")
BITS = (2, 4, 8)
"""Of 3 bits, words would share numbers."""


class Gptq(Quantization, kind="gptq"):
    """Groups of inputs, in whole numbers."""

    main = ".qweight"

    @property
    def bits(self) -> int:
        return self.config["bits"]

    @property
    def layout(self) -> str:
        """The format of the file, by the name of its key, old or new."""
        return self.config.get("checkpoint_format") or self.config.get("format") or FORMATS[0]

    def problems(self) -> Iterable[str]:
        found: list[str] = []
        whole_or(self.config, "bits", BITS, found)
        if self.layout not in FORMATS:
            found.append(f"checkpoint_format: {self.layout!r:.40} can't be read (known: {', '.join(FORMATS)})")
        if self.config.get("dynamic"):
            found.append("dynamic: settings of single modules can't be read")
        return [*found, *wrong_group_size(self.config)]

    def described(self, stem: str, held: Mapping[str, Place], read: Read) -> QuantizedWeight:
        names = {part: f"{stem}.{part}" for part in ("qweight", "qzeros", "scales", "g_idx")}
        words, out = matrix(names["qweight"], need(held, names["qweight"], INT32))
        into = words * 32 // self.bits
        groups, _ = matrix(names["scales"], need(held, names["scales"], FLOATS))
        need(held, names["scales"], FLOATS, (groups, out))
        need(held, names["qzeros"], INT32, (groups, -(-out * self.bits // 32)))
        size = group_size(self.config, into)
        check_groups(names["scales"], groups, into, size)
        if names["g_idx"] not in held:
            if self.config.get("desc_act") or not groups or (size is None and into % groups):
                raise StoredError(
                    names["g_idx"], f"is missing: which of {groups} groups an input belongs to is not known"
                )
            del names["g_idx"]
        else:
            need(held, names["g_idx"], INT32, (into,))
        return QuantizedWeight(f"{stem}.weight", (out, into), names)

    def rows(self, weight: QuantizedWeight, stored: Mapping[str, Tensor], rows: slice) -> Tensor:
        group = self._group(weight, stored)
        number, zero = unpacked(stored["qweight"][:, rows], self.bits, 0), self._zeros(weight, stored)[:, rows]
        return ((number - zero[group]).float() * stored["scales"][:, rows].float()[group]).T

    def integers(self, weight: QuantizedWeight, stored: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, int] | None:
        import torch

        group, groups = self._group(weight, stored), stored["scales"].shape[0]
        middle = 1 << self.bits - 1
        if weight.shape[1] % groups:
            return None
        ordered = torch.arange(weight.shape[1]) // (weight.shape[1] // groups)
        if not torch.equal(group, ordered) or bool((self._zeros(weight, stored) != middle).any()):
            return None
        number = unpacked(stored["qweight"], self.bits, 0) - middle
        return number.T.to(torch.int8), stored["scales"].T.contiguous(), self.bits

    def _zeros(self, weight: QuantizedWeight, stored: Mapping[str, Tensor]) -> Tensor:
        zero = unpacked(stored["qzeros"], self.bits, 1)[:, : weight.shape[0]]
        # The writer took 1 away from numbers of so many bits, so 0 went round.
        return zero + 1 & (1 << self.bits) - 1 if self.layout == FORMATS[0] else zero

    def _group(self, weight: QuantizedWeight, stored: Mapping[str, Tensor]) -> Tensor:
        import torch

        groups = stored["scales"].shape[0]
        if "g_idx" not in stored:
            into = weight.shape[1]
            return torch.arange(into) // (group_size(self.config, into) or into // groups)
        group = stored["g_idx"].long()
        if bool(((group < 0) | (group >= groups)).any()):
            raise StoredError(
                weight.parts["g_idx"], f"names groups from {int(group.min())} to {int(group.max())} of {groups}"
            )
        return group
