"""What a spec says on each closed axis: a value in words, an equation, and the file that serves it.

Leaves of open axes bring their own words and equations; the finite choices have theirs here.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from anyformer.explain.words import file_of, join, leaf_words, number, settings, some, text_of, with_settings
from anyformer.specs.axes import Dims, Leaf
from anyformer.specs.embed_head import NoHead, RegressionHead, TokenEmbed, TokenHead
from anyformer.specs.formulas import evaluate
from anyformer.specs.layer import Attention, HeadNorm, Layer, Placement, Topology
from anyformer.specs.model import ModelSpec
from anyformer.specs.parameters import projects, slots
from anyformer.specs.stacks import Stack, pattern_of

ATTENTION = "anyformer/parts/attention.py"
SCORES = "anyformer/kernels/attention/reference.py"
BLOCK = "anyformer/model/block.py"
STACK = "anyformer/model/stack.py"
SPEC = "anyformer/specs/model.py"


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What an axis is set to. Two are equal if they mean the same to a model, however they are worded."""

    key: Any
    value: str = field(compare=False)
    words: str = field(default="", compare=False)
    equation: str = field(default="", compare=False)
    file: str = field(default="", compare=False)


def of_leaf(leaf: Leaf, *leave: str, value: str = "", file: str = "", key: Any = None) -> Choice:
    """A choice of an open axis, in the leaf's own words."""
    return Choice(
        key=leaf if key is None else key,
        value=value or with_settings(leaf.called(), settings(leaf, *leave)),
        words=leaf_words(type(leaf)),
        equation=leaf.equation(),
        file=file or file_of(type(leaf)),
    )


TOPOLOGIES: dict[Topology, tuple[str, str]] = {
    "decoder": ("Each token sees what came before it.", "p(x) = product over t of p(x_t | x_1 ... x_(t-1))"),
    "encoder": ("Each token may see all others.", "h_1 ... h_n = f(x_1 ... x_n)"),
    "encoder-decoder": (
        "A decoder that also reads the states of an encoder.",
        "p(y | x) = product over t of p(y_t | y_1 ... y_(t-1), encoder(x))",
    ),
}


def topology(spec: ModelSpec) -> Choice:
    """Which stacks there are."""
    words, equation = TOPOLOGIES[spec.topology]
    file = "anyformer/model/model.py"
    return Choice(key=spec.topology, value=spec.topology, words=words, equation=equation, file=file)


def vocab(spec: ModelSpec) -> Choice:
    """Tokens that are known."""
    value, words = some(spec.vocab, "token") if spec.vocab else "no tokens", ""
    if spec.source_vocab is not None:
        value = f"source {some(spec.source_vocab, 'token')}, target {some(spec.vocab, 'token')}"
        words = "Source and target have a vocabulary and a table each."
    return Choice(key=(spec.source_vocab, spec.vocab), value=value, words=words, file=SPEC)


def width(spec: ModelSpec) -> Choice:
    """Numbers in the residual."""
    return Choice(key=spec.width, value=f"{spec.width:,}", words="Numbers in the residual of each token.", file=SPEC)


def context(spec: ModelSpec) -> Choice:
    """The longest sequence."""
    return Choice(key=spec.context, value=some(spec.context, "token"), words="The longest sequence.", file=SPEC)


def depth(_: ModelSpec, stack: Stack) -> Choice:
    """Blocks of a stack."""
    return Choice(key=stack.depth, value=some(stack.depth, "layer"), file=STACK)


def embedding(spec: ModelSpec) -> Choice:
    """What the model reads."""
    embed = spec.embed
    if isinstance(embed, TokenEmbed) and embed.width == spec.width:
        embed = replace(embed, width=None)
    return of_leaf(embed, file="anyformer/parts/embedding.py")


def head(spec: ModelSpec) -> Choice:
    """What it answers."""
    choice = of_leaf(spec.head, file="anyformer/parts/heads.py")
    if isinstance(spec.head, TokenHead) and spec.head.tied and not spec.head.transform and projects(spec):
        # Only the spec knows that the table is of another width.
        return replace(choice, equation=choice.equation.replace("E h_t", "E W_p h_t"))
    return choice


def init(spec: ModelSpec) -> Choice:
    """How weights start."""
    return of_leaf(spec.init)


