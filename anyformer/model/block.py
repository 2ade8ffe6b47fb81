"""A block: branches that read the residual and add to it. Norms are optional slots, not classes of block.

pre = (inner), post = (after), sandwich = (inner, outer), output = (outer).
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn import functional as F

from anyformer.parts.attention_metadata import AttentionMetadata
from anyformer.parts.ffn import FeedForwardNet
from anyformer.parts.ffns.moe import Moe
from anyformer.parts.fused_linear import GLOBAL_HOOKS, GLOBAL_PRE_HOOKS, FusedInputs
from anyformer.parts.global_attention import attention_body
from anyformer.parts.moe import MoE, RouterOutput
from anyformer.parts.norm import Norm
from anyformer.parts.positions.none import NoPosition
from anyformer.specs.axes import Dims
from anyformer.specs.layer import Layer
from anyformer.specs.parameters import slots

Streams = tuple[Tensor, Tensor]
"""What runs through a reversible stack."""


class Branch(nn.Module):
    """A body between its norms: one on its input, one on its output, one after its result was added."""

    _modules: dict[str, Any]

    def __init__(self, body: nn.Module, layer: Layer, name: str, width: int) -> None:
        super().__init__()
        inner, outer, after = slots(layer, name)
        self.inner = Norm(layer.norm.leaf, (width,)) if inner else None
        self.body = body
        self.outer = Norm(layer.norm.leaf, (width,)) if outer else None
        self.after = Norm(layer.norm.leaf, (width,)) if after else None
        self.dropout, self.scale = layer.block.dropout, layer.block.branch_scale
        self.bare = not outer and self.dropout == 0 and self.scale == 1.0
        """Whether the body's result is added as it is."""
        self.drops = self.dropout > 0 or (layer.ffn if name == "ffn" else layer.attention).dropout > 0
        """Whether it draws random numbers when it is trained."""

    def forward(self, x_BTD: Tensor, *args: Any) -> Tensor:
        """What this branch adds to the residual, in a reversible block: it has no norm after the add."""
        inner = self._modules.get("inner")
        y_BTD = self._modules["body"](x_BTD if inner is None else inner(x_BTD), *args)
        return y_BTD if self.bare else self.answer(y_BTD)

    def residual_add(
        self, x_BTD: Tensor, *args: Any, residual_BTD: Tensor | None = None, normed: bool = False, inplace: bool = False
    ) -> Tensor:
        """The residual after this branch was added to it; `inplace`: nobody reads the residual as it was again.

        In a serial block x is the residual. Of branches in parallel, which are added to another one, the block owns what
        follows the last add; `normed`: x went through the norm on the input already.

        The body gets norm and residual, so that it may fuse them with its products; not one that somebody else put
        there, or hooked: it reads and answers what it always did.
        """
        parts = self._modules
        body, norm = parts["body"], None if normed else parts.get("inner")
        after = parts.get("after") if residual_BTD is None else None
        residual_BTD = x_BTD if residual_BTD is None else residual_BTD
        hooked = body._forward_hooks or body._forward_pre_hooks or GLOBAL_HOOKS or GLOBAL_PRE_HOOKS
        if hooked or not isinstance(body, FusedInputs):
            y_BTD = body(x_BTD if norm is None else norm(x_BTD), *args)
            x_BTD = residual_BTD + (y_BTD if self.bare else self.answer(y_BTD))
        elif self.bare:
            x_BTD = body(x_BTD, *args, norm=norm, residual_BTD=residual_BTD, inplace=inplace)
        else:
            x_BTD = residual_BTD + self.answer(body(x_BTD, *args, norm=norm))
        return x_BTD if after is None else after(x_BTD)

    def answer(self, y_BTD: Tensor) -> Tensor:
        """What the body's result adds to the residual."""
        if self.outer is not None:
            y_BTD = self.outer(y_BTD)
        if self.dropout > 0:
            y_BTD = F.dropout(y_BTD, self.dropout, self.training)
        return y_BTD if self.scale == 1.0 else y_BTD * self.scale


class Coupling(NamedTuple):
    """A branch of a reversible block: it reads one of the two streams and is added to the other."""

    onto: int
    """Which stream it is added to: 0 or 1."""
    branch: Branch
    args: tuple[Any, ...]
    """What it reads beside the stream."""


def couple(couplings: Iterable[Coupling], streams: Streams) -> Streams:
    """Both streams after some branches of a reversible stack."""
    x = list(streams)
    for onto, branch, args in couplings:
        x[onto] = x[onto] + branch(x[1 - onto], *args)
    return x[0], x[1]


