"""Rules across axes. Each notes problems; none raises. A rule that would read something already known to be
wrong stays silent, so that one mistake gives one line.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from anyformer.errors import nearest
from anyformer.specs.axes import FeedForward, Leaf
from anyformer.specs.codec import Problems, join
from anyformer.specs.ends import PatchEmbed, TokenEmbed, TokenHead
from anyformer.specs.layers import Overrides
from anyformer.specs.nodes import Layer
from anyformer.specs.scale import ScaleTextError, evaluate

if TYPE_CHECKING:
    from anyformer.specs.model import ModelSpec, Stack

STACK_ONLY = ("norm.final", "norm.embedding")
"""Fields of a layer's nodes that belong to the whole stack."""


def check_model(spec: ModelSpec, problems: Problems) -> None:
    """Everything that does not depend on a single layer."""
    for path, message in _sizes(spec):
        if not problems.touches(path):
            problems.add(path, message)
    for name in ("embed", "head", "init"):
        node = getattr(spec, name)
        for path, message in _leaf_problems(node, name):
            if not problems.touches(path):
                problems.add(path, message)
    if not problems.touches("embed") and not problems.touches("head"):
        for path, message in _ends(spec):
            if not problems.touches(path):
                problems.add(path, message)
    for path, message in _loss(spec):
        if not problems.touches(path):
            problems.add(path, message)


def _sizes(spec: ModelSpec) -> Iterator[tuple[str, str]]:
    for name in ("width", "depth", "context"):
        value = getattr(spec, name)
        if isinstance(value, int) and value < 1:
            yield name, f"{value} is not at least 1"
    if spec.vocab < 0:
        yield "vocab", f"{spec.vocab} is not at least 0"
    ids = {"ids.pad": spec.ids.pad, "ids.bos": spec.ids.bos, "ids.start": spec.ids.start}
    ids |= {f"ids.eos[{i}]": eos for i, eos in enumerate(spec.ids.eos)}
    for path, value in ids.items():
        if value is not None and not 0 <= value < max(spec.vocab, 1):
            yield path, f"{value} is not a token; ids run from 0 to vocab - 1 = {spec.vocab - 1}"


def _ends(spec: ModelSpec) -> Iterator[tuple[str, str]]:
    embed, head = spec.embed, spec.head
    tokens_in, tokens_out = isinstance(embed, TokenEmbed), head.predicts_tokens
    if (tokens_in or tokens_out) and spec.vocab == 0:
        yield "vocab", "is missing; a model that reads or predicts tokens needs their number"
    if not tokens_in and spec.topology == "encoder-decoder":
        yield "embed.kind", f"{embed.kind!r} feeds an encoder or a decoder; an encoder-decoder reads 'tokens'"
    if isinstance(embed, TokenEmbed):
        if embed.width is not None and not embed.width >= 1:
            yield "embed.width", f"{embed.width} is not at least 1"
        if embed.token_types < 0:
            yield "embed.token_types", f"{embed.token_types} is not at least 0"
        projects = embed.width is not None and embed.width != spec.width
        if not projects and (embed.project == "last" or embed.project_bias):
            yield "embed.project", "has no effect: embed.width is the model's width, so nothing is projected"
        if not embed.shared and spec.topology != "encoder-decoder":
            yield "embed.shared", f"has no effect: topology {spec.topology!r} has one stack"
        yield from _scale("embed.scale", embed.scale, {"width": spec.width, "depth": spec.depth})
    if isinstance(embed, PatchEmbed) and spec.topology == "decoder":
        yield "embed.kind", "'patches' come all at once, so topology must be 'encoder'"
    if head.kind == "pair" and (not tokens_in or spec.topology == "encoder-decoder"):
        yield "head.kind", "'pair' reads two texts by their token types: it needs embed.kind 'tokens' and one stack"
    if isinstance(embed, PatchEmbed) and embed.patch >= 1 and embed.tokens() > spec.context:
        yield "context", f"{spec.context} is shorter than an image: {embed.tokens()} tokens"
    if isinstance(head, TokenHead):
        if head.tied and not tokens_in:
            yield "head.tied", f"there is no token table to share: embed.kind is {embed.kind!r}"
        if head.softcap is not None and head.softcap <= 0:
            yield "head.softcap", f"{head.softcap} is not above 0"
        if head.activation not in (kinds := plain_ffns()):
            yield "head.activation", f"{head.activation!r} is unknown{nearest(head.activation, kinds)}"
        if not head.transform and head.activation != "gelu":
            yield "head.activation", "has no effect without head.transform"
        yield from _scale("head.scale", head.scale, {"width": spec.width, "depth": spec.depth})
    for name in ("labels", "outputs"):
        value = getattr(head, name, 1)
        if value < 1:
            yield f"head.{name}", f"{value} is not at least 1"