def loss(spec: ModelSpec) -> Choice:
    """What training makes small."""
    file = "anyformer/kernels/loss.py"
    if isinstance(spec.head, NoHead):
        return Choice(key=("none", spec.loss), value="none", file=file)
    if isinstance(spec.head, RegressionHead):
        return Choice(key=("mse", spec.loss), value="mean squared error", equation="mean((y - label)^2)", file=file)
    names, terms, target = ["cross-entropy"], "mean(-log p[label])", spec.loss.label_smoothing
    if target:
        names.append(f"label smoothing {number(target)}")
        terms = f"mean(-{number(1 - target)} log p[label] - {number(target)} mean_v log p[v])"
    if spec.loss.z:
        names.append(f"z-loss {number(spec.loss.z)}")
        terms += f" + {number(spec.loss.z)} mean(logsumexp(logits)^2)"
    return Choice(key=("ce", spec.loss), value=", ".join(names), equation=terms, file=file)


def special_ids(spec: ModelSpec) -> Choice:
    """Token ids with a meaning."""
    ids = spec.ids
    named = {"pad": ids.pad, "bos": ids.bos, "eos": " ".join(map(str, ids.eos)) or None, "start": ids.start}
    named |= {"source pad": ids.source_pad, "source eos": ids.source_eos}
    value = ", ".join(f"{name} {n}" for name, n in named.items() if n is not None)
    return Choice(key=ids, value=value or "none", file="anyformer/specs/layer.py")


def stack_norms(_: ModelSpec, stack: Stack) -> Choice:
    """Norms outside of the blocks."""
    sites = {"after the embeddings": stack.embedding_norm, "after the last layer": stack.final_norm}
    found = [site for site, has in sites.items() if has]
    leaf = stack.norm.leaf
    equation = ", ".join(
        text for text, has in (("x_0 = norm(x)", stack.embedding_norm), ("h = norm(x_depth)", stack.final_norm)) if has
    )
    value = f"{leaf.called()} {join(found)}" if found else "none"
    # The norm itself is another axis, unless it is not that of the layers.
    own = leaf if found and leaf != stack.layers[0].norm.leaf else None
    return Choice(key=(tuple(found), own), value=value, equation=equation, file=STACK)


def position(_: ModelSpec, __: Stack, layer: Layer, ___: Dims) -> Choice:
    """How the model knows where a token is."""
    return of_leaf(layer.position)


def heads_name(dims: Dims) -> str:
    """MHA 12, GQA 32/8 or MQA 48."""
    if dims.kv_heads == dims.heads:
        return f"MHA {dims.heads}"
    return f"MQA {dims.heads}" if dims.kv_heads == 1 else f"GQA {dims.heads}/{dims.kv_heads}"


def heads(_: ModelSpec, __: Stack, ___: Layer, dims: Dims) -> Choice:
    """Query heads, and how many share keys and values."""
    share = dims.heads // dims.kv_heads
    outputs = "o_1" if dims.heads == 1 else f"[o_1 ... o_{dims.heads}]"
    if share == 1:
        words, keys = "Multi-head attention: every head has keys and values of its own.", "k_h, v_h"
    elif dims.kv_heads == 1:
        words, keys = "Multi-query attention: all heads share one set of keys and values.", "k, v"
    else:
        words, keys = f"Grouped-query attention: {share} heads share keys and values.", f"k, v of group h // {share}"
    return Choice(
        key=(dims.heads, dims.kv_heads, dims.head_dim),
        value=f"{heads_name(dims)}, heads of {dims.head_dim}",
        words=words,
        equation=f"y = W_o {outputs}, o_h = attend(q_h, {keys})",
        file=ATTENTION,
    )


def projections(_: ModelSpec, __: Stack, layer: Layer, ___: Dims) -> Choice:
    """Biases and clipping of queries, keys and values."""
    a = layer.attention
    value = f"biases on {join(list(a.bias))}" if a.bias else "no biases"
    maps = {name: f"W_{name} x + b_{name}" if name in a.bias else f"W_{name} x" for name in "qkv"}
    if a.clip_qkv is not None:
        value += f", q, k and v clipped to +-{number(a.clip_qkv)}"
        maps = {name: f"clip({text}, +-{number(a.clip_qkv)})" for name, text in maps.items()}
    if a.mixer.shares_keys:
        value, maps["k"] = f"{value}, keys are the queries", "q"
    if a.global_projections:
        value += ", global tokens have their own q, k and v"
    equation = ", ".join(f"{name} = {text}" for name, text in maps.items())
    equation += ", y = W_o o + b_o" if "o" in a.bias else ", y = W_o o"
    key = (frozenset(a.bias), a.clip_qkv, a.mixer.shares_keys, a.global_projections)
    return Choice(key=key, value=value, equation=equation, file=ATTENTION)


