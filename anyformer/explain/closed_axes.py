"""What a spec says on each closed axis: a value in words, an equation, and the file that serves it.

Leaves of open axes bring their own words and equations; the finite choices have theirs here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from anyformer.explain.groups import Group
from anyformer.explain.words import file_of, join, leaf_words, number, settings, some, text_of, with_settings
from anyformer.specs.axes import Dims, Leaf
from anyformer.specs.embed_head import NoHead, RegressionHead, TokenEmbed, TokenHead
from anyformer.specs.formulas import evaluate
from anyformer.specs.layer import Attention, HeadNorm, Layer, Placement, Topology
from anyformer.specs.model import ModelSpec
from anyformer.specs.parameters import projects, slots
from anyformer.specs.stacks import Stack

ATTENTION = "anyformer/parts/attention.py"
SCORES = "anyformer/kernels/attention/reference.py"
BLOCK = "anyformer/model/block.py"
STACK = "anyformer/model/stack.py"
SPEC = "anyformer/specs/model.py"


AXES: dict[str, tuple[str, Callable[..., Choice]]] = {}
"""Each axis, from the whole to its parts along the forward pass: whose matter it is, and what it is set to."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What an axis is set to. Two are equal if they mean the same to a model, however they are worded."""

    key: Any
    value: str = field(compare=False)
    words: str = field(default="", compare=False)
    equation: str = field(default="", compare=False)
    file: str = field(default="", compare=False)


NONE = Choice(key=None, value="none")


def axis(name: str, scope: Literal["model", "stack", "layer"] = "layer") -> Callable[..., Any]:
    """Register what an axis is set to, in a function of a spec, a stack, or a group of layers."""

    def register(choose: Callable[..., Choice]) -> Callable[..., Choice]:
        AXES[name] = scope, choose
        return choose

    return register


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


@axis("topology", "model")
def _topology(spec: ModelSpec) -> Choice:
    words, equation = TOPOLOGIES[spec.topology]
    file = "anyformer/model/model.py"
    return Choice(key=spec.topology, value=spec.topology, words=words, equation=equation, file=file)


axis("depth", "stack")(lambda stack: Choice(key=stack.depth, value=some(stack.depth, "layer"), file=STACK))
axis("width", "model")(
    lambda spec: Choice(
        key=spec.width, value=f"{spec.width:,}", words="Numbers in the residual of each token.", file=SPEC
    )
)


@axis("vocabulary", "model")
def _vocab(spec: ModelSpec) -> Choice:
    value, words = some(spec.vocab, "token") if spec.vocab else "no tokens", ""
    if spec.source_vocab is not None:
        value = f"source {some(spec.source_vocab, 'token')}, target {some(spec.vocab, 'token')}"
        words = "Source and target have a vocabulary and a table each."
    return Choice(key=(spec.source_vocab, spec.vocab), value=value, words=words, file=SPEC)


axis("context", "model")(
    lambda spec: Choice(key=spec.context, value=some(spec.context, "token"), words="The longest sequence.", file=SPEC)
)


@axis("embedding", "model")
def _embedding(spec: ModelSpec) -> Choice:
    embed = spec.embed
    if isinstance(embed, TokenEmbed) and embed.width == spec.width:
        embed = replace(embed, width=None)
    return of_leaf(embed, file="anyformer/parts/embedding.py")


axis("position")(lambda g: of_leaf(g.layer.position))


def heads_name(dims: Dims) -> str:
    """MHA 12, GQA 32/8 or MQA 48."""
    if dims.kv_heads == dims.heads:
        return f"MHA {dims.heads}"
    return f"MQA {dims.heads}" if dims.kv_heads == 1 else f"GQA {dims.heads}/{dims.kv_heads}"


@axis("heads")
def _heads(g: Group) -> Choice:
    share = g.dims.heads // g.dims.kv_heads
    outputs = "o_1" if g.dims.heads == 1 else f"[o_1 ... o_{g.dims.heads}]"
    if share == 1:
        words, keys = "Multi-head attention: every head has keys and values of its own.", "k_h, v_h"
    elif g.dims.kv_heads == 1:
        words, keys = "Multi-query attention: all heads share one set of keys and values.", "k, v"
    else:
        words, keys = f"Grouped-query attention: {share} heads share keys and values.", f"k, v of group h // {share}"
    return Choice(
        key=(g.dims.heads, g.dims.kv_heads, g.dims.head_dim),
        value=f"{heads_name(g.dims)}, heads of {g.dims.head_dim}",
        words=words,
        equation=f"y = W_o {outputs}, o_h = attend(q_h, {keys})",
        file=ATTENTION,
    )


@axis("projections")
def _projections(g: Group) -> Choice:
    a = g.layer.attention
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


@axis("pattern")
def _pattern(g: Group) -> Choice:
    found = g.pattern
    if found.kind:
        return of_leaf(found, value=str(found))
    file = "anyformer/specs/patterns.py"
    return Choice(key=found, value=str(found), equation=found.equation(), file=file)


axis("mixer")(lambda g: of_leaf(g.layer.attention.mixer))


