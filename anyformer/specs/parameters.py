"""The inventory: every parameter tensor of a model by name, from the spec alone.

Counts sum it, initialisation reads the roles from it, loaders check shapes against it, and `build` refuses a module
whose parameters differ from it, so the counts can't drift from the model.
"""

from typing import Any

import numpy as np

from anyformer.specs import embed_head
from anyformer.specs.axes import Dims, NamedWeights, Norm, ParamSpec, Position, linear
from anyformer.specs.layer import Attention, Layer, Placement, mixer_of
from anyformer.specs.model import ModelSpec, Stack
from anyformer.specs.pair_count import allowed_pairs_of_heads, keys_seen
from anyformer.specs.patterns import Tokens
from anyformer.specs.stacks import pattern_of


def weights(spec: ModelSpec) -> dict[str, ParamSpec]:
    """Name -> weight, in the order of the forward pass. A tied head is listed once, as the embedding."""
    found = dict(_embed(spec, "embed"))
    for stack in spec.stacks:
        if stack.cross and not (isinstance(spec.embed, embed_head.TokenEmbed) and spec.embed.shared):
            found |= _embed(spec, "decoder_embed")
        found |= _stack(spec, stack)
    return found | dict(_head(spec))


def _prefixed(prefix: str, named: dict[str, ParamSpec]) -> NamedWeights:
    return ((f"{prefix}.{name}", weight) for name, weight in named.items())


def _norm(name: str, leaf: Norm, width: int) -> NamedWeights:
    return _prefixed(name, leaf.weights((width,)))


def _embed(spec: ModelSpec, name: str) -> NamedWeights:
    match spec.embed:
        case embed_head.TokenEmbed() as embed:
            rows = spec.vocab if name == "decoder_embed" else spec.input_vocab
            yield f"{name}.tokens.weight", ParamSpec(shape=(rows, spec.embed_width), role="embedding")
            for table, count in (("types", embed.token_types), ("tasks", embed.task_types)):
                if count:
                    yield f"{name}.{table}.weight", ParamSpec(shape=(count, spec.position_width), role="embedding")
            if projects(spec) and embed.project == "first":
                yield from linear(f"{name}.project", spec.width, spec.embed_width, "project", embed.project_bias)
        case embed_head.PatchEmbed() as embed:
            yield from linear(f"{name}.patches", spec.width, embed.channels * embed.patch**2, "project", embed.bias)
            if embed.class_token:
                yield f"{name}.class_token", ParamSpec(shape=(spec.width,), role="bias", fill=0.0)
        case embed_head.SeriesEmbed() as embed:
            yield from linear(f"{name}.series", spec.width, embed.channels, "project", embed.bias)
        case _:
            raise TypeError(f"no inventory for embed kind {spec.embed.kind!r}")


def projects(spec: ModelSpec) -> bool:
    """Whether the token table is of another width than the model."""
    return spec.embed_width != spec.width


def shared_positions(spec: ModelSpec, stack: Stack) -> tuple[list[tuple[Position, Dims]], list[int | None]]:
    """The position modules that the stack owns, and which of them each layer uses (None: it has its own).

    Layers share a module if their spec and all that it holds are equal: a layer with other heads needs other slopes.
    What only the embeddings use (`embed.position`) comes last.
    """
    owned: dict[str, tuple[Position, Dims]] = {}
    uses: list[int | None] = []
    for layer in stack.layers:
        position, dims = layer.position, spec.dims(layer, stack)
        if position.per_layer:
            uses.append(None)
            continue
        key = repr((position, position.weights(dims), position.constants(dims)))
        owned.setdefault(key, (position, dims))
        uses.append(list(owned).index(key))
    found = list(owned.values())
    if spec.embed.position is not None:
        found.append((spec.embed.position, spec.dims(stack.layers[0], stack)))
    return found, uses


def _stack(spec: ModelSpec, stack: Stack) -> NamedWeights:
    for i, (position, dims) in enumerate(shared_positions(spec, stack)[0]):
        yield from _prefixed(f"{stack.name}.positions.{i}", position.weights(dims))
    if stack.norm.embedding:
        yield from _norm(f"{stack.name}.embedding_norm", stack.norm.leaf, spec.position_width)
    if isinstance(spec.embed, embed_head.TokenEmbed) and spec.embed.project == "last" and projects(spec):
        yield from linear(f"{stack.name}.project", spec.width, spec.embed_width, "project", spec.embed.project_bias)
    for i, layer in enumerate(stack.blocks):
        yield from _block(spec, stack, layer, f"{stack.name}.blocks.{i}")
    if stack.norm.has_final():
        yield from _norm(f"{stack.name}.final_norm", stack.norm.leaf, stack.out_width(spec.width))