def plain_ffns() -> list[str]:
    """The ungated feed-forward kinds, which double as activations."""
    return [k for k in FeedForward.kinds() if (leaf := FeedForward.named(k)) and len(leaf.inputs) == 1]


def _loss(spec: ModelSpec) -> Iterator[tuple[str, str]]:
    if spec.loss.z < 0:
        yield "loss.z", f"{spec.loss.z} is not at least 0"
    if not 0 <= spec.loss.label_smoothing < 1:
        yield "loss.label_smoothing", f"{spec.loss.label_smoothing} is not in [0, 1)"
    if spec.head.kind in ("regression", "none") and (spec.loss.z or spec.loss.label_smoothing):
        yield "loss", f"z and label_smoothing have no effect on a {spec.head.kind!r} head"


def check_overrides(
    groups: dict[str, Overrides], group: str | None, single: str | None, path: str, problems: Problems
) -> None:
    """Overrides of a layer may not set what belongs to the whole stack."""
    for name in (group, single):
        for item, _ in groups[name].items if name is not None else ():
            if item in STACK_ONLY:
                problems.add(f"{path}.{name}.{item}", f"belongs to the whole stack; set {item}")


def check_stack(spec: ModelSpec, stack: Stack, problems: Problems) -> None:
    """Every distinct layer of a stack, and what its layers must agree on."""
    seen: dict[Layer, int] = {}
    for i, layer in enumerate(stack.layers):
        seen.setdefault(layer, i)
    base = all(
        getattr(stack.layers[0], n) == getattr(spec, n) for n in ("attention", "position", "ffn", "norm", "block")
    )
    for layer, i in seen.items():
        where = "" if base and i == 0 else f"{stack.name}.{i}" if spec.topology == "encoder-decoder" else f"layer {i}"
        for path, message in _layer(spec, stack, layer):
            if not problems.touches(path) and not any(line.endswith(f"{path}: {message}") for line in problems.found):
                problems.add(f"{where}: {path}" if where else path, message)
    blind = all(stack.causal if x.attention.pattern is None else x.attention.pattern.causal for x in seen)
    answers = stack.name == "decoder" or spec.topology == "encoder"
    if blind and answers and getattr(spec.head, "pool", "") == "first" and not problems.touches("head.pool"):
        problems.add(
            "head.pool",
            "'first' reads a token that attends to itself alone, as every layer is causal; pick 'last' or 'mean'",
        )
    added = {layer.position for layer in seen if layer.position.overrides("embed")}
    if len(added) > 1 or (added and any(layer.position not in added for layer in seen)):
        names = ", ".join(sorted({layer.position.kind for layer in seen}))
        problems.add("position", f"{names}: positions that are added to the embeddings must be the same in every layer")
    limit = min((n for layer in seen if (n := layer.position.limit(spec.context)) is not None), default=None)
    if limit is not None and limit < spec.context:
        problems.add(
            "context",
            f"{spec.context} is longer than the {limit} positions that position.{stack.layers[0].position.kind} has",
        )


