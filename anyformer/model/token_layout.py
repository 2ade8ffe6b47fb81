"""Token layout: where each token of a row is, in which document, and whether it is real."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from anyformer.kernels.attention_mask import AttentionMask, Shape
from anyformer.kernels.loss import Routed
from anyformer.parts.patterns.causal import Causal
from anyformer.parts.patterns.full import Full
from anyformer.parts.patterns.window import Window
from anyformer.specs.patterns import Pattern, Tokens


@dataclass
class TokenLayout:
    """Tokens of one input. Positions have a batch dimension of 1 where all rows are alike."""

    pos_BT: Tensor
    valid_BT: Tensor | None = None
    """None: all tokens are real."""
    document_BT: Tensor | None = None
    """None: a row is one document."""
    declared_BT: Tensor | None = None
    """The length that length-dependent positions read; None unless one asks for it."""
    length_BT: Tensor | None = None
    """How many real tokens the document has; None unless a pattern asks for it."""
    marked_BT: Tensor | None = None
    """Which tokens are global; None: none of them was marked."""
    right_padded: bool = False
    """Padding stands behind the real tokens of each row, which are at 0, 1, 2 ...: nothing real sees it that looks back."""
    router_outputs: list[Routed] | None = None
    """Logits and choices of the routers of all layers; None unless a loss asks for them."""
    plain: bool = True
    """Positions are 0, 1, 2 ... (after what a cache holds) in every row, and nothing is padded or packed."""


def place(
    batch: int,
    tokens: int,
    device: torch.device,
    *,
    mask_BT: Tensor | None = None,
    positions: Tensor | None = None,
    segments_BT: Tensor | None = None,
    before: int = 0,
    before_B: Tensor | None = None,
) -> TokenLayout:
    """Default positions count real tokens from 0 and start again with each document.

    `before` tokens are in a cache already; `before_B` says how many of them were real where rows differ.
    """
    valid = None if mask_BT is None else mask_BT != 0
    ragged = valid is not None or before_B is not None
    if positions is not None:
        pos = positions if positions.dim() == 2 else positions[None]
    elif not ragged and segments_BT is None:
        pos = torch.arange(before, before + tokens, device=device)[None]
    elif valid is None and segments_BT is None and before_B is not None and tokens == 1:
        # Every step of a captured loop comes here: one token after those that were read.
        pos = before_B[:, None]
    else:
        real = torch.ones(batch, tokens, dtype=torch.long, device=device) if valid is None else valid.long()
        counted = real.cumsum(-1)
        earlier = 0 if segments_BT is None else (counted - real).gather(-1, _edge(segments_BT, right=False))
        seen = before if before_B is None else before_B[:, None]
        pos = (counted - earlier - 1 + seen).clamp(min=0)
    plain = positions is None and not ragged and segments_BT is None
    return TokenLayout(pos_BT=pos, valid_BT=valid, document_BT=segments_BT, plain=plain)


def _edge(segments_BT: Tensor, *, right: bool) -> Tensor:
    """Column at which each token's document begins, or the one after its end (ids never decrease along a row)."""
    ids = segments_BT.contiguous()
    return torch.searchsorted(ids, ids, right=right)


def document_length(layout: TokenLayout, tokens: int) -> Tensor:
    """Real tokens of each token's document, broadcastable to (B,T)."""
    valid, segments = layout.valid_BT, layout.document_BT
    if segments is None:
        if valid is None:
            return torch.full((1, 1), tokens, device=layout.pos_BT.device)
        return valid.sum(-1, keepdim=True)
    real = torch.ones_like(segments) if valid is None else valid.long()
    total = F.pad(real.cumsum(-1), (1, 0))
    return total.gather(-1, _edge(segments, right=True)) - total.gather(-1, _edge(segments, right=False))


def declared_length(layout: TokenLayout, tokens: int, declared: int | Tensor | None) -> Tensor:
    """The length that was declared, for all rows or for each; else the document's own."""
    if declared is None:
        return document_length(layout, tokens)
    if isinstance(declared, int):
        return torch.full((1, 1), declared, device=layout.pos_BT.device)
    return declared.reshape(-1, 1)


def follows(layout: TokenLayout) -> Tensor | None:
    """(B,T): whether the token before is a real one of the same document; None if only the first token lacks one."""
    valid, document = layout.valid_BT, layout.document_BT
    before: Tensor | None = None
    if valid is not None:
        before = valid[:, :-1] & valid[:, 1:]
    if document is not None:
        same = document[:, :-1] == document[:, 1:]
        before = same if before is None else before & same
    return None if before is None else F.pad(before, (1, 0), value=False)


def attention_mask(
    pattern: Pattern, queries: TokenLayout, keys: TokenLayout, *, heads: int, layer: int = 0
) -> AttentionMask:
    """Who sees whom."""
    q = tokens_of(queries)
    k = q if keys is queries else tokens_of(keys)
    plain = queries.plain and keys.plain
    shape = shape_of(pattern, queries, keys)
    return AttentionMask(pattern, q, k, keys.valid_BT, plain=plain, heads=heads, layer=layer, shape=shape)


def tokens_of(layout: TokenLayout) -> Tokens:
    """As patterns read them."""
    document = 0 if layout.document_BT is None else layout.document_BT
    marked = False if layout.marked_BT is None else layout.marked_BT
    return Tokens(layout.pos_BT, document, layout.length_BT, marked=marked)


def shape_of(pattern: Pattern, queries: TokenLayout, keys: TokenLayout) -> Shape:
    """Where a pattern comes down to all keys, or to those before and at the query."""
    new, total = queries.pos_BT.shape[1], keys.pos_BT.shape[1]
    if isinstance(pattern, Full) and keys.valid_BT is None and queries.document_BT is None:
        return "none"
    if isinstance(pattern, Causal) and queries.right_padded and keys.right_padded:
        return "causal"
    if not queries.plain or keys.valid_BT is not None:
        return "pattern"
    if isinstance(pattern, Causal) and keys.plain and total == new:
        return "causal"
    if new == 1 and (isinstance(pattern, Causal) or (isinstance(pattern, Window) and total <= pattern.size)):
        # One query after all others: a ring holds no key that its window does not see.
        return "none"
    return "pattern"
