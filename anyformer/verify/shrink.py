"""A spec made small: every axis of every layer kept, sizes such that fp64 on a CPU takes seconds."""

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

from anyformer.errors import SpecError
from anyformer.specs.codec import write
from anyformer.specs.embed_head import TokenEmbed
from anyformer.specs.layer import Layer, SpecialIds
from anyformer.specs.model import ModelSpec
from anyformer.specs.stacks import Stack, pattern_of

PARAMS, SPAN = 2_000_000, 128
"""A spec with more parameters, or whose patterns span more tokens, is large."""
WIDTH, HEADS, HEAD_DIM, FFN, VOCAB, CONTEXT = 64, 4, 16, 96, 101, 128
NEAR = 12
"""The most that a pattern spans, so that short documents reach past it."""

DETAILS = {
    "position.max_distance": 20, "position.buckets": 8, "position.clip": 5, "position.scaling.original": NEAR,
    "attention.temperature.length": 8, "attention.mixer.chunk": 8, "attention.mixer.buckets": 4, "ffn.chunk": 5,
}  # fmt: skip
"""Lengths inside a layer's nodes, with a value that short documents reach past."""


@dataclass(frozen=True)
class Draft:
    """A spec in pieces: what all layers share, and the distinct layers of each stack."""

    spec: ModelSpec
    shared: dict[str, Any]
    layers: tuple[tuple[Layer, ...], ...]

    def map(self, change: Callable[[Layer], Layer] = lambda layer: layer, shared: Mapping[str, Any] = {}) -> "Draft":
        """With every layer changed, and fields that all layers share."""
        return Draft(self.spec, {**self.shared, **shared}, tuple(tuple(map(change, stack)) for stack in self.layers))

    def made(self) -> ModelSpec:
        """The spec; a SpecError if the pieces don't fit."""
        data = write(self.spec) | {name: write(value) for name, value in self.shared.items()}
        data |= {node: write(getattr(self.layers[0][0], node)) for node in ("attention", "position", "ffn", "block")}
        two = len(self.layers) > 1
        for stack, layers in zip(self.spec.stacks, self.layers, strict=True):
            names = [f"kind{i}" for i in range(len(layers))]
            groups = {"order": names} | dict(zip(names, (write(x, whole=True) for x in layers), strict=True))
            if stack.shared:
                groups["shared"] = [f"block{stack.shared[i]}" for i in kept_layers(stack)]
            own = {"depth": len(layers), "norm": write(stack.norm, whole=True), "layers": groups}
            data |= {stack.name: own} if two else own | {"norm": write(stack.norm)}
        if two:
            data |= {"layers": {}, "norm": write(self.spec.stacks[0].norm), "depth": len(self.layers[0])}
        return ModelSpec.from_data(data)


def span(spec: ModelSpec) -> int:
    """How many tokens the widest pattern or mixer of a spec looks over, as far as that is limited."""
    layers = [(stack, layer) for stack in spec.stacks for layer in stack.layers]
    sizes = [size for stack, layer in layers for size in pattern_of(stack, layer).sizes()]
    chunks = [3 * getattr(layer.attention.mixer, "chunk", 0) for _, layer in layers]
    return max([*sizes, *chunks], default=0)


def is_large(spec: ModelSpec) -> bool:
    """Whether it would take more than seconds."""
    return spec.count().params > PARAMS or span(spec) > SPAN


def small(spec: ModelSpec) -> ModelSpec:
    """The same choices in small. A size that can't be reduced, as something else in the spec depends on it, stays."""
    draft = Draft(spec, {}, tuple(tuple(stack.layers[i] for i in kept_layers(stack)) for stack in spec.stacks))
    # Of the special ids only a decoder's start is something that a model can't do without.
    ids = SpecialIds(start=None if spec.ids.start is None else 0)
    vocab: dict[str, Any] = {} if spec.vocab <= VOCAB else {"vocab": VOCAB, "ids": ids}
    if (spec.source_vocab or 0) > VOCAB:
        # Still another size than the target's, so that the one can't pass for the other.
        vocab |= {"source_vocab": VOCAB - 7, "ids": ids}
    draft = _first(draft, draft.map(shared=vocab))
    # Patterns may tie their sizes to the context, so that comes before them.
    draft = _first(draft, draft.map(_on_grid, {"context": min(spec.context, CONTEXT)}))
    draft = _first(draft, *_narrower(draft))
    narrow = partial(_detail, path="ffn.width", value=FFN)
    draft = _first(draft, draft.map(narrow), draft.map(partial(_replaced, path="ffn", width=None)))
    draft = _first(draft, draft.map(_near))
    for path, value in DETAILS.items():
        draft = _first(draft, draft.map(partial(_detail, path=path, value=value)))
    return draft.made()


