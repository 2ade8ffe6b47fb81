"""Parameters that stay in at least float32 when a model is cast: rounding them would change which experts are chosen."""

from collections.abc import Callable, Iterator
from typing import Any, Self

import torch
from torch import Tensor, nn


class Exact(nn.Module):
    """A module of which some parameters are never narrower than float32: `.to`, `.half` and the like leave them so.

    A model that is built or loaded in 16 bits has them in float32, files hold them so, and autocast does not reach them.
    """

    exact: tuple[str, ...] = ()
    """Names of these parameters; some may be missing."""

    def held_exactly(self) -> Iterator[nn.Parameter]:
        """These parameters."""
        own: dict[str, Any] = self._parameters
        return (p for name in self.exact if (p := own.get(name)) is not None)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # torch hands over each parameter itself, and its gradient.
        kept = {id(tensor) for p in self.held_exactly() for tensor in (p, p.grad)}

        def wide(tensor: Tensor) -> Tensor:
            made = fn(tensor)
            exact = torch.promote_types(made.dtype, torch.float32) if id(tensor) in kept else made.dtype
            return made if made.dtype == exact else tensor.detach().to(made.device, exact)

        return super()._apply(wide, recurse)


def held_exactly(module: nn.Module) -> list[nn.Parameter]:
    """All such parameters of a module and its parts."""
    return [p for part in module.modules() if isinstance(part, Exact) for p in part.held_exactly()]
