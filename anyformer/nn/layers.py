"""Linear map, look-up table, norms, feed-forwards and position embeddings alone, called on plain tensors."""

from typing import Any, Literal

import torch
from torch import Tensor

from anyformer.errors import InputError
from anyformer.model.arguments import check_positions
from anyformer.nn.part import Part, check_rows, check_size, one_layer, read_leaf
from anyformer.parts.embedding import Embedding as Table
from anyformer.parts.ffn import FeedForwardNet
from anyformer.parts.ffns.moe import Moe
from anyformer.parts.leaf_module import LeafModule
from anyformer.parts.linear import Linear as Map
from anyformer.parts.moe import MoE
from anyformer.parts.norm import Norm as NormModule
from anyformer.specs.axes import Norm as NormLeaf
from anyformer.specs.axes import Position

Device = torch.device | str | None
Gain = Literal["weight", "one_plus", "none"]
GainAt = Literal["before_cast", "after_cast"]


class Linear(Map):
    """x W^T (+ b), with W of shape (out_features, in_features): torch's, with our own first weights.

    W starts as a normal of variance 2/(in + out), cut at 3 sigma; a bias starts at 0.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool = False,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        into = check_size("Linear", "in_features", in_features)
        super().__init__(into, check_size("Linear", "out_features", out_features), bias=bias)
        self.to(device=device, dtype=dtype)
        self.reset_parameters()


class Embedding(Table):
    """Rows of a table (num_embeddings, embedding_dim) by their numbers: torch's, with an error that says which id is wrong.

    Rows start as N(0, 1), cut at 3 sigma.
    """

    def __init__(
        self, num_embeddings: int, embedding_dim: int, *, device: Device = None, dtype: torch.dtype | None = None
    ) -> None:
        rows = check_size("Embedding", "num_embeddings", num_embeddings)
        super().__init__(rows, check_size("Embedding", "embedding_dim", embedding_dim), limit="num_embeddings")
        self.to(device=device, dtype=dtype)
        self.reset_parameters()


class Norm(NormModule):
    """A norm over the last dimension, of any kind; options are the fields of [norm] in a spec. Computes in at least fp32."""

    def __init__(
        self,
        width: int,
        kind: str | NormLeaf = "rmsnorm",
        *,
        device: Device = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        source = f"af.nn.{type(self).__name__}"
        data: Any = kind if isinstance(kind, NormLeaf) and not options else {"kind": kind, **options}
        leaf = read_leaf(NormLeaf, data, "norm", source)
        super().__init__(leaf, (check_size(source, "width", width),))
        self.to(device=device, dtype=dtype)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Gains of 1, biases of 0."""
        for name, weight in self.leaf.weights(self.shape).items():
            self.get_parameter(name).fill_(weight.fill or 0.0)


class RMSNorm(Norm):
    """x / sqrt(mean(x^2) + eps), times a gain (Zhang and Sennrich 2019).

    gain: the stored weight, "one_plus" it (Gemma), or "none". gain_at: multiplied "after_cast" back to the input's dtype
    (Llama) or "before_cast", in at least fp32 (OLMo 2, Gemma).
    """

    def __init__(
        self,
        width: int,
        *,
        eps: float = 1e-6,
        gain: Gain = "weight",
        gain_at: GainAt = "after_cast",
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(width, "rmsnorm", eps=eps, gain=gain, gain_at=gain_at, device=device, dtype=dtype)


class LayerNorm(Norm):
    """(x - mean) / sqrt(var + eps), times a gain, plus a bias (Ba et al. 2016).

    gain: the stored weight, "one_plus" it (Nemotron), or "none" (OLMo 1, with bias=False).
    """

    def __init__(
        self,
        width: int,
        *,
        eps: float = 1e-5,
        gain: Gain = "weight",
        bias: bool = True,
        gain_at: GainAt = "before_cast",
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(width, "layernorm", eps=eps, gain=gain, bias=bias, gain_at=gain_at, device=device, dtype=dtype)


class FeedForward(Part):
    """down(act(up(x))), down(act(gate(x)) * up(x)), or a few of many such experts for each token.

    `kind` and the options are those of [ffn] in a spec (relu, gelu, silu, swiglu, geglu, moe, ...; bias, dropout, chunk;
    experts, top_k, ...); `ffn_width` is the inner width, by default what the kind makes of `width`.
    """

    def __init__(
        self,
        width: int,
        kind: str = "swiglu",
        *,
        ffn_width: int | None = None,
        device: Device = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        ffn = {"kind": kind, **options} | ({} if ffn_width is None else {"width": ffn_width})
        layer = one_layer("af.nn.FeedForward", width=width, attention={"heads": 1}, ffn=ffn)
        super().__init__(layer, {"blocks.0.ffn.body": "body"})
        leaf = layer.layer.ffn
        with torch.device("meta"):
            self.body = MoE(leaf, layer.dims) if isinstance(leaf, Moe) else FeedForwardNet(leaf, layer.dims)
        self.start(device, dtype)

    def forward(self, x: Tensor) -> Tensor:
        """The network at every token of x (..., width)."""
        source, width = "af.nn.FeedForward: x", self.layer.dims.width
        if not isinstance(x, Tensor):
            raise TypeError(f"{source}: expected a tensor (..., {width}), got {type(x).__name__}")
        if x.dim() < 2 or x.shape[-1] != width or not x.is_floating_point():
            raise InputError(f"{source}: expected floating-point (..., {width}), got {x.dtype} {tuple(x.shape)}")
        return self.body(x)


class PositionEmbedding(Part):
    """x plus what a scheme has for each token's position. Options are those of [position] in a spec.

    `context` is how many positions there are, where a scheme has only so many. Schemes that work inside attention (rope,
    alibi, t5, ...) are given to `Attention` and `Block` instead.
    """

    def __init__(
        self,
        width: int,
        kind: str = "learned",
        *,
        context: int | None = None,
        device: Device = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        source, position = "af.nn.PositionEmbedding", {"kind": kind, **options}
        layer = one_layer(source, width=width, attention={"heads": 1}, position=position, context=context)
        leaf = layer.layer.position
        if not leaf.overrides("embed"):
            added = ", ".join(k for k in Position.kinds() if (it := Position.named(k)) and it.overrides("embed"))
            raise InputError(
                f"{source}: position {leaf.kind!r} adds nothing to embeddings; pick one of {added}, or give it to "
                "af.nn.Attention(position=...)"
            )
        super().__init__(layer, {"positions.0": "body"})
        with torch.device("meta"):
            self.body = LeafModule(leaf, leaf.weights(layer.dims), leaf.constants(layer.dims))
        self.start(device, dtype)

    def forward(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        """X (batch, tokens, width) with its positions, (batch, tokens) or (tokens,), by default 0, 1, 2 ..."""
        source, (leaf, dims) = "af.nn.PositionEmbedding", (self.layer.layer.position, self.layer.dims)
        check_rows(source, "x", x, dims.width)
        batch, tokens = x.shape[:2]
        check_positions(positions, batch, tokens)
        limit = leaf.limit(dims.context)
        if positions is None:
            if limit is not None and tokens > limit:
                raise InputError(f"{source}: {tokens} tokens are more than the {limit} positions that it was made for")
            positions = torch.arange(tokens, device=x.device)
        added = leaf.embed(self.body.tensors(), positions if positions.dim() == 2 else positions[None], x)
        return x if added is None else x + added