def kept_layers(stack: Stack) -> list[int]:
    """One layer of each kind in order; two if all are alike and there were two. Of shared blocks one is run again."""
    kept = {stack.layers.index(layer) for layer in stack.layers}
    if stack.shared:
        again = next(i for i, block in enumerate(stack.shared) if block in stack.shared[:i])
        kept |= {stack.shared.index(stack.shared[again]), again}
    return sorted(kept if len(kept) > 1 else range(min(2, stack.depth)))


def size_of(spec: ModelSpec) -> str:
    """What is left of a spec that was made small, in words."""
    layers = [layer for stack in spec.stacks for layer in stack.layers]
    a, depths = layers[-1].attention, " and ".join(f"{stack.depth}" for stack in spec.stacks)
    shared = f" ({a.kv_heads} of keys)" if a.kv_heads not in (None, a.heads) else ""
    source = f" (source {spec.source_vocab})" if spec.source_vocab is not None else ""
    sizes = [f"width {spec.width}", f"{depths} layers", f"{a.heads} heads of {a.head_dim}{shared}"]
    sizes += [f"vocabulary {spec.vocab}{source}", f"context {spec.context}"]
    patterns = dict.fromkeys(str(layer.attention.pattern) for layer in layers if layer.attention.pattern is not None)
    return ", ".join([*sizes, *(["patterns " + ", ".join(patterns)] if patterns else [])])


def _first(draft: Draft, *choices: Draft) -> Draft:
    """The first of the choices that is a valid spec, or else the draft as it was."""
    for choice in choices:
        with contextlib.suppress(SpecError):
            choice.made()
            return choice
    return draft


def _narrower(draft: Draft) -> list[Draft]:
    """Fewer and narrower heads; if a pattern counts the heads, only narrower; if positions count dimensions, neither."""
    spec, width = draft.spec, min(draft.spec.width, WIDTH)
    shared: dict[str, Any] = {"width": width}
    if isinstance(spec.embed, TokenEmbed) and spec.embed.width:
        shared["embed"] = dataclasses.replace(spec.embed, width=max(1, spec.embed.width * width // spec.width))
    choices = ((HEADS, HEAD_DIM), (None, HEAD_DIM), (HEADS, None))
    return [draft.map(partial(_heads, before=spec.width, width=width, most=n, narrow=d), shared) for n, d in choices]


def _heads(layer: Layer, *, before: int, width: int, most: int | None, narrow: int | None) -> Layer:
    a = layer.attention
    dim = a.head_dim or before // a.heads
    heads, wide = min(a.heads, most or a.heads), min(dim, narrow or dim)
    groups = a.kv_heads if a.kv_heads in (None, 1) else heads if a.kv_heads == a.heads else max(1, heads // 2)
    layer = _replaced(layer, "attention", heads=heads, kv_heads=groups, head_dim=wide)
    position: Any = layer.position
    if rotated := getattr(position, "dims", None):
        layer = _replaced(layer, "position", dims=max(2, rotated * wide // dim // 2 * 2))
    if row_width := getattr(position, "row_width", None):
        layer = _replaced(layer, "position", row_width=max(1, row_width * width // before))
    scaling = getattr(position, "scaling", None)
    if short := getattr(scaling, "short", None):
        turned = len(short) * wide // dim
        layer = _replaced(layer, "position.scaling", short=short[:turned], long=position.scaling.long[:turned])
    return layer


def _near(layer: Layer) -> Layer:
    """With a pattern whose sizes are divided until it spans no more than a few tokens."""
    pattern = layer.attention.pattern
    widest = max(pattern.sizes(), default=0) if pattern is not None else 0
    if pattern is None or widest <= NEAR:
        return layer
    return _replaced(layer, "attention", pattern=pattern.shrunk(widest / NEAR))


def _on_grid(layer: Layer) -> Layer:
    """A grid of positions that fits the shorter context."""
    position: Any = layer.position
    grid = {"rows", "columns"} <= {field.name for field in dataclasses.fields(position)}
    return _replaced(layer, "position", rows=8, columns=CONTEXT // 8) if grid else layer


def _detail(layer: Layer, path: str, value: int) -> Layer:
    """With a field that is no larger than this, where there is such a field."""
    parent, _, name = path.rpartition(".")
    now = getattr(reduce(lambda node, step: getattr(node, step, None), parent.split("."), layer), name, None)
    return _replaced(layer, parent, **{name: value}) if isinstance(now, tuple) or (now or 0) > value else layer


def _replaced(node: Any, path: str, **values: Any) -> Any:
    """A layer with fields of an inner node set."""
    name, _, rest = path.partition(".")
    inner = getattr(node, name)
    made = _replaced(inner, rest, **values) if rest else dataclasses.replace(inner, **values)
    return dataclasses.replace(node, **{name: made})
