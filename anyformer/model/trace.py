"""`model.trace(...)`: one pass, and what it showed: residuals, attention weights and predictions of any layer, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from anyformer.errors import InputError, nearest
from anyformer.model.model import Model
from anyformer.model.output import Output
from anyformer.model.trace_names import ALL, EMBED, LOGITS, Sites, Wanted, refuse
from anyformer.model.trace_recorder import Watch
from anyformer.parts.heads import pool_hidden


class Trace(Mapping[str, Tensor]):
    """Tensors of one pass by their names, and its output. See docs/trace.md for the names.

    It is a record without gradients: later changes of the weights reach nothing but `lens`.
    """

    def __init__(
        self,
        output: Output,
        tensors: Mapping[str, Tensor],
        heads: Mapping[str, tuple[int, ...]],
        read: Callable[[list[Tensor]], Tensor],
        sites: Sites,
    ) -> None:
        self.output = output
        """What `model(...)` gives for the same arguments, in eval mode."""
        self.heads = dict(heads)
        """The heads of each `*.probs`, in the order in which it holds them."""
        self._tensors, self._read, self._sites = dict(tensors), read, sites

    def lens(self, layer: int | str) -> Tensor:
        """The logits after a layer (or `"embed"`), computed now from its residual, for who can't keep those of all layers.

        See `docs/trace.md` for what stands between the residual and the head.
        """
        problems: list[str] = []
        names = self._sites.pick_logits([layer], problems)
        refuse(problems)
        with torch.no_grad():
            return self._read([self[each] for each in after(names[0], self._sites)])

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._tensors:
            raise KeyError(f"{name!r} was not traced{nearest(str(name), self._tensors)}")
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __repr__(self) -> str:
        lines = [f"  {name}  {tuple(tensor.shape)}" for name, tensor in self._tensors.items()]
        return "\n".join(["Trace of", *lines])


def trace(
    model: Model, given: Mapping[str, Any], *, residuals: Wanted = None, attention: Any = None, logits: Wanted = None
) -> Trace:
    """See `Model.trace`."""
    sites, problems = Sites(model.spec), []
    if given.get("cache") is not None:
        problems.append("cache: a trace reads the whole text in one pass; leave the cache out")
    kept = sites.pick_residuals(residuals, problems)
    heads = sites.pick_heads(attention, problems)
    predicted = sites.pick_logits(logits, problems)
    refuse(problems)
    behind = {name: after(name, sites) for name in predicted}
    watch = Watch(model, kept.union(*behind.values()), heads)

    def read(streams: list[Tensor]) -> Tensor:
        return lens(watch, sites.last, streams, given.get("token_types"))

    with torch.no_grad():
        output, found = watch.model(**given), watch.found
        for name, streams in behind.items():
            found[name] = read([found[each] for each in streams])
    asked = set() if residuals == ALL else kept
    asked = asked if attention == ALL else asked | heads.keys()
    missed = sorted(name for name in asked if name not in found)
    if missed:
        # Nothing else can keep a layer from running.
        raise InputError(f"trace: {', '.join(missed)}: the encoder did not run, as encoder_states were given")
    order = [*sites.residuals, *sites.attention, *sites.logits]
    shown = kept | heads.keys() | set(predicted)
    tensors = {name: found[name] for name in order if name in shown and name in found}
    return Trace(output, tensors, {name: some for name, some in heads.items() if name in found}, read, sites)


def after(name: str, sites: Sites) -> list[str]:
    """The residuals whose prediction a name means."""
    layer = name.removeprefix(f"{sites.last}.").removesuffix(LOGITS)
    return [f"{sites.last}.{EMBED}"] if layer == EMBED else sites.of_layer[int(layer)]


def lens(watch: Watch, name: str, streams: list[Tensor], types_BT: Tensor | None) -> Tensor:
    """What the model would answer if the residual after some layer were that after the last: merged where there are two
    streams, through the final norm if there is one, and through the head.
    """
    model, stack = watch.model, getattr(watch.model, name)
    hidden = pool_hidden(model.spec.head, stack.finish(streams), watch.layouts[name].valid_BT, types_BT)
    head: Any = model.head
    return head(hidden)