def _layer(spec: ModelSpec, stack: Stack, layer: Layer) -> Iterator[tuple[str, str]]:
    a = layer.attention
    sizes_fit = a.heads >= 1
    if a.heads < 1:
        yield "attention.heads", f"{a.heads} is not at least 1"
    elif a.head_dim is None and spec.width % a.heads:
        sizes_fit = False
        yield (
            "attention.heads",
            (
                f"{a.heads} does not divide width={spec.width}; pick one of {_divisors(spec.width)} or set attention.head_dim"
            ),
        )
    if a.kv_heads is not None and a.heads >= 1 and (a.kv_heads < 1 or a.heads % a.kv_heads):
        sizes_fit = False
        yield "attention.kv_heads", f"{a.kv_heads} does not divide heads={a.heads}; pick one of {_divisors(a.heads)}"
    if a.head_dim is not None and a.head_dim < 1:
        sizes_fit = False
        yield "attention.head_dim", f"{a.head_dim} is not at least 1"
    if set(a.bias) - set("qkvo") or len(set(a.bias)) < len(a.bias):
        yield "attention.bias", f"{a.bias!r} is not a choice of the letters of 'qkvo', each once"
    for name in ("softcap", "clip_qkv"):
        value = getattr(a, name)
        if value is not None and value <= 0:
            yield f"attention.{name}", f"{value} is not above 0"
    for path, value in (
        ("attention.dropout", a.dropout),
        ("block.dropout", layer.block.dropout),
        ("ffn.dropout", layer.ffn.dropout),
    ):
        if not 0 <= value < 1:
            yield path, f"{value} is not in [0, 1)"
    if a.temperature is not None and a.temperature.length < 2:
        yield "attention.temperature.length", f"{a.temperature.length} is not at least 2"
    if a.v_norm is not None and a.v_norm.when == "after":
        yield "attention.v_norm.when", "'after' has no effect: values are normed before they are rotated or cached"
    if stack.causal and a.pattern is not None and not a.pattern.causal:
        yield (
            "attention.pattern",
            (f"'{a.pattern}' lets a token see later ones, which a decoder may not; write 'causal & ({a.pattern})'"),
        )
    if a.cross_position and not stack.cross and spec.topology != "encoder-decoder":
        yield "attention.cross_position", f"has no effect: topology {spec.topology!r} has no cross-attention"
    for name, node in (
        ("attention.pattern", a.pattern),
        ("attention.mixer", a.mixer),
        ("position", layer.position),
        ("ffn", layer.ffn),
        ("norm", layer.norm.leaf),
    ):
        yield from _leaf_problems(node, name)
    for name in ("qk_norm", "v_norm"):
        if (node := getattr(a, name)) is not None:
            yield from _leaf_problems(node.leaf, f"attention.{name}")
    yield from _wiring(layer)
    if sizes_fit:
        dims = spec.dims(layer, causal=stack.causal)
        yield from _scale("attention.scale", a.scale, dims.names())
        yield from ((join("position", path), message) for path, message in layer.position.check(dims))
        if dims.ffn_width < 1:
            yield "ffn.width", f"{dims.ffn_width} is not at least 1"


def _wiring(layer: Layer) -> Iterator[tuple[str, str]]:
    inner = [p in ("pre", "sandwich") for p in (layer.norm.of_attention(), layer.norm.of_ffn())]
    post = [p == "post" for p in (layer.norm.of_attention(), layer.norm.of_ffn())]
    if layer.block.wiring == "parallel2" and not all(inner):
        yield (
            "block.wiring",
            f"'parallel2' gives each branch a norm on its input, but norm.placement {layer.norm.placement!r} has none; write 'parallel'",
        )
    if layer.block.wiring == "parallel" and (inner[0] != inner[1] or post[0] != post[1]):
        yield "block.wiring", "'parallel' shares one norm between the branches, so both need the same placement"


def _scale(path: str, scale: Any, names: dict[str, float]) -> Iterator[tuple[str, str]]:
    try:
        if evaluate(scale, names) == 0:
            yield path, "is 0, which would erase what it multiplies"
    except ScaleTextError as error:
        yield path, str(error)


def _leaf_problems(node: Leaf | None, path: str) -> Iterator[tuple[str, str]]:
    if node is None:
        return
    for name, message in node.problems():
        yield join(path, name), message
    dropout = getattr(node, "dropout", 0.0)
    if path in ("embed", "head") and not 0 <= dropout < 1:
        yield join(path, "dropout"), f"{dropout} is not in [0, 1)"


def _divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]