@axis("scale")
def _scale(g: Group) -> Choice:
    given, usual = g.layer.attention.scale, Attention(heads=1).scale
    if g.layer.attention.mixer.stateful:
        return replace(NONE, words="The mixer has no scores.", file=SCORES)
    worth = evaluate(given, g.dims.names())
    key = usual if worth == evaluate(usual, g.dims.names()) else worth
    value = f"{given} = {worth:.4g}" if isinstance(given, str) else number(worth)
    return Choice(key=key, value=value, equation=f"s_ij = {worth:.4g} q_i . k_j", file=SCORES)


@axis("temperature")
def _temperature(g: Group) -> Choice:
    t = g.layer.attention.temperature
    if t is None:
        return replace(NONE, file=ATTENTION)
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
        return replace(NONE, file=file)
    order = f", {norm.when} the position" if ordered else ""
    value = f"{text_of(norm.leaf)}, {SCOPES[norm.scope]}{order}"
    return Choice(key=norm, value=value, equation=f"{equation}; {norm.leaf.equation()}".rstrip("; "), file=file)


axis("qk-norm")(lambda g: _head_norm(g.layer.attention.qk_norm, "q = norm(W_q x), k = norm(W_k x)"))
axis("v-norm")(lambda g: _head_norm(g.layer.attention.v_norm, "v = norm(W_v x)", ordered=False))


@axis("softcap")
def _softcap(g: Group) -> Choice:
    cap = g.layer.attention.softcap
    if cap is None:
        return replace(NONE, file=SCORES)
    words = "Scores can't grow beyond it."
    return Choice(key=cap, value=number(cap), words=words, equation=f"{cap:g} tanh(s_ij / {cap:g})", file=SCORES)


@axis("cross-attention")
def _cross(g: Group) -> Choice:
    if not g.stack.cross:
        return replace(NONE, file=ATTENTION)
    placed = g.layer.attention.cross_position
    return Choice(
        key=("cross", placed),
        value=f"every source token, {g.layer.position.called() if placed else 'no positions'}",
        words="A second attention, whose keys and values come from the encoder.",
        equation="q = W_q x, k = W_k m, v = W_v m, m the encoder's states",
        file=ATTENTION,
    )


@axis("feed-forward")
def _feed_forward(g: Group) -> Choice:
    leave = ("width", "multiple_of", "dropout")
    given = [f"width {g.dims.ffn_width:,}", settings(g.layer.ffn, *leave)]
    value = f"{g.layer.ffn.called()}: {', '.join(filter(None, given))}"
    kept = tuple((n, v) for n, v in vars(g.layer.ffn).items() if n not in leave)
    return of_leaf(g.layer.ffn, value=value, key=(g.layer.ffn.kind, g.dims.ffn_width, kept))


axis("norm")(lambda g: of_leaf(g.layer.norm.leaf))


PLACEMENTS: dict[Placement, tuple[str, str]] = {
    "pre": ("on the input of each branch", "x + f(norm(x))"),
    "post": ("after each add", "norm(x + f(x))"),
    "sandwich": ("on the input and the output of each branch", "x + norm(f(norm(x)))"),
    "output": ("on the output of each branch, before the add", "x + norm(f(x))"),
    "none": ("nowhere", "x + f(x)"),
}


@axis("placement")
def _placement(g: Group) -> Choice:
    both = (g.layer.norm.of_attention(), g.layer.norm.of_ffn())
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


@axis("wiring")
def _wiring(g: Group) -> Choice:
    factor = g.layer.block.branch_scale
    value = g.layer.block.wiring + (f", branches times {number(factor)}" if factor != 1 else "")
    if g.stack.reversible:
        value += f", streams merged by {g.stack.merge}"
    key = (g.layer.block.wiring, factor, g.layer.block.merge)
    return Choice(
        key=key, value=value, words=WIRINGS[g.layer.block.wiring], equation=block_equation(g.layer, g.stack), file=BLOCK
    )


@axis("stack norms", "stack")
def _stack_norms(stack: Stack) -> Choice:
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


@axis("dropout")
def _dropout(g: Group) -> Choice:
    rates = {"weights": g.layer.attention.dropout, "ffn": g.layer.ffn.dropout, "branches": g.layer.block.dropout}
    value = ", ".join(f"{name} {number(rate)}" for name, rate in rates.items() if rate)
    return Choice(key=tuple(rates.values()), value=value or "none", file=BLOCK)


@axis("head", "model")
def _head(spec: ModelSpec) -> Choice:
    choice = of_leaf(spec.head, file="anyformer/parts/heads.py")
    if isinstance(spec.head, TokenHead) and spec.head.tied and not spec.head.transform and projects(spec):
        # Only the spec knows that the table is of another width.
        return replace(choice, equation=choice.equation.replace("E h_t", "E W_p h_t"))
    return choice


@axis("loss", "model")
def _loss(spec: ModelSpec) -> Choice:
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


axis("init", "model")(lambda spec: of_leaf(spec.init))


@axis("special ids", "model")
def _special_ids(spec: ModelSpec) -> Choice:
    ids = spec.ids
    named = {"pad": ids.pad, "bos": ids.bos, "eos": " ".join(map(str, ids.eos)) or None, "start": ids.start}
    named |= {"source pad": ids.source_pad, "source eos": ids.source_eos}
    value = ", ".join(f"{name} {n}" for name, n in named.items() if n is not None)
    return Choice(key=ids, value=value or "none", file="anyformer/specs/layer.py")
