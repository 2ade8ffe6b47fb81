"""A lazy attention mask: who may see whom in one pass, a predicate that kernels ask about their own tile of the pairs.

Kernels ask for the piece that they are working on; only those that need it ask for the whole mask.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from anyformer.specs.axes import QKPositions
from anyformer.specs.patterns import Pattern, Tokens

Shape = Literal["none", "causal", "pattern"]
"""none: every query sees every key; causal: query t sees keys 0 to t of as many keys; pattern: ask."""

WHOLE = slice(None)


@dataclass
class AttentionMask:
    """A pattern, and where queries and keys of every row are. Tensors are (B,T) and (B,S), or (1,T) and (1,S)."""

    pattern: Pattern
    q: Tokens
    k: Tokens
    valid_BS: Tensor | None = None
    """Which keys are real; None: all."""
    plain: bool = False
    """Rows are alike, and positions are 0, 1, 2 ... in order: query t stands at key S - T + t."""
    heads: int = 1
    layer: int = 0
    shape: Shape = "pattern"
    given: Tensor | None = None
    """A mask of the caller's own, (B or 1, H or 1, T, S), which stands for the pattern: True where a query may see a key, or
    numbers that are added to its score after the soft-cap. Only for kernels that read masks.
    """
    notes: dict[Any, Any] = field(default_factory=dict, repr=False)
    """What kernels derived from it, made once for all layers."""
    shut: bool = False
    """Nothing is noted any more by compiled code: it was made ready, and layers may be compiled one by one."""

    @property
    def queries(self) -> int:
        """Number of queries in a row."""
        return self.q.pos.shape[1]

    @property
    def keys(self) -> int:
        """Number of keys in a row."""
        return self.k.pos.shape[1]

    @property
    def where(self) -> QKPositions:
        """Positions of queries and keys."""
        return QKPositions(self.q.pos, self.k.pos)

    def mask(self) -> Tensor | None:
        """(B or 1, H or 1, T, S), True where a query may see a key; None if it always may. Made once."""
        if self.shape == "none" or (self.added() is not None and self.valid_BS is None):
            return None
        return self.once("mask", lambda: self.pairs(WHOLE, WHOLE))

    def added(self) -> Tensor | None:
        """What the caller's own mask adds to scores, if it is one of numbers."""
        return self.given if self.given is not None and self.given.is_floating_point() else None

    def adds_wider(self, dtype: torch.dtype) -> bool:
        """Whether numbers of a mask would be rounded in this dtype."""
        added = self.added()
        return added is not None and torch.promote_types(added.dtype, dtype) != dtype

    def once(self, name: Any, make: Callable[[], Any]) -> Any:
        """What `make` gives, made at the first call with this name: layers share a mask.

        A compiled block can't leave anything behind: the next one would find it, and be another graph. A kernel's
        `prepare` makes what is too dear for that.
        """
        if name in self.notes:
            return self.notes[name]
        made = make()
        if not (self.shut and torch.compiler.is_compiling()):
            self.notes[name] = made
        return made

    def pairs(self, rows: Any, columns: Any) -> Tensor:
        """The mask of some queries and some keys, slices or tensors of indices along the row: with indices (n, T) and
        (n, S), the masks (B or 1, H or 1, n, T, S) of n pieces.
        """
        q, k = self._side(self.q, rows, -1), self._side(self.k, columns, -2)
        if self.given is not None and self.added() is None:
            allowed: Any = self.given[..., rows, :][..., columns]
        else:
            allowed = self.pattern.allows(q, k)
        if not isinstance(self.q.document, int):
            allowed = allowed & (q.document == k.document)
        if self.valid_BS is not None:
            allowed = allowed & self.valid_BS[:, columns][:, None].unsqueeze(-2)
        return allowed

    def sides(self) -> tuple[Tokens, Tokens]:
        """The queries (B or 1, 1, T, 1) and the keys (B or 1, 1, 1, S) as patterns read them."""
        return self._side(self.q, WHOLE, -1), self._side(self.k, WHOLE, -2)

    def _side(self, tokens: Tokens, some: Any, unsqueezed: int) -> Tokens:
        """Tokens of some places as (B,1,T,1) for queries (-1) or (B,1,1,S) for keys (-2)."""

        def spread(value: Any) -> Any:
            if not isinstance(value, Tensor) or value.dim() < 2:
                return value
            if value.shape[1] == tokens.pos.shape[1]:
                return value[:, some][:, None].unsqueeze(unsqueezed)
            # One number for the whole row.
            return value.view(-1, *(1,) * (pos.dim() - 1))

        pos = tokens.pos[:, some][:, None].unsqueeze(unsqueezed)
        head: Any = 0
        if self.pattern.per_head:
            head = torch.arange(self.heads, device=pos.device).view(-1, *(1,) * (pos.dim() - 2))
        return Tokens(pos, spread(tokens.document), spread(tokens.length), head, self.layer, spread(tokens.marked))
