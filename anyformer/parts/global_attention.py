"""Attention whose global tokens have projections of their own (Longformer, Beltagy et al. 2020, section 3.2)."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from anyformer.kernels.attention_mask import AttentionMask
from anyformer.kernels.cuda_graph import fixed_shapes
from anyformer.kernels.dispatch import Kernel
from anyformer.parts.attention import Attention
from anyformer.parts.attention_metadata import AttentionMetadata, GlobalQueries, RotaryTables, gather_tokens
from anyformer.parts.linear import Linear
from anyformer.specs.axes import Dims, Position
from anyformer.specs.layer import Attention as AttentionSpec
from anyformer.specs.layer import absorbs
from anyformer.specs.patterns import Pattern, Tokens


class GlobalAttention(Attention):
    """Self-attention in which queries, keys and values of global tokens come from further weights."""

    def __init__(self, spec: AttentionSpec, dims: Dims, position: Position, *, layer: int) -> None:
        super().__init__(spec, dims, position, layer=layer)
        queries, keys = dims.heads * dims.head_dim, dims.kv_heads * dims.head_dim
        self.global_q = Linear(dims.width, queries, bias="q" in spec.bias)
        self.global_k = Linear(dims.width, keys, bias="k" in spec.bias)
        self.global_v = Linear(dims.width, keys, bias="v" in spec.bias)
        self.apart = "its global tokens have projections of their own"
        self.stores = False

    def project_kv(self, x_BSD: Tensor, metadata: AttentionMetadata, prefix: str = "") -> tuple[Any, ...]:
        """Keys and values; then those for global queries, where they are made of all tokens."""
        found = super().project_kv(x_BSD, metadata)
        return (*found, *super().project_kv(x_BSD, metadata, "global_")) if self.needs_global_keys(metadata) else found

    def needs_global_keys(self, metadata: AttentionMetadata) -> bool:
        """Whether keys and values for global queries are made of all tokens: for a cache, or for many such queries."""
        rows = metadata.globals_
        if metadata.cache is not None or rows is None:
            return metadata.cache is not None
        few = None if rows.index_BN is None else rows.index_BN.shape[1]
        drops = self.training and self.spec.dropout > 0
        return few is None or drops or not absorbs(self.spec, self.leaf, self.dims, few)

    def with_global_rows(
        self, x_BTD: Tensor, out_BTHK: Tensor, further: Sequence[Tensor], metadata: AttentionMetadata
    ) -> Tensor:
        """The output with the rows of global tokens as their own projections give them."""
        rows: Any = metadata.globals_
        x_BND = x_BTD if rows.index_BN is None else gather_tokens(x_BTD, rows.index_BN)
        q_BNHK = self.tempered(self.split_heads(self._modules["global_q"](x_BND), self.q_norm, rows.turn), rows.mask)
        if further:
            found_BNHK = self.mix(q_BNHK, further[0], further[1], metadata, rows.mask, rows.kernel)
        else:
            found_BNHK = self.absorbed(q_BNHK, x_BTD, metadata, rows)
        return put_global_rows(out_BTHK, found_BNHK, rows)

    def absorbed(self, q_BNHK: Tensor, x_BSD: Tensor, metadata: AttentionMetadata, rows: GlobalQueries) -> Tensor:
        """What few global queries take: tokens themselves are keys and values of one shared head, q W_k meets them, and
        W_v follows. The key's bias adds the same to all scores of a query, which the weights ignore.
        """
        keys, values = self._modules["global_k"], self._modules["global_v"]
        groups = self.dims.kv_heads
        k_GKD, v_GKD = (m.weight.view(groups, self.dims.head_dim, -1) for m in (keys, values))
        grouped = q_BNHK.unflatten(2, (groups, -1))
        q_BNHD = torch.einsum("bngrk,gkd->bngrd", grouped, k_GKD).flatten(2, 3)
        tokens = x_BSD[:, :, None]
        taken = self.mix(q_BNHD, tokens, tokens, metadata, rows.mask, rows.kernel).unflatten(2, (groups, -1))
        found = torch.einsum("bngrd,gkd->bngrk", taken, v_GKD)
        if values.bias is not None:
            found = found + values.bias.view(groups, 1, -1)
        return found.flatten(2, 3)


def put_global_rows(out_BTHK: Tensor, found_BNHK: Tensor, rows: GlobalQueries) -> Tensor:
    """The output with what was found for global queries in their places."""
    chosen = rows.chosen_BN[:, :, None, None]
    if rows.index_BN is None:
        return torch.where(chosen, found_BNHK, out_BTHK)
    index = rows.index_BN[:, :, None, None].expand(found_BNHK.shape)
    return out_BTHK.scatter(1, index, torch.where(chosen, found_BNHK, out_BTHK.gather(1, index)))


def attention_body(
    spec: AttentionSpec, dims: Dims, position: Position, *, layer: int, cross: bool = False
) -> Attention:
    """The attention of a spec."""
    if spec.global_projections and not cross:
        return GlobalAttention(spec, dims, position, layer=layer)
    return Attention(spec, dims, position, layer=layer, cross=cross)


def global_queries(
    pattern: Pattern, mask: AttentionMask, rope: RotaryTables | None, kernel_for: Callable[[AttentionMask], Kernel]
) -> GlobalQueries | None:
    """The global queries of every row, gathered so that few are computed; None if there is none."""
    chosen_BT: Tensor | None = pattern.is_global(mask.q)
    if chosen_BT is None:
        return None
    if fixed_shapes(chosen_BT.device.type):
        # How many there are can't be looked at: every query is computed, and the others are dropped.
        return GlobalQueries(None, chosen_BT, mask, kernel_for(mask), rope)
    most = int(chosen_BT.sum(1).max())
    if most == 0:
        return None
    index_BN = (~chosen_BT).to(torch.uint8).argsort(dim=1, stable=True)[:, :most]
    q = Tokens(*(gather_tokens(value, index_BN) for value in mask.q))
    some = AttentionMask(pattern, q, mask.k, mask.valid_BS, heads=mask.heads, layer=mask.layer)
    chosen_BN = chosen_BT.gather(1, index_BN)
    return GlobalQueries(index_BN, chosen_BN, some, kernel_for(some), None if rope is None else rope.at(index_BN))
