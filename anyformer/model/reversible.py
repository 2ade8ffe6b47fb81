"""A reversible stack (Gomez et al. 2017; Kitaev et al. 2020): two streams, each changed only by what the other holds.

x1 <- x1 + attention(x2), x2 <- x2 + ffn(x1). What was added can be computed again and subtracted, so the backward pass
finds every input from the last output, and nothing but the last streams is kept, however many blocks there are.
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils._pytree import tree_leaves, tree_map_only

from anyformer.model.block import Block, Branch, Coupling, Streams
from anyformer.parts.attention_metadata import AttentionMetadata
from anyformer.parts.ffn import FeedForwardNet
from anyformer.parts.replay import ReplayLog, RngState


def run_reversible(
    blocks: Iterable[nn.Module],
    streams: Streams,
    metadata: Sequence[AttentionMetadata],
    cross_metadata: Sequence[AttentionMetadata | None],
    encoder_BSD: Tensor | None = None,
    extra: Sequence[Tensor] = (),
) -> Streams:
    """Both streams after the last block. There is one metadata for each block; `extra` holds the parameters outside of
    the blocks that layers read.

    A compiled pass, and one without gradients, is the plain loop: a compiler decides by itself what it recomputes.
    """
    each = [(cast(Block, b), (m, x, encoder_BSD)) for b, m, x in zip(blocks, metadata, cross_metadata, strict=True)]
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        couplings = [coupling for block, args in each for coupling in block.couplings(*args)]
        found = (t for c in couplings for t in (*c.branch.parameters(), *tensors(c.args)))
        read = list({id(tensor): tensor for tensor in (*extra, *found)}.values())
        if any(tensor.requires_grad for tensor in (*streams, *read)):
            run: Any = Reversible.apply
            return run(Work(couplings, read, streams[0].device), *streams, *read)
    for block, args in each:
        # As modules are called, so that hooks see them.
        streams = block(streams, *args)
    return streams


def replays_dropout(model: nn.Module) -> bool:
    """Whether a backward pass redraws dropout masks: such a model is trained in one thread, as all share a generator."""
    for module in model.modules():
        if isinstance(module, Block) and (module.wiring == "reversible" or module.wrapper is not None):
            if any(part.drops for part in module.children() if isinstance(part, Branch)):
                return True
        elif isinstance(module, FeedForwardNet) and module.leaf.chunk is not None and module.leaf.dropout > 0:
            return True
    return False


class Work:
    """The couplings of one pass, where they find the tensors that they read, and what they decided and drew."""

    def __init__(self, couplings: list[Coupling], read: Sequence[Tensor], device: torch.device) -> None:
        self.couplings = couplings
        # Copies, so that train() or eval() between the two passes changes nothing.
        self.twins = [replica(c.branch, {}) for c in couplings]
        place = {id(tensor): i for i, tensor in enumerate(read)}
        self.named = [
            {name: place[id(p)] for name, p in c.branch.named_parameters(remove_duplicate=False)} for c in couplings
        ]
        """By coupling, where the parameters of its branch stand in `read`."""
        self.given = [{id(t): place[id(t)] for t in tensors(c.args)} for c in couplings]
        """By coupling, where the tensors of its arguments stand in `read`."""
        self.decisions = [ReplayLog() for _ in couplings]
        self.draws = [RngState(device) if c.branch.drops and c.branch.training else None for c in couplings]
        self.precision = [
            (kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))
            for kind in dict.fromkeys(("cpu", device.type))
            if torch.amp.is_autocast_available(kind)
        ]

    @contextlib.contextmanager
    def conditions(self, i: int) -> Iterator[None]:
        """What holds whenever a branch is computed: gradients recorded, the same precision, the same random numbers.

        A graph is recorded in the forward pass too, for a moment: some kernels go another way without one, and then
        neither the last digits nor the dropout mask would be those of the backward pass.
        """
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.enable_grad())
            for kind, dtype, enabled in self.precision:
                if enabled or torch.is_autocast_enabled(kind):
                    # A cast that outlives the branch would keep one weight of every block.
                    stack.enter_context(torch.autocast(kind, dtype, enabled, cache_enabled=False))
            draws = self.draws[i]
            if draws is not None:
                stack.enter_context(draws.same())
            yield

    def undo(
        self, i: int, x_BTD: Tensor, upstream_BTD: Tensor, read: Sequence[Tensor], wanted: Sequence[bool]
    ) -> tuple[Tensor, Tensor | None, dict[int, Tensor | None]]:
        """What coupling `i` had added, and its gradients: to the stream it reads, and by place to what else it reads."""
        args, named, given = self.couplings[i].args, self.named[i], self.given[i]
        # Leaves of its own: a graph that led to the parameters themselves would run their hooks once more, and modules
        # may be shared with other threads, so they are not touched.
        leaf = {j: apart(read[j], wanted[j]) for j in (*named.values(), *given.values())}
        twin = replica(self.twins[i], {name: leaf[j] for name, j in named.items()})
        inputs = staged(args, {key: leaf[j] for key, j in given.items()}, self.decisions[i].replay())
        source_BTD = apart(x_BTD)
        with self.conditions(i):
            y_BTD = twin(source_BTD, *inputs)
        asked = [j for j in leaf if wanted[j]]
        found: Sequence[Tensor | None] = [None] * (1 + len(asked))
        if y_BTD.requires_grad:
            into = [source_BTD, *(leaf[j] for j in asked)]
            found = torch.autograd.grad(y_BTD, into, upstream_BTD.to(y_BTD.dtype), allow_unused=True)
        return y_BTD.detach(), found[0], dict(zip(asked, found[1:], strict=True))


class Reversible(torch.autograd.Function):
    """All couplings of a stack as one step of autograd."""

    @staticmethod
    def forward(ctx: Any, work: Work, x1: Tensor, x2: Tensor, *read: Tensor) -> Streams:
        x = [x1.detach(), x2.detach()]
        for i, (onto, branch, args) in enumerate(work.couplings):
            with work.conditions(i):
                y_BTD = branch(apart(x[1 - onto]), *staged(args, {}, work.decisions[i]))
            x[onto] = x[onto] + y_BTD.detach()
        ctx.work = work
        ctx.dtypes = x1.dtype, x2.dtype
        ctx.save_for_backward(*x, *read)
        return x[0], x[1]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return unwind(ctx, *grads)


@once_differentiable
def unwind(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
    """The gradients, block by block from the last. They have none of their own."""
    work: Work = ctx.work
    kept: tuple[Tensor, ...] = ctx.saved_tensors
    x, read, g = list(kept[:2]), kept[2:], list(grads)
    total: dict[int, Tensor] = {}
    for i in reversed(range(len(work.couplings))):
        onto = work.couplings[i].onto
        added, to_source, found = work.undo(i, x[1 - onto], g[onto], read, ctx.needs_input_grad[3:])
        x[onto] = x[onto] - added
        if to_source is not None:
            g[1 - onto] = g[1 - onto] + to_source
        for j, gradient in found.items():
            if gradient is not None:
                total[j] = total[j] + gradient if j in total else gradient
    streams = [part.to(dtype) for part, dtype in zip(g, ctx.dtypes, strict=True)]
    return None, *streams, *[total.get(j) for j in range(len(read))]


def apart(tensor: Tensor, requires_grad: bool = True) -> Tensor:
    """The same numbers as a leaf of a graph of their own."""
    return tensor.detach().requires_grad_(requires_grad)


def replica(module: Any, parameters: Mapping[str, Tensor], prefix: str = "") -> Any:
    """A module that computes the same with these parameters; the original stays as it is."""
    twin = module.__new__(type(module))
    twin.__dict__ = module.__dict__ | {
        "_parameters": {name: parameters.get(prefix + name, p) for name, p in module._parameters.items()},
        "_modules": {
            name: child if child is None else replica(child, parameters, f"{prefix}{name}.")
            for name, child in module._modules.items()
        },
    }
    return twin


def tensors(args: tuple[Any, ...]) -> list[Tensor]:
    """The tensors with a gradient among a branch's arguments."""
    found = tree_leaves([vars(arg) if isinstance(arg, AttentionMetadata) else arg for arg in args])
    return [each for each in found if isinstance(each, Tensor) and each.requires_grad]


def staged(args: tuple[Any, ...], leaves: Mapping[int, Tensor], decisions: ReplayLog) -> list[Any]:
    """A branch's arguments with other tensors in their place, and with metadata that record or replay decisions."""

    def swapped(value: Any) -> Any:
        return tree_map_only(Tensor, lambda tensor: leaves.get(id(tensor), tensor), value)

    return [
        AttentionMetadata(**swapped(vars(arg)) | {"decisions": decisions})
        if isinstance(arg, AttentionMetadata)
        else swapped(arg)
        for arg in args
    ]