def pattern(_: ModelSpec, stack: Stack, layer: Layer, __: Dims) -> Choice:
    """Who may see whom."""
    found = pattern_of(stack, layer)
    if found.kind:
        return of_leaf(found, value=str(found))
    file = "anyformer/specs/patterns.py"
    return Choice(key=found, value=str(found), equation=found.equation(), file=file)


def mixer(_: ModelSpec, __: Stack, layer: Layer, ___: Dims) -> Choice:
    """How scores become weights."""
    return of_leaf(layer.attention.mixer)


def scale(_: ModelSpec, __: Stack, layer: Layer, dims: Dims) -> Choice:
    """What scores are multiplied by."""
    given, usual = layer.attention.scale, Attention(heads=1).scale
    if layer.attention.mixer.stateful:
        return Choice(key=None, value="none", words="The mixer has no scores.", file=SCORES)
    worth = evaluate(given, dims.names())
    key = usual if worth == evaluate(usual, dims.names()) else worth
    value = f"{given} = {worth:.4g}" if isinstance(given, str) else number(worth)
    return Choice(key=key, value=value, equation=f"s_ij = {worth:.4g} q_i . k_j", file=SCORES)


def temperature(_: ModelSpec, __: Stack, layer: Layer, ___: Dims) -> Choice:
    """A factor on queries that grows with their position."""
    t = layer.attention.temperature
    if t is None:
        return Choice(key=None, value="none", file=ATTENTION)
    equation = {
        "log1p": f"q_p (1 + {number(t.strength)} ln(1 + floor((p + 1) / {t.length})))",
        "log_n": f"q_p max(1, ln(p + 1) / ln({t.length}))",
    }[t.kind]
    words = "Queries grow with their position."
    return Choice(key=t, value=f"{t.kind}, length {t.length}", words=words, equation=equation, file=ATTENTION)


SCOPES = {
    "head": "over each head, one gain for all",
    "heads": "over each head, a gain for each",
    "whole": "over all heads at once",
}


def _head_norm(norm: HeadNorm | None, equation: str, *, ordered: bool = True) -> Choice:
    file = "anyformer/parts/norm.py"
    if norm is None:
        return Choice(key=None, value="none", file=file)
    order = f", {norm.when} the position" if ordered else ""
    value = f"{text_of(norm.leaf)}, {SCOPES[norm.scope]}{order}"
    return Choice(key=norm, value=value, equation=f"{equation}; {norm.leaf.equation()}".rstrip("; "), file=file)


def qk_norm(_: ModelSpec, __: Stack, layer: Layer, ___: Dims) -> Choice:
    """A norm on queries and keys."""
    return _head_norm(layer.attention.qk_norm, "q = norm(W_q x), k = norm(W_k x)")


def v_norm(_: ModelSpec, __: Stack, layer: Layer, ___: Dims) -> Choice:
    """A norm on values."""
    return _head_norm(layer.attention.v_norm, "v = norm(W_v x)", ordered=False)


def softcap(_: ModelSpec, __: Stack, layer: Layer, ___: Dims) -> Choice:
    """A bound on scores."""
    cap = layer.attention.softcap
    if cap is None:
        return Choice(key=None, value="none", file=SCORES)
    words = "Scores can't grow beyond it."
    return Choice(key=cap, value=number(cap), words=words, equation=f"{cap:g} tanh(s_ij / {cap:g})", file=SCORES)


def cross(_: ModelSpec, stack: Stack, layer: Layer, __: Dims) -> Choice:
    """Whether and how a layer reads an encoder."""
    if not stack.cross:
        return Choice(key=None, value="none", file=ATTENTION)
    placed = layer.attention.cross_position
    return Choice(
        key=("cross", placed),
        value=f"every source token, {layer.position.called() if placed else 'no positions'}",
        words="A second attention, whose keys and values come from the encoder.",
        equation="q = W_q x, k = W_k m, v = W_v m, m the encoder's states",
        file=ATTENTION,
    )


def feed_forward(_: ModelSpec, __: Stack, layer: Layer, dims: Dims) -> Choice:
    """The network of each token."""
    leave = ("width", "multiple_of", "dropout")
    given = [f"width {dims.ffn_width:,}", settings(layer.ffn, *leave)]
    value = f"{layer.ffn.called()}: {', '.join(filter(None, given))}"
    kept = tuple((n, v) for n, v in vars(layer.ffn).items() if n not in leave)
    return of_leaf(layer.ffn, value=value, key=(layer.ffn.kind, dims.ffn_width, kept))


