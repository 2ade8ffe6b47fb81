"""Rules across axes. Each notes problems; none raises. A rule that would read something already known to be
wrong stays silent, so that one mistake gives one line.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from anyformer.errors import nearest
from anyformer.specs.axes import FeedForward, Position
from anyformer.specs.codec import Problems, fields_of
from anyformer.specs.embed_head import Classifier, PatchEmbed, SequenceHead, TokenEmbed, TokenHead
from anyformer.specs.findings import Finding, Findings, above_zero, at_least, factor, leaf, share, size
from anyformer.specs.layer import Layer
from anyformer.specs.layer_rules import check_layer
from anyformer.specs.stacks import Origin, Resolved, Stack, locate

if TYPE_CHECKING:
    from anyformer.specs.model import ModelSpec


def check_model(spec: ModelSpec, problems: Problems) -> None:
    """Everything that does not depend on a single layer."""
    for rule in (_sizes, _topology, _source, _leaves, _added, _tokens, _patches, _head, _loss):
        _note(problems, rule(spec))


def check_stacks(spec: ModelSpec, found: Sequence[Resolved], problems: Problems) -> None:
    """Every distinct layer of each stack, what its layers must agree on, and what needs a layer of some kind."""
    for stack, origins in found:
        for layer, origin in dict.fromkeys(zip(stack.layers, origins, strict=True)):
            _note(problems, check_layer(spec, stack, layer), origin)
        _note(problems, _agreement(spec, stack))
    _note(problems, _routers(spec, [stack for stack, _ in found]))


def _note(problems: Problems, findings: Findings, origin: Origin = ()) -> None:
    before = Problems(problems.found)
    for path, message, reads in findings:
        # Two rules of one set may speak about the same path, but not about what another of them found wrong.
        read = [locate(origin, other) for other in reads]
        if not before.touches(locate(origin, path)) and not problems.touches(*read):
            problems.add(locate(origin, path, *reads), message)


def _sizes(spec: ModelSpec) -> Findings:
    yield from size("width", spec.width)
    yield from at_least("context", spec.context, 1)
    yield from at_least("vocab", spec.vocab, 0)
    ids = {"ids.pad": spec.ids.pad, "ids.bos": spec.ids.bos, "ids.start": spec.ids.start}
    ids |= {f"ids.eos[{i}]": eos for i, eos in enumerate(spec.ids.eos)}
    for path, value in ids.items():
        if value is not None and not 0 <= value < spec.vocab:
            given = f"ids run from 0 to vocab - 1 = {spec.vocab - 1}" if spec.vocab > 0 else "vocab is 0"
            yield Finding(path, f"{value} is not a token; {given}", ("vocab",))


def _source(spec: ModelSpec) -> Findings:
    """A vocabulary of the source's own."""
    own, ids = spec.source_vocab, {"ids.source_pad": spec.ids.source_pad, "ids.source_eos": spec.ids.source_eos}
    if own is None:
        for path, value in ids.items():
            if value is not None:
                why = "has no effect: the source has no vocabulary of its own; set source_vocab, or leave it out"
                yield Finding(path, why, ("source_vocab",))
        return
    yield from at_least("source_vocab", own, 1)
    if spec.topology != "encoder-decoder":
        why = f"has no effect: topology {spec.topology!r} has one stack, which reads `vocab`; leave it out"
        yield Finding("source_vocab", why, ("topology",))
    elif isinstance(spec.embed, TokenEmbed) and spec.embed.shared:
        why = (
            f"true is one table for both stacks, but the source has its own vocabulary (source_vocab = {own}) beside the "
            f"target's (vocab = {spec.vocab}); set embed.shared = false, or leave out source_vocab"
        )
        yield Finding("embed.shared", why, ("source_vocab", "topology", "embed.kind"))
    for path, value in ids.items():
        if value is not None and not 0 <= value < own:
            why = f"{value} is not a token of the source; its ids run from 0 to source_vocab - 1 = {own - 1}"
            yield Finding(path, why, ("source_vocab",))
    if spec.ids.source_pad is None and spec.ids.pad is not None and spec.ids.pad >= own:
        why = f"is missing: ids.pad = {spec.ids.pad} is not among the {own} tokens of the source"
        yield Finding("ids.source_pad", f"{why}; say what fills its rows", ("source_vocab", "ids.pad"))


def _topology(spec: ModelSpec) -> Findings:
    if spec.topology != "encoder-decoder":
        for name, over in (("encoder", spec.encoder), ("decoder", spec.decoder)):
            if over.items:
                why = f"overrides a stack of an encoder-decoder, but topology is {spec.topology!r}"
                yield Finding(name, why, ("topology",))
    elif not isinstance(spec.embed, TokenEmbed):
        why = f"{spec.embed.kind!r} feeds an encoder or a decoder; an encoder-decoder reads 'tokens'"
        yield Finding("embed.kind", why, ("topology",))


