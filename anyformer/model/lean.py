"""The same model with fewer and larger operations, for passes that learn nothing (see `parts.merged`)."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from anyformer.kernels import few
from anyformer.kernels.few import NormTerms
from anyformer.model import paged_step
from anyformer.model.block import Block, Branch
from anyformer.model.models import Model
from anyformer.model.paged_step import PagedStep
from anyformer.model.stack import Stack
from anyformer.parts import merged
from anyformer.parts.attention import Attention, temperature
from anyformer.parts.merged import Merged
from anyformer.parts.mixture import Heard, Mixture
from anyformer.parts.norm import Norm
from anyformer.parts.quantised import QuantisedLinear, Slice
from anyformer.parts.scene import Scene

Product = Merged | QuantisedLinear

_shells: WeakKeyDictionary[Model, tuple[Model, list[tuple[nn.Module, bool]]]] = WeakKeyDictionary()
"""By model: its lean shell, and what that was made of."""
_merging = threading.Lock()


def lean(model: Model) -> Model:
    """A model that shares all modules and parameters with `model` and gives the same answers.

    Blocks that learn (in training mode, or with gradients) or have hooks run as they are, and so do maps whose weights
    don't lie side by side. Nothing of `model` is changed, and no parameter is moved. Cheap if nothing has changed since
    the last call; after `.to(...)`, or an exchange of modules, it is made again.
    """
    if any(True for _ in lean_blocks(model)):
        return model
    # Two threads that generate may both come here first.
    with _merging:
        made_of = _made_of(model)
        kept, seen = _shells.get(model, (None, None))
        if kept is not None and seen == made_of and all(block.holds() for block in lean_blocks(kept)):
            kept.training = model.training
            return kept
        shell = copy.copy(model)
        shell._modules = dict(model._modules)
        for name, stack in model._modules.items():
            # A reversible stack runs two streams, branch by branch, and not its blocks.
            if isinstance(stack, Stack) and not stack.reversible:
                shell._modules[name] = _lean_stack(stack)
        _shells[model] = shell, made_of
    return shell


def lean_blocks(model: Model) -> Iterator[LeanBlock]:
    """Those of all stacks."""
    for stack in model._modules.values():
        if isinstance(stack, Stack):
            yield from (block for block in stack.blocks if isinstance(block, LeanBlock))


class LeanBlock(Block):
    """The branches of a block, each with one product for all that reads the same input."""

    def __init__(self, plain: Block) -> None:
        nn.Module.__init__(self)
        # The same modules under the same names: parameters are found where they were.
        self._modules = plain._modules
        self.serial, self.wiring, self.training = plain.serial, plain.wiring, plain.training
        self.routes = plain.routes
        if plain.cross is None:
            self.cross = None
        object.__setattr__(self, "plain", plain)
        why, mix = {}, plain.attention.body
        why["attention"] = why_not_attention(mix)
        why["ffn"] = why_not(plain.ffn.body)
        self.refusals: dict[str, str] = {name: reason for name, reason in why.items() if reason is not None}
        """Why a branch runs as it is, by name."""
        self.mix = LeanAttention(plain.attention) if why["attention"] is None else None
        self.feed = LeanFeed(plain.ffn) if why["ffn"] is None else None
        self.quantised = any(isinstance(part.read, QuantisedLinear) for part in (self.mix, self.feed) if part)

    def holds(self) -> bool:
        """Whether the parameters still are where they were merged."""
        return all(part is None or (part.read.holds() and part.back.holds()) for part in (self.mix, self.feed))

    def forward(
        self,
        x_BTD: Any,
        scene: Scene,
        cross_scene: Scene | None = None,
        memory_BSD: Tensor | None = None,
        listen: bool = False,
    ) -> Any:
        """The residual after this block."""
        attention: Any = self._modules["attention"]
        if attention.training or (torch.is_grad_enabled() and not self.quantised):
            plain: Any = self.__dict__["plain"]
            return plain(x_BTD, scene, cross_scene, memory_BSD, listen)
        return self.compute(x_BTD, scene, cross_scene, memory_BSD, listen)

    def residual(
        self, x_BTD: Any, scene: Scene, cross_scene: Scene | None, memory_BSD: Tensor | None, heard: Heard
    ) -> Any:
        own: Any = self._modules
        attention, ffn = own["attention"], own["ffn"]
        mix, feed, cross = self.mix, self.feed, own.get("cross")
        if self.serial:
            if mix is None:
                x_BTD = attention.onto(x_BTD, scene)
            else:
                x_BTD = after(attention, mix(x_BTD, mix.norm, x_BTD, scene, over=True))
            if cross is not None:
                x_BTD = cross.onto(x_BTD, cross_scene, memory_BSD)
            if feed is None or not feed.takes(x_BTD):
                return ffn.onto(x_BTD, *self.told(scene, heard))
            return after(ffn, feed(x_BTD, feed.norm, x_BTD, over=True))
        # In parallel the attention branch owns what is shared: the norm on the input and the one after the add.
        seen = x_BTD if attention.inner is None else attention.inner(x_BTD)
        plainly = mix is None
        total = x_BTD + attention.answer(attention.body(seen, scene)) if plainly else mix(seen, None, x_BTD, scene)
        if cross is not None:
            read = seen if cross.inner is None else cross.inner(x_BTD)
            total = total + cross.answer(cross.body(read, cross_scene, memory_BSD))
        if feed is None or not feed.takes(x_BTD):
            read = seen if ffn.inner is None else ffn.inner(x_BTD)
            total = total + ffn.answer(ffn.body(read, *self.told(scene, heard)))
        else:
            total = feed(seen, None, total) if feed.norm is None else feed(x_BTD, feed.norm, total)
        return after(attention, total)


class LeanAttention:
    """Self-attention between one product and another. Queries and keys are turned together where they may be."""

    def __init__(self, branch: Branch) -> None:
        body: Any = branch.body
        self.body: Attention = body
        self.branch, self.norm = branch, terms_of(branch.inner)
        self.read, self.back = product(body.inputs()), product([body.o])
        spec, dims = body.spec, body.dims
        self.heads, self.keys, self.dim = dims.heads, 0 if body.k is None else dims.kv_heads, dims.head_dim
        self.sizes = (self.heads, self.keys, dims.kv_heads)
        """Heads of queries, keys and values."""
        self.together = spec.qk_norm is None and spec.v_norm is None and not body.turns_values
        """Whether nothing but a rotation stands between the product and the heads."""
        self.turns = body.turns and body.early
        self.paged = PagedStep(body) if paged_step.why_not(body) is None else None
        """The way of few tokens whose keys lie in pages, if it has one."""

    def __call__(
        self, x_BTD: Tensor, norm: NormTerms | None, residual_BTD: Tensor, scene: Scene, *, over: bool = False
    ) -> Tensor:
        """The residual with what attention adds to it; `over`: it may be written over, as nobody reads it again."""
        body = self.body
        batch, tokens, width = x_BTD.shape
        y_NO = self.read.read(x_BTD.reshape(-1, width), norm)
        if scene.pages is not None and self.paged is not None:
            out = self.paged(y_NO.view(batch, tokens, -1), scene)
            return closed(self.branch, self.back, out.reshape(batch * tokens, -1), residual_BTD, over=over)
        q, k, v = (self.split if self.together else self.parted)(y_NO.view(batch, tokens, -1), scene)
        if body.spec.temperature is not None:
            q = q * temperature(body.spec.temperature, scene.sight.q.pos, q)
        if k is None:
            k = q
        own: list[Tensor] = []
        if scene.cache is not None and body.early:
            k, v, *own = body.keep(scene.cache, scene, k, v)
        if scene.kernel is None:
            out = body.mix_otherwise(q, k, v, scene)
        else:
            out = body.mix(q, k, v, scene, scene.sight, scene.kernel, own)
        return closed(self.branch, self.back, out.reshape(batch * tokens, -1), residual_BTD, over=over)

    def split(self, y_BTO: Tensor, scene: Scene) -> tuple[Tensor, Tensor | None, Tensor]:
        """Queries, keys (None: the queries) and values, turned in one go."""
        body, both = self.body, self.heads + self.keys
        if body.spec.clip_qkv is not None:
            y_BTO = y_BTO.clamp(-body.spec.clip_qkv, body.spec.clip_qkv)
        y = y_BTO.view(*y_BTO.shape[:2], -1, self.dim)
        if not self.turns or scene.q_turn is None:
            q, k, v = y.split_with_sizes(self.sizes, 2)
            return q, k if self.keys else None, v
        qk, v = y.split_with_sizes((both, self.sizes[2]), 2)
        qk = body.turned(qk, scene.q_turn)
        if not self.keys:
            return qk, None, v
        q, k = qk.split_with_sizes(self.sizes[:2], 2)
        return q, k, v

    def parted(self, y_BTO: Tensor, scene: Scene) -> tuple[Tensor, Tensor | None, Tensor]:
        """The same where norms or turned values come between."""
        body, heads, both = self.body, self.heads * self.dim, (self.heads + self.keys) * self.dim
        turn = scene.q_turn if body.early else None
        v = body.heads_of(y_BTO[..., both:], AS_IS, body.v_norm, scene.k_turn if body.turns_values else None)
        q = body.heads_of(y_BTO[..., :heads], AS_IS, body.q_norm, turn)
        return q, body.heads_of(y_BTO[..., heads:both], AS_IS, body.k_norm, turn) if self.keys else None, v


class LeanFeed:
    """The feed-forward between one product and another."""

    def __init__(self, branch: Branch) -> None:
        body: Any = branch.body
        self.branch, self.norm, self.leaf = branch, terms_of(branch.inner), body.leaf
        self.read, self.back = product(body.inputs()), product([body.down])

    def takes(self, x_BTD: Tensor) -> bool:
        """Whether no more tokens come than may go through the network at once."""
        return self.leaf.chunk is None or x_BTD.shape[0] * x_BTD.shape[1] <= self.leaf.chunk

    def __call__(self, x_BTD: Tensor, norm: NormTerms | None, residual_BTD: Tensor, *, over: bool = False) -> Tensor:
        """The residual with what the network adds to it; `over`: it may be written over."""
        x_ND, read = x_BTD.reshape(-1, x_BTD.shape[-1]), self.read
        if isinstance(read, Merged):
            inner = few.norm_linear_combine(x_ND, norm, read.weight_OI, read.bias_O, self.leaf)
        else:
            inner = self.leaf.combine(*read.read(x_ND, norm).chunk(len(self.leaf.inputs), -1))
        return closed(self.branch, self.back, inner, residual_BTD, over=over)


AS_IS: Any = nn.Identity()


def closed(branch: Branch, back: Product, x_NI: Tensor, residual_BTD: Tensor, *, over: bool) -> Tensor:
    """The residual with what a branch adds to it, from the input of its last map."""
    shape = residual_BTD.shape
    if branch.bare:
        return back.add(x_NI, residual_BTD.reshape(-1, shape[-1]), over=over).view(shape)
    return residual_BTD + branch.answer(back.read(x_NI, None)).view(shape)


def after(branch: Branch, x_BTD: Tensor) -> Tensor:
    """The residual after the norm that follows the add, if there is one."""
    norm: Any = branch._modules.get("after")
    return x_BTD if norm is None else norm(x_BTD)


def terms_of(norm: Norm | None) -> NormTerms | None:
    """As kernels read a norm: its parameters are looked up at each call."""
    own: Any = {} if norm is None else norm._parameters
    return None if norm is None else NormTerms(norm.leaf, own)


def product(maps: list[nn.Module]) -> Product:
    """One product for all of these maps, which `why_not` has passed."""
    first = maps[0]
    if isinstance(first, Slice):
        return first.whole
    linear: Any = maps
    return first if isinstance(first, QuantisedLinear) else Merged(linear)


def why_not(body: Any) -> str | None:
    """Why an attention or a feed-forward stays as it is."""
    if isinstance(body, Mixture):
        return "each of its tokens goes to experts of its own"
    for maps in (body.inputs(), [body.o if isinstance(body, Attention) else body.down]):
        if not all(isinstance(m, QuantisedLinear | Slice) for m in maps):
            reason = merged.why_not(maps)
            if reason is not None:
                return reason
    return None


def why_not_attention(body: Any) -> str | None:
    """The same for an attention."""
    if body.spec.global_projections:
        return "its global tokens have projections of their own"
    return why_not(body)


class LeanStack(Stack):
    """A stack of lean blocks. Whether it learns is what the plain stack says at the time, not when this was made."""

    def __init__(self, plain: Stack) -> None:
        self.__dict__.update(plain.__dict__)
        self.__dict__["plain"] = plain

    def forward(self, *given: Any, **named: Any) -> Tensor:
        """What the plain stack gives."""
        learns = self.__dict__["plain"].training
        if self.training is not learns:
            self.training = learns
        return super().forward(*given, **named)


def _lean_stack(stack: Stack) -> Stack:
    shell = LeanStack(stack)
    # What somebody else put there, or listens to, runs as it is.
    blocks: Any = [
        LeanBlock(block) if isinstance(block, Block) and not any(map(_heard, block.modules())) else block
        for block in stack.blocks
    ]
    shell._modules = {**stack._modules, "blocks": nn.ModuleList(blocks)}
    return shell


def _made_of(model: Model) -> list[tuple[nn.Module, bool]]:
    """The modules of all blocks, and to which of them somebody listens."""
    stacks = [stack for stack in model._modules.values() if isinstance(stack, Stack)]
    return [(module, _heard(module)) for stack in stacks for module in stack.blocks.modules()]


def _heard(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)