def norm(_: ModelSpec, __: Stack, layer: Layer, ___: Dims) -> Choice:
    """Which norm the blocks use."""
    return of_leaf(layer.norm.leaf)


PLACEMENTS: dict[Placement, tuple[str, str]] = {
    "pre": ("on the input of each branch", "x + f(norm(x))"),
    "post": ("after each add", "norm(x + f(x))"),
    "sandwich": ("on the input and the output of each branch", "x + norm(f(norm(x)))"),
    "output": ("on the output of each branch, before the add", "x + norm(f(x))"),
    "none": ("nowhere", "x + f(x)"),
}


def placement(_: ModelSpec, __: Stack, layer: Layer, ___: Dims) -> Choice:
    """Where norms stand in a block."""
    both = (layer.norm.of_attention(), layer.norm.of_ffn())
    if both[0] == both[1]:
        words, equation = PLACEMENTS[both[0]]
        return Choice(key=both, value=both[0], words=f"The norm stands {words}.", equation=equation, file=BLOCK)
    named = [f"{name}: {PLACEMENTS[each][1]}" for name, each in zip(("attention", "ffn"), both, strict=True)]
    return Choice(key=both, value=f"attention {both[0]}, ffn {both[1]}", equation="; ".join(named), file=BLOCK)


WIRINGS = {
    "serial": "Attention first; the feed-forward reads its result.",
    "parallel": "All branches read the same input, through one shared norm if there is one.",
    "parallel2": "All branches read the same input, each through a norm of its own.",
    "reversible": "Two streams, each branch reads one and adds to the other; training recomputes inputs instead of keeping them.",
}


def wiring(_: ModelSpec, stack: Stack, layer: Layer, __: Dims) -> Choice:
    """How the branches of a block meet the residual."""
    factor = layer.block.branch_scale
    value = layer.block.wiring + (f", branches times {number(factor)}" if factor != 1 else "")
    if stack.reversible:
        value += f", streams merged by {stack.merge}"
    key = (layer.block.wiring, factor, layer.block.merge)
    return Choice(
        key=key, value=value, words=WIRINGS[layer.block.wiring], equation=block_equation(layer, stack), file=BLOCK
    )


def block_equation(layer: Layer, stack: Stack) -> str:
    """A whole block, norms and all."""
    names = ("attention", "cross", "ffn") if stack.cross else ("attention", "ffn")
    factor = "" if layer.block.branch_scale == 1 else f"{number(layer.block.branch_scale)} "
    shared = slots(layer, "attention")

    def branch(name: str, read: str) -> str:
        _, outer, _ = slots(layer, name)
        return f"{factor}norm({name}({read}))" if outer else f"{factor}{name}({read})"

    if layer.block.wiring == "reversible":
        # Branches alternate: each reads the stream that the one before has just changed.
        steps, streams = list[str](), ["x1", "x2"]
        for i, name in enumerate(names):
            to, read = i % 2, streams[1 - i % 2]
            reads = f"norm({read})" if slots(layer, name)[0] else read
            total, streams[to] = f"{streams[to]} + {branch(name, reads)}", f"y{to + 1}"
            steps.append(f"{streams[to]} = {total}")
        return "; ".join(steps)
    if layer.block.wiring == "serial":
        steps, x = list[str](), "x"
        for name, result in zip(names, ("a", "c", "y") if stack.cross else ("a", "y"), strict=True):
            inner, _, after = slots(layer, name)
            total = f"{x} + {branch(name, f'norm({x})' if inner else x)}"
            steps.append(f"{result} = {f'norm({total})' if after else total}")
            x = result
        return "; ".join(steps)
    reads = ["norm(x)" if shared[0] or slots(layer, name)[0] else "x" for name in names]
    if layer.block.wiring == "parallel2":
        reads = [f"norm_{i}(x)" for i in range(1, len(names) + 1)]
    total = " + ".join(["x", *(branch(name, read) for name, read in zip(names, reads, strict=True))])
    return f"y = norm({total})" if shared[2] else f"y = {total}"


def dropout(_: ModelSpec, __: Stack, layer: Layer, ___: Dims) -> Choice:
    """What is dropped in training, inside of a block."""
    rates = {"weights": layer.attention.dropout, "ffn": layer.ffn.dropout, "branches": layer.block.dropout}
    value = ", ".join(f"{name} {number(rate)}" for name, rate in rates.items() if rate)
    return Choice(key=tuple(rates.values()), value=value or "none", file=BLOCK)