def _leaves(spec: ModelSpec) -> Findings:
    for name, node in (("embed", spec.embed), ("head", spec.head), ("init", spec.init)):
        yield from leaf(name, node)
        yield from share(f"{name}.dropout", getattr(node, "dropout", 0.0))


def _added(spec: ModelSpec) -> Findings:
    """Positions that the embeddings have beside those of the layers."""
    position = spec.embed.position
    if position is None:
        return
    yield from leaf("embed.position", position)
    if not position.overrides("embed") or position.acts():
        fits = ", ".join(k for k in Position.kinds() if (p := Position.named(k)) and p.overrides("embed"))
        yield Finding("embed.position.kind", f"{position.kind!r} is not added to embeddings; pick one of {fits}")


def _tokens(spec: ModelSpec) -> Findings:
    embed = spec.embed
    if (isinstance(embed, TokenEmbed) or spec.head.predicts_tokens) and spec.vocab == 0:
        why = "is missing; a model that reads or predicts tokens needs their number"
        yield Finding("vocab", why, ("embed.kind", "head.kind"))
    if not isinstance(embed, TokenEmbed):
        return
    yield from size("embed.width", embed.width)
    yield from at_least("embed.token_types", embed.token_types, 0)
    yield from at_least("embed.task_types", embed.task_types, 0)
    if embed.width is None or embed.width == spec.width:
        for name, idle in (("project", embed.project == "first"), ("project_bias", not embed.project_bias)):
            if not idle:
                why = "has no effect: embed.width is the model's width, so nothing is projected"
                yield Finding(f"embed.{name}", why, ("embed.width", "width"))
    if not embed.shared and spec.topology != "encoder-decoder":
        yield Finding("embed.shared", f"has no effect: topology {spec.topology!r} has one stack", ("topology",))
    if embed.round_scale and embed.scale == 1:
        yield Finding("embed.round_scale", "has no effect: embed.scale is 1", ("embed.scale",))
    yield from factor("embed.scale", embed.scale, {"width": spec.width, "depth": spec.depth}, ("width", "depth"))


def _patches(spec: ModelSpec) -> Findings:
    embed = spec.embed
    if not isinstance(embed, PatchEmbed):
        return
    if spec.topology == "decoder":
        yield Finding("embed.kind", "'patches' come all at once, so topology must be 'encoder'", ("topology",))
    if embed.patch >= 1 and embed.tokens() > spec.context:
        why = f"{spec.context} is shorter than an image: {embed.tokens()} tokens"
        yield Finding("context", why, ("embed.image", "embed.patch"))


def _head(spec: ModelSpec) -> Findings:
    head, tokens_in = spec.head, isinstance(spec.embed, TokenEmbed)
    if head.kind == "pair" and (not tokens_in or spec.topology == "encoder-decoder"):
        why = "'pair' reads two texts by their token types: it needs embed.kind 'tokens' and one stack"
        yield Finding("head.kind", why, ("embed.kind", "topology"))
    for name in ("labels", "outputs"):
        yield from at_least(f"head.{name}", getattr(head, name, None), 1)
    if getattr(head, "pool", "") == "eos" and not (tokens_in and spec.ids.eos):
        why = "'eos' reads the state at the last eos of a row: it needs embed.kind 'tokens' and ids.eos"
        yield Finding("head.pool", why, ("ids.eos", "embed.kind"))
    if isinstance(head, Classifier) and head.dense and head.activation != "none":
        yield from _activation(head.activation)
    if not isinstance(head, TokenHead):
        return
    if head.tied and not tokens_in:
        yield Finding("head.tied", f"there is no token table to share: embed.kind is {spec.embed.kind!r}", ("embed",))
    yield from above_zero("head.softcap", head.softcap)
    if not head.adds_bias and not head.bias:
        yield Finding("head.adds_bias", "has no effect without head.bias", ("head.bias",))
    if not head.transform and not head.transform_bias:
        yield Finding("head.transform_bias", "has no effect without head.transform", ("head.transform",))
    if not head.transform and head.activation != TokenHead().activation:
        yield Finding("head.activation", "has no effect without head.transform", ("head.transform",))
    else:
        yield from _activation(head.activation)
    yield from factor("head.scale", head.scale, {"width": spec.width, "depth": spec.depth}, ("width", "depth"))


def _activation(name: str) -> Findings:
    """Whether a head has such an activation: the ungated feed-forward kinds double as them."""
    kinds = [k for k in FeedForward.kinds() if (ffn := FeedForward.named(k)) and len(ffn.inputs) == 1]
    if name not in kinds:
        yield Finding("head.activation", f"{name!r} is unknown{nearest(name, kinds)}")