class Block(nn.Module):
    """Attention, cross-attention if the stack has an encoder to read, and a feed-forward."""

    _modules: dict[str, Any]

    def __init__(self, layer: Layer, dims: Dims, *, index: int, cross: bool) -> None:
        super().__init__()
        attention = attention_body(layer.attention, dims, layer.position, layer=index)
        self.attention = Branch(attention, layer, "attention", dims.width)
        self.cross: Branch | None = None
        if cross:
            position = layer.position if layer.attention.cross_position else NoPosition()
            body = attention_body(layer.attention, dims, position, layer=index, cross=True)
            self.cross = Branch(body, layer, "cross", dims.width)
        net = MoE(layer.ffn, dims) if isinstance(layer.ffn, Moe) else FeedForwardNet(layer.ffn, dims)
        self.ffn = Branch(net, layer, "ffn", dims.width)
        self.routes = layer.ffn.routes
        self.serial = layer.block.wiring == "serial"
        self.wiring = layer.block.wiring
        self.wrapper: Callable[..., Any] | None = None
        """How `compute` is run, given the block and its arguments, if not plainly: recomputed, compiled. What is compiled
        has the wrapper that it was compiled from as `plain`.
        """

    def forward(self, x_BTD: Any, metadata: AttentionMetadata, *more: Any) -> Any:
        """See `compute`."""
        if self.wrapper is not None and self.training:
            return self.wrapper(self, x_BTD, metadata, *more)
        return self.compute(x_BTD, metadata, *more)

    def compute(
        self,
        x_BTD: Any,
        metadata: AttentionMetadata,
        cross_metadata: AttentionMetadata | None = None,
        encoder_BSD: Tensor | None = None,
        return_router: bool = False,
    ) -> Any:
        """The residual after this block; of a reversible block both streams, given and answered. With `return_router` also
        the router's logits and the experts that it chose.
        """
        router_output: RouterOutput = []
        ffn_args = (metadata, router_output) if self.routes else ()
        if self.serial:
            branches = self._modules
            x_BTD = branches["attention"].residual_add(x_BTD, metadata)
            if self.cross is not None:
                x_BTD = self.cross.residual_add(x_BTD, cross_metadata, encoder_BSD)
            # What the first branch made is nobody else's.
            x_BTD = branches["ffn"].residual_add(x_BTD, *ffn_args, inplace=True)
        elif self.wiring == "reversible":
            if isinstance(x_BTD, Tensor):
                raise TypeError("a reversible block runs two streams: give both")
            x_BTD = couple(self.couplings(metadata, cross_metadata, encoder_BSD), x_BTD)
        else:
            # All read the residual as it came. The attention branch owns the norm on it and the one after the last add.
            mix, ffn = self.attention, self.ffn
            normed_BTD = x_BTD if mix.inner is None else mix.inner(x_BTD)
            total = mix.residual_add(normed_BTD, metadata, residual_BTD=x_BTD, normed=True)
            if self.cross is not None:
                read = normed_BTD if self.cross.inner is None else x_BTD
                total = self.cross.residual_add(read, cross_metadata, encoder_BSD, residual_BTD=total)
            read = normed_BTD if ffn.inner is None else x_BTD
            total = ffn.residual_add(read, *ffn_args, residual_BTD=total, inplace=True)
            x_BTD = total if mix.after is None else mix.after(total)
        # As values and not left in a list that was given: what is recomputed or compiled may change nothing else.
        return (x_BTD, *router_output[0]) if return_router else x_BTD

    def couplings(
        self, metadata: AttentionMetadata, cross_metadata: AttentionMetadata | None, encoder_BSD: Tensor | None
    ) -> list[Coupling]:
        """The branches of a reversible block in their order: the first is added to stream 0, the next to 1, and so on."""
        reads: list[tuple[Branch, tuple[Any, ...]]] = [(self.attention, (metadata,))]
        if self.cross is not None:
            reads.append((self.cross, (cross_metadata, encoder_BSD)))
        reads.append((self.ffn, (metadata, None) if self.routes else ()))
        return [Coupling(i % 2, branch, args) for i, (branch, args) in enumerate(reads)]

    def __getstate__(self) -> Any:
        # Compiled code belongs to one process and is counted for one model: a copy and an unpickled block run what was
        # compiled, uncompiled, until somebody compiles them.
        return {**super().__getstate__(), "wrapper": getattr(self.wrapper, "plain", self.wrapper)}

    def extra_repr(self) -> str:
        return self.wiring