def slots(layer: Layer, branch: str) -> tuple[bool, bool, bool]:
    """Whether a branch has a norm on its input, on its output, and after the add.

    In a parallel block the attention branch owns what all branches share: the norm on the input if there is one
    for all, and the norm after the add.
    """
    placement: Placement = layer.norm.of_ffn() if branch == "ffn" else layer.norm.of_attention()
    inner, outer, after = placement in ("pre", "sandwich"), placement in ("output", "sandwich"), placement == "post"
    if layer.block.wiring in ("parallel", "parallel2") and branch != "attention":
        inner, after = inner and layer.block.wiring == "parallel2", False
    return inner, outer, after


def _block(spec: ModelSpec, stack: Stack, layer: Layer, name: str) -> NamedWeights:
    dims = spec.dims(layer, stack)
    for branch in ("attention", "cross", "ffn") if stack.cross else ("attention", "ffn"):
        prefix = f"{name}.{branch}"
        for slot, has in zip(("inner", "outer", "after"), slots(layer, branch), strict=True):
            if has:
                yield from _norm(f"{prefix}.{slot}", layer.norm.leaf, spec.width)
        if branch == "ffn":
            yield from _prefixed(f"{prefix}.body", layer.ffn.weights(spec.width))
        else:
            position = layer.position if branch == "attention" or layer.attention.cross_position else None
            yield from attention_weights(layer.attention, dims, position, f"{prefix}.body", cross=branch == "cross")


def attention_weights(
    a: Attention, dims: Dims, position: Position | None, name: str, *, cross: bool = False
) -> NamedWeights:
    """The parameters of one attention."""
    queries, keys = dims.heads * dims.head_dim, dims.kv_heads * dims.head_dim
    mixer = mixer_of(a, cross=cross)
    for prefix in ("", "global_") if a.global_projections and not cross else ("",):
        yield from linear(f"{name}.{prefix}q", queries, dims.width, "query", "q" in a.bias)
        if not mixer.shares_keys:
            yield from linear(f"{name}.{prefix}k", keys, dims.width, "key", "k" in a.bias)
        yield from linear(f"{name}.{prefix}v", keys, dims.width, "value", "v" in a.bias)
    yield from linear(f"{name}.o", dims.width, queries, "attention_out", "o" in a.bias)
    norms = {"q": (a.qk_norm, dims.heads), "k": (a.qk_norm, dims.kv_heads), "v": (a.v_norm, dims.kv_heads)}
    for letter, (norm, heads) in norms.items():
        if norm is not None and not (letter == "k" and mixer.shares_keys):
            yield from _prefixed(f"{name}.{letter}_norm", norm.leaf.weights(norm.shape(heads, dims.head_dim)))
    yield from _prefixed(f"{name}.mixer", mixer.weights(dims.heads))
    if position is not None and position.per_layer:
        yield from _prefixed(f"{name}.position", position.weights(dims))


def _head(spec: ModelSpec) -> NamedWeights:
    width = spec.out_width
    match spec.head:
        case embed_head.TokenHead() as head:
            # A tied head reads at the width of the table.
            width = spec.embed_width if head.tied else spec.out_width
            if head.transform:
                yield from linear("head.dense", width, spec.out_width, "dense", head.transform_bias)
                yield from _norm("head.norm", spec.stacks[-1].norm.leaf, width)
            elif width != spec.out_width:
                yield from linear("head.project", width, spec.out_width, "project", False)
            if not head.tied:
                yield "head.weight", ParamSpec(shape=(spec.vocab, width), role="head")
            if head.bias:
                yield "head.bias", ParamSpec(shape=(spec.vocab,), role="bias", fill=0.0)
        case embed_head.Classifier() as head:
            if head.dense:
                wide = head.dense_width or width
                yield from linear("head.dense", wide, width, "dense", head.dense_bias)
                if head.norm:
                    yield from _norm("head.norm", spec.stacks[-1].norm.leaf, wide)
                width = wide
            yield from linear("head.answer", head.answers, width, "head", head.bias)
        case embed_head.PairHead() as head:
            yield from linear("head.answer", head.labels, 4 * width, "head", True)
        case embed_head.RegressionHead() as head:
            yield from linear("head.answer", head.outputs, width, "head", True)
        case _:
            return


