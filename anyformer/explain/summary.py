"""A spec in a paragraph, and the promises that it can't make."""

from __future__ import annotations

from anyformer.explain.axes import PLACEMENTS
from anyformer.explain.groups import Group, groups
from anyformer.explain.words import join, some, text_of
from anyformer.specs.model import ModelSpec
from anyformer.specs.number_format import params

WIRED = {
    "serial": "",
    "parallel": "; its branches run in parallel",
    "parallel2": "; its branches run in parallel",
    "reversible": "; its branches alternate between two streams and can be run backwards",
}
KINDS = 3
"""Kinds of layers that a paragraph describes; more are in the table of axes."""


def summary(spec: ModelSpec) -> str:
    """What the model is, in a few sentences."""
    return " ".join([_whole(spec), *_layers(spec), _ends(spec)])


def _whole(spec: ModelSpec) -> str:
    article = "A" if spec.topology == "decoder" else "An"
    layers = some(spec.stacks[-1].depth, "layer")
    if len(spec.stacks) > 1:
        layers = f"{join([f'{stack.depth} {stack.name}' for stack in spec.stacks])} layers"
    size = f"a width of {spec.width:,} and {params(spec.count().params)} parameters"
    return f"{article} {spec.topology} of {layers} with {size}, made for up to {some(spec.context, 'token')}."


def _layers(spec: ModelSpec) -> list[str]:
    alike = groups(spec)
    if len(alike) == 1:
        return [f"Every layer has {_layer(alike[0])}."]
    if len(alike) > KINDS:
        return [f"Its layers are of {len(alike)} kinds."]
    texts = [f"{group.where()}: {_layer(group)}." for group in alike]
    return [text[0].upper() + text[1:] for text in texts]


def _layer(group: Group) -> str:
    layer, dims = group.layer, group.dims
    heads = f"{some(dims.heads, 'head')} of {dims.head_dim}"
    if dims.kv_heads < dims.heads:
        kind = "MQA" if dims.kv_heads == 1 else "GQA"
        shared = "one key and value head" if dims.kv_heads == 1 else f"{dims.kv_heads} key and value heads"
        heads = f"{some(dims.heads, 'query head')} of {dims.head_dim} that share {shared} ({kind})"
    sees = f"the attention pattern {group.pattern}"
    crossing = "attention to the encoder" if group.stack.cross else ""
    ffn = f"{_article(layer.ffn.called())} feed-forward of {dims.ffn_width:,}"
    both = dict.fromkeys((layer.norm.of_attention(), layer.norm.of_ffn()))
    norm = f"{layer.norm.leaf.called()} {join([PLACEMENTS[each][0] for each in both])}"
    position = layer.position.called()
    known = position if position.startswith("no ") else f"{position} positions"
    parts = [heads, known, sees, crossing, ffn, "no norm" if list(both) == ["none"] else norm]
    wired = WIRED[layer.block.wiring]
    return join([part for part in parts if part]) + wired


def _article(name: str) -> str:
    """`a SwiGLU`: by the letter as it is said, which is near enough for names."""
    said = name[0] in "aeiouAEIOU"
    return f"{'an' if said else 'a'} {name}"


def _ends(spec: ModelSpec) -> str:
    known = f" of a vocabulary of {spec.input_vocab:,}" if spec.embed.reads == "input_ids" else ""
    reads = spec.embed.called() + known
    tied = " from the embedding table" if getattr(spec.head, "tied", False) else ""
    other = f" of another of {spec.vocab:,}" if spec.source_vocab is not None and spec.head.predicts_tokens else ""
    return f"It reads {reads} and answers with {spec.head.called()}{other}{tied}."


def exemptions(spec: ModelSpec) -> list[str]:
    """What keeps a promise only in part, each with its layers."""
    found: dict[str, list[str]] = {}
    for group in groups(spec):
        mixer, position = group.layer.attention.mixer, group.layer.position
        if not mixer.exact:
            found.setdefault(f"mixer {mixer.called()} {mixer.approximation()}", []).append(group.where())
        if position.needs_length:
            why = (
                "depends on the length of the text: it reads one length, declared for each forward or cache "
                "(rope_length=, default: the document's own), and keeps every promise at the same declared length"
            )
            found.setdefault(f"position {text_of(position)} {why}", []).append(group.where())
    return [f"{', '.join(places)}: {text}" for text, places in found.items()]
