"""The rules of one layer: what its nodes must be for it to be built."""

from __future__ import annotations

from typing import TYPE_CHECKING

from anyformer.specs.codec import join, related
from anyformer.specs.findings import (
    SIZES,
    WIDEST,
    Finding,
    Findings,
    above_zero,
    at_least,
    divisors,
    factor,
    leaf,
    share,
    size,
)
from anyformer.specs.layer import Attention, BlockWiring, Layer, Temperature
from anyformer.specs.patterns import Tokens
from anyformer.specs.stacks import Stack, pattern_of

if TYPE_CHECKING:
    from anyformer.specs.model import ModelSpec


def check_layer(spec: ModelSpec, stack: Stack, layer: Layer) -> Findings:
    """Everything about one layer. Rules that need its sizes are left out if one of them is wrong."""
    wrong = list(_nodes(spec, stack, layer))
    yield from wrong
    if 1 <= spec.width <= WIDEST and not any(related(found.path, name) for found in wrong for name in SIZES):
        yield from _layer_sizes(spec, stack, layer)
    for path, node in (("attention", layer.attention), ("ffn", layer.ffn), ("block", layer.block)):
        yield from share(f"{path}.dropout", node.dropout)


def _nodes(spec: ModelSpec, stack: Stack, layer: Layer) -> Findings:
    a = layer.attention
    yield from _heads(spec, a)
    if set(a.bias) - set("qkvo") or len(set(a.bias)) < len(a.bias):
        yield Finding("attention.bias", f"{a.bias!r} is not a choice of the letters of 'qkvo', each once")
    yield from above_zero("attention.softcap", a.softcap)
    yield from above_zero("attention.clip_qkv", a.clip_qkv)
    if layer.block.branch_scale == 0:
        yield Finding("block.branch_scale", "is 0, which would erase what it multiplies")
    if a.temperature is not None:
        yield from at_least("attention.temperature.length", a.temperature.length, 2)
        yield from at_least("attention.temperature.offset", a.temperature.offset, 0)
        if a.temperature.kind == "log_n" and a.temperature.strength != Temperature().strength:
            why = "has no effect: 'log_n' has no strength; leave it out"
            yield Finding("attention.temperature.strength", why, ("attention.temperature.kind",))
    if a.v_norm is not None and a.v_norm.when == "after":
        why = "'after' has no effect: values are normed before they are rotated or cached"
        yield Finding("attention.v_norm.when", why)
    if stack.causal and a.pattern is not None and a.pattern.prefix() is None:
        why = f"'{a.pattern}' lets a token see later ones, which a decoder may not; write 'causal & ({a.pattern})'"
        yield Finding("attention.pattern", why, ("topology",))
    elif stack.causal and a.pattern is not None and a.pattern.needs_length:
        why = f"'{a.pattern}' reads how long its document is, which a decoder does not know before its end"
        yield Finding("attention.pattern", f"{why}; a random pattern has past=True for that", ("topology",))
    yield from _mixer(stack, layer)
    if a.cross_position and spec.topology != "encoder-decoder":
        why = f"has no effect: topology {spec.topology!r} has no cross-attention"
        yield Finding("attention.cross_position", why, ("topology",))
    if a.cross_position and stack.cross and layer.position.needs_length:
        why = "can't be had with a RoPE scaling that depends on the length: source and target have their own lengths"
        yield Finding("attention.cross_position", why, ("position",))
    qk_norm, v_norm = (None if norm is None else norm.leaf for norm in (a.qk_norm, a.v_norm))
    inner = {"pattern": a.pattern, "mixer": a.mixer, "qk_norm": qk_norm, "v_norm": v_norm}
    nodes = {"position": layer.position, "ffn": layer.ffn, "norm": layer.norm.leaf}
    for path, node in ({f"attention.{name}": node for name, node in inner.items()} | nodes).items():
        yield from leaf(path, node)
    yield from _wiring(layer)


def _heads(spec: ModelSpec, a: Attention) -> Findings:
    yield from size("attention.heads", a.heads)
    yield from size("attention.head_dim", a.head_dim)
    if not 1 <= a.heads <= WIDEST or spec.width > WIDEST:
        return
    if a.head_dim is None and spec.width % a.heads:
        choice = f"pick one of {divisors(spec.width)} or set attention.head_dim"
        yield Finding("attention.heads", f"{a.heads} does not divide width={spec.width}; {choice}", ("width",))
    if a.kv_heads is not None and (a.kv_heads < 1 or a.heads % a.kv_heads):
        why = f"{a.kv_heads} does not divide heads={a.heads}; pick one of {divisors(a.heads)}"
        yield Finding("attention.kv_heads", why, ("attention.heads",))


