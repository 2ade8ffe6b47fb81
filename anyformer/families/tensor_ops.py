"""How tensors of ours lie in those of a published checkpoint. An op only moves elements, and knows its inverse."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from anyformer.specs.axes import Dims

if TYPE_CHECKING:
    from torch import Tensor

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Joined:
    """How tensors of ours lie in one of theirs: one after the other along the first dimension; one alone is itself."""

    def shape(self, ours: Sequence[Shape]) -> Shape:
        """The shape of theirs."""
        return (sum(shape[0] for shape in ours), *ours[0][1:])

    def merge(self, ours: Sequence[Tensor]) -> Tensor:
        """Theirs from ours."""
        import torch

        return ours[0] if len(ours) == 1 else torch.cat(tuple(ours))

    def split(self, theirs: Tensor, ours: Sequence[Shape]) -> Sequence[Tensor]:
        """Ours, of these shapes, from theirs."""
        return theirs.split([shape[0] for shape in ours])

    def place(self, ours: Tensor) -> Tensor:
        """The part of one of ours that its part of theirs fills: all of it, unless there are several of theirs."""
        return ours

    def keeps(self, ours: Sequence[Shape]) -> bool:
        """Whether theirs is the place in one of ours as it is."""
        return len(ours) == 1 and self == JOINED

    def at(self, n: int) -> Joined:
        """The op of the n-th of several of theirs."""
        return self

    def sized(self, dims: Dims) -> Joined:
        """The op for layers of these sizes."""
        return self


JOINED = Joined()


@dataclass(frozen=True)
class Transposed(Joined):
    """Joined, then stored (in, out), the way of GPT-2's convolutions."""

    def shape(self, ours: Sequence[Shape]) -> Shape:
        return super().shape(ours)[::-1]

    def merge(self, ours: Sequence[Tensor]) -> Tensor:
        return super().merge(ours).T

    def split(self, theirs: Tensor, ours: Sequence[Shape]) -> Sequence[Tensor]:
        return super().split(theirs.T, ours)


@dataclass(frozen=True)
class PerHead(Joined):
    """Queries, keys and values of the first head, then of the second, and so on (GPT-NeoX, BLOOM).

    Where several heads share a key, their queries stand before it (Falcon).
    """

    heads: int | None = None
    """Of keys; unless given, as many as the spec has."""

    def sized(self, dims: Dims) -> Joined:
        return self if self.heads is not None else PerHead(dims.kv_heads)

    def merge(self, ours: Sequence[Tensor]) -> Tensor:
        import torch

        return torch.cat([t.unflatten(0, (self.heads or 1, -1)) for t in ours], 1).flatten(0, 1)

    def split(self, theirs: Tensor, ours: Sequence[Shape]) -> Sequence[Tensor]:
        heads = self.heads or 1
        sizes = [shape[0] // heads for shape in ours]
        return [t.flatten(0, 1) for t in theirs.unflatten(0, (heads, -1)).split(sizes, 1)]


@dataclass(frozen=True)
class Slice(Joined):
    """One row of ours; the others are in tensors of their own (an expert; StableLM's norm of each head)."""

    index: int = 0

    def shape(self, ours: Sequence[Shape]) -> Shape:
        return ours[0][1:]

    def merge(self, ours: Sequence[Tensor]) -> Tensor:
        return ours[0][self.index]

    def split(self, theirs: Tensor, ours: Sequence[Shape]) -> Sequence[Tensor]:
        return [theirs]

    def place(self, ours: Tensor) -> Tensor:
        return ours.detach()[self.index]

    def keeps(self, ours: Sequence[Shape]) -> bool:
        return True

    def at(self, n: int) -> Joined:
        return Slice(n)


@dataclass(frozen=True)
class Stacked(Joined):
    """Experts in one tensor, as in ours, but with several of ours side by side in each, or laid out otherwise."""

    transposed: bool = False
    """Each expert is stored (in, out): gpt-oss, Llama 4, Aria, DBRX."""
    interleaved: bool = False
    """A row of the first, a row of the second, and so on, not one after the other (gpt-oss)."""
    flat: bool = False
    """The rows of all experts are one dimension (DBRX)."""

    def shape(self, ours: Sequence[Shape]) -> Shape:
        experts, _, *rest = ours[0]
        rows = sum(shape[1] for shape in ours)
        # A bias has no second dimension that could be swapped.
        each = (*rest, rows) if self.transposed else (rows, *rest)
        return (experts * each[0], *each[1:]) if self.flat else (experts, *each)

    def merge(self, ours: Sequence[Tensor]) -> Tensor:
        import torch

        if len(ours) == 1:
            found = ours[0]
        else:
            found = torch.stack(tuple(ours), 2).flatten(1, 2) if self.interleaved else torch.cat(tuple(ours), 1)
        found = found.mT if self.transposed and found.dim() == 3 else found
        return found.flatten(0, 1) if self.flat else found

    def split(self, theirs: Tensor, ours: Sequence[Shape]) -> Sequence[Tensor]:
        found = theirs.unflatten(0, (ours[0][0], -1)) if self.flat else theirs
        found = found.mT if self.transposed and found.dim() == 3 else found
        if self.interleaved:
            return found.unflatten(1, (-1, len(ours))).unbind(2)
        return found.split([shape[1] for shape in ours], 1)

    def keeps(self, ours: Sequence[Shape]) -> bool:
        return len(ours) == 1 and not self.transposed and not self.flat


@dataclass(frozen=True)
class HalvesSwapped(Joined):
    """The two halves of each head change places, which turns a rotation in halves around (nanochat)."""

    head_dim: int | None = None
    """Unless given, as wide as the spec's."""

    def sized(self, dims: Dims) -> Joined:
        return self if self.head_dim is not None else HalvesSwapped(dims.head_dim)

    def merge(self, ours: Sequence[Tensor]) -> Tensor:
        return ours[0].unflatten(0, (-1, 2, (self.head_dim or 2) // 2)).flip(1).flatten(0, 2)

    def split(self, theirs: Tensor, ours: Sequence[Shape]) -> Sequence[Tensor]:
        return [self.merge([theirs])]


@dataclass(frozen=True)
class Shaped(Joined):
    """The same elements in the same order, in another shape (ViT's patches are a convolution); -1 is what is left."""

    form: Shape

    def shape(self, ours: Sequence[Shape]) -> Shape:
        left = math.prod(ours[0]) // math.prod(size for size in self.form if size != -1)
        return tuple(left if size == -1 else size for size in self.form)

    def merge(self, ours: Sequence[Tensor]) -> Tensor:
        return ours[0].reshape(self.form)

    def split(self, theirs: Tensor, ours: Sequence[Shape]) -> Sequence[Tensor]:
        return [theirs.reshape(ours[0])]