def _loss(spec: ModelSpec) -> Findings:
    yield from at_least("loss.z", spec.loss.z, 0)
    yield from share("loss.label_smoothing", spec.loss.label_smoothing)
    for name in ("balance", "router_z"):
        yield from at_least(f"loss.{name}", getattr(spec.loss, name), 0)
    idle = {"none": ("z", "label_smoothing", "balance", "router_z"), "regression": ("z", "label_smoothing")}
    head, kind, by = spec.head, spec.head.kind, ("head.kind",)
    if isinstance(head, SequenceHead) and head.problem in ("multi", "regression"):
        kind, by = "regression", ("head.kind", "head.problem")
    for name in idle.get(kind, ()):
        if getattr(spec.loss, name):
            yield Finding(f"loss.{name}", f"has no effect on a {head.kind!r} head", by)


def _routers(spec: ModelSpec, stacks: Sequence[Stack]) -> Findings:
    """Whether the losses of routers have routers to act on."""
    layers = [layer for stack in stacks for layer in stack.layers if layer.ffn.routes]
    for name in ("balance", "router_z"):
        if not getattr(spec.loss, name):
            continue
        if not layers:
            why = "has no effect: no layer has a router; pick ffn.kind 'moe', or leave it out"
            yield Finding(f"loss.{name}", why, ("ffn", "layers"))
        elif any(layer.block.wiring == "reversible" for layer in layers):
            why = "can't be had with block.wiring 'reversible', which keeps nothing of a layer for a loss to read"
            yield Finding(f"loss.{name}", f"{why}; pick another wiring, or leave it out", ("block.wiring", "ffn"))


def _agreement(spec: ModelSpec, stack: Stack) -> Findings:
    positions = dict.fromkeys(layer.position for layer in stack.layers)
    if len(positions) > 1 and any(position.overrides("embed") for position in positions):
        names = ", ".join(sorted({position.kind for position in positions}))
        why = f"{names}: positions that are added to the embeddings must be the same in every layer"
        yield Finding("position", why, ("layers",))
    both = [position.kind for position in positions if position.overrides("embed")]
    if spec.embed.position is not None and both:
        why = f"position {both[0]!r} is added to the embeddings already; leave one of the two out"
        yield Finding("embed.position", why, ("position", "layers"))
    added = () if spec.embed.position is None else (spec.embed.position,)
    # A decoder may have fewer positions than its encoder (LED), but one of them must reach the whole context.
    others = [[layer.position.limit(spec.context) for layer in s.layers] for s in spec.stacks if s.name != stack.name]
    reached = any(all(n is None or n >= spec.context for n in limits) for limits in others)
    for position in (*positions, *added):
        limit = position.limit(spec.context)
        if limit is not None and limit < spec.context and (not reached or position in added):
            why = f"{spec.context} is longer than the {limit} positions that position.{position.kind} has"
            yield Finding("context", why, ("position", "layers"))
    crossing = [layer.position for layer in stack.layers if stack.cross and layer.attention.cross_position]
    if crossing and not any(p.acts() for p in crossing):
        why = f"has no effect: position {crossing[0].kind!r} neither turns queries and keys nor adds to scores"
        yield Finding("attention.cross_position", why, ("position", "layers"))
    yield from _sharing(stack)
    wirings = {layer.block.wiring for layer in stack.layers}
    if "reversible" in wirings and len({(layer.block.wiring, layer.block.merge) for layer in stack.layers}) > 1:
        why = "'reversible' runs two streams through all blocks, so every layer of a stack must have it, and the same merge"
        yield Finding("block.wiring", why, ("layers",))
    elif (
        wirings == {"reversible"} and stack.merge == "concat" and spec.topology == "encoder-decoder" and not stack.cross
    ):
        why = "'concat' doubles the width, which only a head can read: the decoder reads this encoder; pick 'mean'"
        yield Finding("block.merge", why, ("topology",))
    patterns = [layer.attention.pattern for layer in stack.layers]
    blind = all(stack.causal if pattern is None else pattern.causal for pattern in patterns)
    answers = stack.name == "decoder" or spec.topology == "encoder"
    if blind and answers and getattr(spec.head, "pool", "") == "first":
        why = "'first' reads a token that attends to itself alone, as every layer is causal; pick 'last' or 'mean'"
        yield Finding("head.pool", why, ("topology", "attention.pattern", "layers"))


def _sharing(stack: Stack) -> Findings:
    """Layers with the same parameters must be the same otherwise too."""
    first: dict[int, int] = {}
    for i, block in enumerate(stack.shared):
        j = first.setdefault(block, i)
        mine, theirs = ({node: getattr(stack.layers[n], node) for node in fields_of(Layer)} for n in (i, j))
        differ = [node for node in mine if mine[node] != theirs[node]]
        if differ:
            why = f"layers {j} and {i} share their parameters, but differ in {', '.join(differ)}; make them equal"
            yield Finding("layers.shared", f"{why}, or give them different names", ("layers",))
            return