def _mixer(stack: Stack, layer: Layer) -> Findings:
    a, mixer = layer.attention, layer.attention.mixer
    pattern = pattern_of(stack, layer)
    if a.global_projections and pattern.is_global(Tokens(0)) is None:
        wider = f"causal & ({pattern} | global_tokens)" if stack.causal else f"{pattern} | global_tokens"
        why = f"has no effect: '{pattern}' has no global tokens; write '{wider}'"
        yield Finding("attention.global_projections", why, ("attention.pattern", "topology"))
    if a.global_projections and any(layer.position.projects()):
        why = (
            f"can't be had with position {layer.position.kind!r}, whose vectors go through one query and key projection"
        )
        yield Finding("attention.global_projections", why, ("position",))
    if stack.cross and pattern.reads_marks:
        why = f"'{pattern}' reads marks, which global_mask gives to the source only; write marks=False and how many are first"
        yield Finding("attention.pattern", why, ("topology",))
    repeats = pattern.repeats or pattern.evaluated().repeats
    if repeats and (mixer.kind != "softmax" or a.softcap is not None):
        why = f"'{pattern}' counts keys several times, which goes with mixer 'softmax' and without a softcap only"
        yield Finding("attention.pattern", why, ("attention.mixer", "attention.softcap"))
    if repeats and layer.position.reads_probs():
        why = f"'{pattern}' counts keys several times, which position {layer.position.kind!r}, with vectors on values, does not"
        yield Finding("attention.pattern", why, ("position.kind",))
    if mixer.shares_keys:
        if a.kv_heads not in (None, a.heads):
            why = f"{a.kv_heads} differs from heads={a.heads}, but mixer {mixer.kind!r} makes its keys from the queries"
            yield Finding("attention.kv_heads", why, ("attention.heads", "attention.mixer"))
        if "k" in a.bias:
            why = f"'k' has no effect: mixer {mixer.kind!r} makes its keys from the queries"
            yield Finding("attention.bias", why, ("attention.mixer",))
    if mixer.weighs:
        return
    for path, wrong, what in (
        ("attention.softcap", a.softcap is not None, "has no scores to cap"),
        ("attention.global_projections", a.global_projections, "knows no global tokens"),
        ("attention.dropout", a.dropout > 0 and mixer.stateful, "has no weights to drop"),
        ("attention.scale", mixer.stateful and a.scale != Attention(heads=1).scale, "has no scores to scale"),
    ):
        if wrong:
            yield Finding(path, f"can't be had: mixer {mixer.kind!r} {what}", ("attention.mixer",))
    if layer.position.biases() or layer.position.reads_probs():
        why = f"{layer.position.kind!r} adds to scores or values, which mixer {mixer.kind!r} does not compute for every pair"
        yield Finding("position.kind", why, ("attention.mixer",))
    reason = mixer.serves(pattern)
    if reason is not None:
        why = f"'{pattern}' does not go with mixer {mixer.kind!r}: {reason}"
        yield Finding("attention.pattern", why, ("attention.mixer", "topology"))


def _wiring(layer: Layer) -> Findings:
    norm = layer.norm
    if norm.attention_placement and norm.ffn_placement and norm.placement != "pre":
        why = "has no effect: attention_placement and ffn_placement say where all norms are; leave it out"
        yield Finding("norm.placement", why, ("norm.attention_placement", "norm.ffn_placement"))
    both = (norm.of_attention(), norm.of_ffn())
    inner, post = [p in ("pre", "sandwich") for p in both], [p == "post" for p in both]
    reads = ("norm.placement", "norm.attention_placement", "norm.ffn_placement")
    if layer.block.wiring == "reversible" and any(post):
        why = "'reversible' recomputes a block's input from its output, which a norm after the add (placement 'post') prevents"
        yield Finding("block.wiring", why, reads)
    if layer.block.wiring != "reversible" and layer.block.merge != BlockWiring().merge:
        yield Finding("block.merge", "has no effect: only a reversible block has two streams", ("block.wiring",))
    if layer.block.wiring == "parallel2" and not all(inner):
        lacking = both[inner.index(False)]
        why = f"'parallel2' gives each branch a norm on its input, but placement {lacking!r} has none; write 'parallel'"
        yield Finding("block.wiring", why, reads)
    if layer.block.wiring == "parallel" and (inner[0] != inner[1] or post[0] != post[1]):
        why = "'parallel' shares one norm between the branches, so both need the same placement"
        yield Finding("block.wiring", why, reads)


def _layer_sizes(spec: ModelSpec, stack: Stack, layer: Layer) -> Findings:
    dims = spec.dims(layer, stack)
    yield from factor("attention.scale", layer.attention.scale, dims.names(), SIZES)
    for path, message in layer.position.check(dims):
        yield Finding(join("position", path), message, SIZES)
    if spec.embed.position is not None:
        for path, message in spec.embed.position.check(dims):
            yield Finding(join("embed.position", path), message, SIZES)
    pattern = pattern_of(stack, layer)
    if any(True for _ in pattern.problems()):
        return
    wrong = list(pattern.check(dims.heads, spec.context))
    for path, message in wrong:
        yield Finding(join("attention.pattern", path), message, SIZES)
    if not wrong:
        from anyformer.specs.pair_count import blind_heads

        blind = blind_heads(pattern, dims.heads, spec.context)
        if blind:
            whose = f" in head {blind[0]}" if len(blind) < dims.heads else ""
            why = f"'{pattern}' leaves some token without any key{whose}; add what every token sees, such as '| window(1)'"
            yield Finding("attention.pattern", why, SIZES)