def silent(spec: ModelSpec) -> dict[str, str]:
    """Parameters whose gradient is exactly zero by mathematics, with the reason."""
    named, reasons = weights(spec), dict[str, str]()
    for stack in spec.stacks:
        uses = shared_positions(spec, stack)[1]
        alone, unbiased = list[bool](), list[bool]()
        for layer in stack.layers:
            pairs = allowed_pairs_of_heads(pattern_of(stack, layer), spec.context, layer.attention.heads)
            itself = pairs == spec.context * layer.attention.heads
            alone.append(layer.attention.mixer.ignores_shift and itself)
            unbiased.append(layer.position.zero_at_itself and itself)
        if stack is spec.stacks[-1] and getattr(spec.head, "pool", "") == "first":
            # Of the last layer the head reads what the first token takes, and no more.
            alone[-1] = alone[-1] or _first_sees_itself_only(spec, stack)
        for block, layer in enumerate(stack.blocks):
            prefix = f"{stack.name}.blocks.{block}"
            runs = [i for i, use in enumerate(stack.uses) if use == block]
            rotates = layer.position.overrides("rotate")
            # Keys that meet vectors of the position scheme are told apart by what is added to all of them.
            met = layer.position.projects()[0] > 0
            if not met:
                reasons |= _silent_keys(layer, f"{prefix}.attention.body", rotates, cross=False)
            reasons |= {f"{prefix}.ffn.body.{name}": why for name, why in layer.ffn.silent().items()}
            if stack.cross:
                crosses = rotates and layer.attention.cross_position
                if not (met and layer.attention.cross_position):
                    reasons |= _silent_keys(layer, f"{prefix}.cross.body", crosses, cross=True)
            if all(alone[i] or unbiased[i] for i in runs):
                why = (
                    "a token that sees only itself gives itself the weight 1, whatever its score, or has no bias there"
                )
                every = all(alone[i] for i in runs)
                parts = ("q", "k", "q_norm", "k_norm", "position") if every else ("position",)
                scored = [f"{prefix}.attention.body.{name}." for name in parts]
                owner = uses[runs[0]]
                users = [j for j, use in enumerate(uses) if use is not None and use == owner]
                if users and all(alone[j] or unbiased[j] for j in users) and not layer.attention.cross_position:
                    scored.append(f"{stack.name}.positions.{owner}.")
                reasons |= {n: why for n in named if n.startswith(tuple(scored)) and not n.endswith(".values")}
    if isinstance(spec.head, embed_head.TokenHead) and not spec.head.adds_bias:
        reasons["head.bias"] = "it is kept, but not added to the logits"
    if isinstance(spec.embed, embed_head.PatchEmbed) and getattr(spec.head, "pool", "") == "last":
        tokens = spec.embed.tokens()
        if 0 not in _read_by(spec.stacks[-1], tokens - 1, tokens):
            why = "the head reads the last token, and no chain of layers leads from it to the first"
            reasons["embed.class_token"] = why
    return {name: why for name, why in reasons.items() if name in named and named[name].role != "position_embedding"}


def _read_by(stack: Stack, token: int, tokens: int) -> set[int]:
    """The tokens on which the state of one of them can depend after all layers."""
    every: Any = np.arange(tokens)
    found = every == token
    for layer in reversed(stack.layers):
        q, k = Tokens(every[:, None], 0, tokens), Tokens(every[None, :], 0, tokens)
        allowed = np.broadcast_to(pattern_of(stack, layer).allows(q, k), (tokens, tokens))
        found = found | allowed[found].any(0)
    return set(np.flatnonzero(found).tolist())


def _silent_keys(layer: Layer, prefix: str, rotates: bool, *, cross: bool) -> dict[str, str]:
    """Parameters that add the same vector to every key."""
    a, reasons = layer.attention, dict[str, str]()
    if a.softcap is None and mixer_of(a, cross=cross).ignores_shift:
        why = "the same vector on every key adds the same to all scores of a query, which the weights ignore"
        if not rotates and a.qk_norm is None and a.clip_qkv is None:
            reasons |= {f"{prefix}.k.bias": why, f"{prefix}.global_k.bias": why}
        if a.qk_norm is not None and (not rotates or a.qk_norm.when == "after"):
            reasons[f"{prefix}.k_norm.bias"] = why
    return reasons


def _first_sees_itself_only(spec: ModelSpec, stack: Stack) -> bool:
    layer = stack.layers[-1]
    pattern, heads = pattern_of(stack, layer), range(layer.attention.heads)
    length = spec.embed.tokens() if isinstance(spec.embed, embed_head.PatchEmbed) else spec.context
    seen = {keys_seen(pattern, 0, length, head, len(stack.layers) - 1) for head in heads}
    return layer.attention.mixer.ignores_shift and seen == {1}
