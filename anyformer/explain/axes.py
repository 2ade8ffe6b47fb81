"""The axes of a spec: what each is set to and in which layers, as a value in words, an equation and the file that serves it.

Leaves of open axes bring their own words and equations; the finite choices have theirs here.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from anyformer.explain.groups import Group, groups, place_of
from anyformer.explain.words import file_of, join, leaf_words, number, settings, some, text_of, with_settings
from anyformer.specs.axes import Dims, Leaf
from anyformer.specs.embed_head import NoHead, RegressionHead, SequenceHead, TokenEmbed, TokenHead
from anyformer.specs.formulas import evaluate
from anyformer.specs.layer import Attention, HeadNorm, Layer, Placement, Topology
from anyformer.specs.model import ModelSpec
from anyformer.specs.parameters import projects, slots
from anyformer.specs.stacks import Stack

ATTENTION = "anyformer/parts/attention.py"
SCORES = "anyformer/kernels/attention/reference.py"
BLOCK = "anyformer/model/block.py"
STACK = "anyformer/model/stack.py"
NORM = "anyformer/parts/norm.py"
SPEC = "anyformer/specs/model.py"

AXES: "dict[str, tuple[str, Callable[..., Choice]]]" = {}
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


@dataclass(frozen=True, kw_only=True)
class Placed:
    """A choice, and the layers that it holds in."""

    choice: Choice
    layers: Mapping[str, tuple[int, ...]]
    """Stack -> layers; empty if it is no matter of layers."""
    where: str
    """The same in words; empty if it holds everywhere."""


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One axis of a spec."""

    name: str
    placed: tuple[Placed, ...]
    by_stack: Mapping[str, tuple[Choice, ...]]
    """Stack -> the choice in each of its layers; one choice if it is no matter of layers."""

    @property
    def value(self) -> str:
        return "; ".join(f"{each.where}: {each.choice.value}".removeprefix(": ") for each in self.placed)

    def same(self, other: "Axis") -> bool:
        """Whether both mean the same. A deeper model that goes on in the same cycle does not differ by that."""
        ours, theirs = self.by_stack, other.by_stack
        # If one has a stack more, the topology says so, and what both have is compared.
        shared = [(ours[name], theirs[name]) for name in ours if name in theirs]
        pairs = shared or [([*ours.values()][-1], [*theirs.values()][-1])]
        return all(a[: len(b)] == b[: len(a)] for a, b in pairs)


def axes_of(spec: ModelSpec, layer: int | None = None) -> tuple[Axis, ...]:
    """Every axis in order; of the layers only those alike to `layer` if it is given."""
    alike, made = groups(spec, layer), list[Axis]()
    for name, (scope, choose) in AXES.items():
        if scope == "layer":
            made.append(_of_layers(name, spec, [(group, choose(group)) for group in alike]))
            continue
        found = {"": choose(spec)} if scope == "model" else {stack.name: choose(stack) for stack in spec.stacks}
        one = len({(choice, choice.value) for choice in found.values()}) == 1
        placed = [Placed(choice=choice, layers={}, where="" if one else stack) for stack, choice in found.items()]
        by_stack = {stack: (choice,) for stack, choice in found.items()}
        made.append(Axis(name=name, placed=tuple(placed[:1] if one else placed), by_stack=by_stack))
    return tuple(made)


def _of_layers(name: str, spec: ModelSpec, chosen: Sequence[tuple[Group, Choice]]) -> Axis:
    # What means the same and reads the same stands on one line.
    members: dict[tuple[Choice, str], dict[str, list[int]]] = {}
    equations: dict[tuple[Choice, str], dict[str, str]] = {}
    by_stack: dict[str, dict[int, Choice]] = {}
    for group, choice in chosen:
        shown, stack = (choice, choice.value), group.stack.name
        members.setdefault(shown, {}).setdefault(stack, []).extend(group.indices)
        equations.setdefault(shown, {}).setdefault(stack, choice.equation)
        by_stack.setdefault(stack, {}).update(dict.fromkeys(group.indices, choice))
    placed = [
        Placed(
            choice=replace(shown[0], equation=_equation(equations[shown])),
            layers={stack: tuple(sorted(indices)) for stack, indices in stacks.items()},
            where="" if len(members) == 1 else place_of(spec, stacks),
        )
        for shown, stacks in members.items()
    ]
    in_order = {stack: tuple(found[i] for i in sorted(found)) for stack, found in by_stack.items()}
    return Axis(name=name, placed=tuple(placed), by_stack=in_order)


def _equation(by_stack: Mapping[str, str]) -> str:
    """One equation, or one for each stack where a decoder that reads an encoder has a term more."""
    if len(set(by_stack.values())) == 1:
        return next(iter(by_stack.values()))
    return "; ".join(f"{stack}: {equation}" for stack, equation in by_stack.items())


def axis(name: str, scope: Literal["model", "stack", "layer"] = "layer", file: str = "") -> Callable[..., Any]:
    """Register what an axis is set to, in a function of a spec, a stack, or a group of layers, and the file that serves
    it, if that is not a leaf's own.
    """

    def register(choose: Callable[..., Choice]) -> Callable[..., Choice]:
        def chosen(given: Any) -> Choice:
            choice = choose(given)
            return replace(choice, file=file or choice.file)

        AXES[name] = scope, chosen
        return choose

    return register


def of_leaf(leaf: Leaf, *leave: str, value: str = "", key: Any = None) -> Choice:
    """A choice of an open axis, in the leaf's own words."""
    return Choice(
        key=leaf if key is None else key,
        value=value or with_settings(leaf.called(), settings(leaf, *leave)),
        words=leaf_words(type(leaf)),
        equation=leaf.equation(),
        file=file_of(type(leaf)),
    )


TOPOLOGIES: dict[Topology, tuple[str, str]] = {
    "decoder": ("Each token sees what came before it.", "p(x) = product over t of p(x_t | x_1 ... x_(t-1))"),
    "encoder": ("Each token may see all others.", "h_1 ... h_n = f(x_1 ... x_n)"),
    "encoder-decoder": (
        "A decoder that also reads the states of an encoder.",
        "p(y | x) = product over t of p(y_t | y_1 ... y_(t-1), encoder(x))",
    ),
}


@axis("topology", "model", "anyformer/model/model.py")
def _topology(spec: ModelSpec) -> Choice:
    words, equation = TOPOLOGIES[spec.topology]
    return Choice(key=spec.topology, value=spec.topology, words=words, equation=equation)


@axis("depth", "stack", STACK)
def _depth(stack: Stack) -> Choice:
    value, words, sets = some(stack.depth, "layer"), "", len(stack.blocks)
    if stack.shared:
        value = f"{value}, {some(sets, 'set')} of parameters"
        words = "Layers share their parameters."
    return Choice(key=(stack.depth, stack.shared), value=value, words=words)


axis("width", "model", SPEC)(
    lambda spec: Choice(key=spec.width, value=f"{spec.width:,}", words="Numbers in the residual of each token.")
)


@axis("vocabulary", "model", SPEC)
def _vocab(spec: ModelSpec) -> Choice:
    value, words = some(spec.vocab, "token") if spec.vocab else "no tokens", ""
    if spec.source_vocab is not None:
        value = f"source {some(spec.source_vocab, 'token')}, target {some(spec.vocab, 'token')}"
        words = "Source and target have a vocabulary and a table each."
    return Choice(key=(spec.source_vocab, spec.vocab), value=value, words=words)


axis("context", "model", SPEC)(
    lambda spec: Choice(key=spec.context, value=some(spec.context, "token"), words="The longest sequence.")
)


@axis("embedding", "model", "anyformer/parts/embedding.py")
def _embedding(spec: ModelSpec) -> Choice:
    embed = spec.embed
    if isinstance(embed, TokenEmbed) and embed.width == spec.width:
        embed = replace(embed, width=None)
    return of_leaf(embed)


axis("position")(lambda g: of_leaf(g.layer.position))


def heads_name(dims: Dims) -> str:
    """MHA 12, GQA 32/8 or MQA 48."""
    if dims.kv_heads == dims.heads:
        return f"MHA {dims.heads}"
    return f"MQA {dims.heads}" if dims.kv_heads == 1 else f"GQA {dims.heads}/{dims.kv_heads}"


@axis("heads", file=ATTENTION)
def _heads(g: Group) -> Choice:
    heads, kv_heads, head_dim = g.dims.heads, g.dims.kv_heads, g.dims.head_dim
    outputs, share = "o_1" if heads == 1 else f"[o_1 ... o_{heads}]", heads // kv_heads
    if share == 1:
        words, keys = "Multi-head attention: every head has keys and values of its own.", "k_h, v_h"
    elif kv_heads == 1:
        words, keys = "Multi-query attention: all heads share one set of keys and values.", "k, v"
    else:
        words, keys = f"Grouped-query attention: {share} heads share keys and values.", f"k, v of group h // {share}"
    value, equation = f"{heads_name(g.dims)}, heads of {head_dim}", f"y = W_o {outputs}, o_h = attend(q_h, {keys})"
    return Choice(key=(heads, kv_heads, head_dim), value=value, words=words, equation=equation)


@axis("projections", file=ATTENTION)
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
    return Choice(key=key, value=value, equation=equation)


@axis("pattern")
def _pattern(g: Group) -> Choice:
    found = g.pattern
    if found.kind:
        return of_leaf(found, value=str(found))
    return Choice(key=found, value=str(found), equation=found.equation(), file="anyformer/specs/patterns.py")


axis("mixer")(lambda g: of_leaf(g.layer.attention.mixer))


@axis("scale", file=SCORES)
def _scale(g: Group) -> Choice:
    given, usual = g.layer.attention.scale, Attention(heads=1).scale
    if g.layer.attention.mixer.stateful:
        return replace(NONE, words="The mixer has no scores.")
    worth = evaluate(given, g.dims.names())
    key = usual if worth == evaluate(usual, g.dims.names()) else worth
    value = f"{given} = {worth:.4g}" if isinstance(given, str) else number(worth)
    return Choice(key=key, value=value, equation=f"s_ij = {worth:.4g} q_i . k_j")


@axis("temperature", file=ATTENTION)
def _temperature(g: Group) -> Choice:
    t = g.layer.attention.temperature
    if t is None:
        return NONE
    place = f"(p + {t.offset})" if t.offset else "p"
    equation = {
        "log1p": f"q_p (1 + {number(t.strength)} ln(1 + floor({place} / {t.length})))",
        "log_n": f"q_p max(1, ln{place if t.offset else '(p)'} / ln({t.length}))",
    }[t.kind]
    value, words = f"{t.kind}, length {t.length}", "Queries grow with their position."
    return Choice(key=t, value=value, words=words, equation=equation)


SCOPES = {
    "head": "over each head, one gain for all",
    "heads": "over each head, a gain for each",
    "whole": "over all heads at once",
}


def _head_norm(norm: HeadNorm | None, equation: str, *, ordered: bool = True) -> Choice:
    if norm is None:
        return NONE
    order = f", {norm.when} the position" if ordered else ""
    value = f"{text_of(norm.leaf)}, {SCOPES[norm.scope]}{order}"
    return Choice(key=norm, value=value, equation=f"{equation}; {norm.leaf.equation()}".rstrip("; "))


axis("qk-norm", file=NORM)(lambda g: _head_norm(g.layer.attention.qk_norm, "q = norm(W_q x), k = norm(W_k x)"))
axis("v-norm", file=NORM)(lambda g: _head_norm(g.layer.attention.v_norm, "v = norm(W_v x)", ordered=False))


@axis("softcap", file=SCORES)
def _softcap(g: Group) -> Choice:
    cap = g.layer.attention.softcap
    if cap is None:
        return NONE
    words, equation = "Scores can't grow beyond it.", f"{cap:g} tanh(s_ij / {cap:g})"
    return Choice(key=cap, value=number(cap), words=words, equation=equation)


@axis("cross-attention", file=ATTENTION)
def _cross(g: Group) -> Choice:
    if not g.stack.cross:
        return NONE
    placed = g.layer.attention.cross_position
    value = f"every source token, {g.layer.position.called() if placed else 'no positions'}"
    words = "A second attention, whose keys and values come from the encoder."
    equation = "q = W_q x, k = W_k m, v = W_v m, m the encoder's states"
    return Choice(key=("cross", placed), value=value, words=words, equation=equation)


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


@axis("placement", file=BLOCK)
def _placement(g: Group) -> Choice:
    both = attention, ffn = (g.layer.norm.of_attention(), g.layer.norm.of_ffn())
    if attention == ffn:
        words, equation = PLACEMENTS[ffn]
        return Choice(key=both, value=ffn, words=f"The norm stands {words}.", equation=equation)
    equation = f"attention: {PLACEMENTS[attention][1]}; ffn: {PLACEMENTS[ffn][1]}"
    return Choice(key=both, value=f"attention {attention}, ffn {ffn}", equation=equation)


WIRINGS = {
    "serial": "Attention first; the feed-forward reads its result.",
    "parallel": "All branches read the same input, through one shared norm if there is one.",
    "parallel2": "All branches read the same input, each through a norm of its own.",
    "reversible": "Two streams, each branch reads one and adds to the other; training recomputes inputs instead of keeping them.",
}


def block_equation(layer: Layer, stack: Stack) -> str:
    """A whole block, norms and all."""
    names, wiring = ("attention", "cross", "ffn") if stack.cross else ("attention", "ffn"), layer.block.wiring
    factor = "" if layer.block.branch_scale == 1 else f"{number(layer.block.branch_scale)} "

    def branch(name: str, read: str) -> str:
        return f"{factor}norm({name}({read}))" if slots(layer, name)[1] else f"{factor}{name}({read})"

    if wiring in ("parallel", "parallel2"):
        shared, _, after = slots(layer, "attention")
        reads = ["norm(x)" if shared or slots(layer, name)[0] else "x" for name in names]
        if wiring == "parallel2":
            reads = [f"norm_{i}(x)" for i in range(1, len(names) + 1)]
        total = " + ".join(["x", *map(branch, names, reads)])
        return f"y = norm({total})" if after else f"y = {total}"
    # Branches of a reversible block alternate: each reads the stream that the one before has just changed.
    streams, steps = ["x1", "x2"] if wiring == "reversible" else ["x"], list[str]()
    for i, name in enumerate(names):
        to = i % len(streams)
        (inner, _, after), read = slots(layer, name), streams[to - 1]
        result = f"y{to + 1}" if wiring == "reversible" else "y" if name == "ffn" else name[0]
        total = f"{streams[to]} + {branch(name, f'norm({read})' if inner else read)}"
        steps.append(f"{result} = {f'norm({total})' if after else total}")
        streams[to] = result
    return "; ".join(steps)


@axis("wiring", file=BLOCK)
def _wiring(g: Group) -> Choice:
    wiring, factor, equation = g.layer.block.wiring, g.layer.block.branch_scale, block_equation(g.layer, g.stack)
    value = wiring + (f", branches times {number(factor)}" if factor != 1 else "")
    if g.stack.reversible:
        value += f", streams merged by {g.stack.merge}"
    return Choice(key=(wiring, factor, g.layer.block.merge), value=value, words=WIRINGS[wiring], equation=equation)


@axis("stack norms", "stack", STACK)
def _stack_norms(stack: Stack) -> Choice:
    first, last = ("after the embeddings", "x_0 = norm(x)"), ("after the last layer", "h = norm(x_depth)")
    found = [site for site, has in ((first, stack.norm.embedding), (last, stack.norm.has_final())) if has]
    sites, leaf = tuple(where for where, _ in found), stack.norm.leaf
    value = f"{leaf.called()} {join([*sites])}" if found else "none"
    # The norm itself is another axis, unless it is not that of the layers.
    own = leaf if found and leaf != stack.layers[0].norm.leaf else None
    return Choice(key=(sites, own), value=value, equation=", ".join(equation for _, equation in found))


@axis("dropout", file=BLOCK)
def _dropout(g: Group) -> Choice:
    rates = {"weights": g.layer.attention.dropout, "ffn": g.layer.ffn.dropout, "branches": g.layer.block.dropout}
    value = ", ".join(f"{name} {number(rate)}" for name, rate in rates.items() if rate)
    return Choice(key=tuple(rates.values()), value=value or "none")


@axis("head", "model", "anyformer/parts/heads.py")
def _head(spec: ModelSpec) -> Choice:
    choice = of_leaf(spec.head)
    if isinstance(spec.head, TokenHead) and spec.head.tied and not spec.head.transform and projects(spec):
        # Only the spec knows that the table is of another width.
        return replace(choice, equation=choice.equation.replace("E h_t", "E W_p h_t"))
    return choice


@axis("loss", "model", "anyformer/kernels/loss.py")
def _loss(spec: ModelSpec) -> Choice:
    if isinstance(spec.head, NoHead):
        return Choice(key=("none", spec.loss), value="none")
    problem = spec.head.problem if isinstance(spec.head, SequenceHead) else None
    if problem == "multi":
        words = "mean(-label log p - (1 - label) log(1 - p)), p = sigmoid(logits)"
        return Choice(key=("bce", spec.loss), value="binary cross-entropy", equation=words)
    if problem == "regression" or isinstance(spec.head, RegressionHead):
        return Choice(key=("mse", spec.loss), value="mean squared error", equation="mean((y - label)^2)")
    names, terms, target = ["cross-entropy"], "mean(-log p[label])", spec.loss.label_smoothing
    if target:
        names.append(f"label smoothing {number(target)}")
        terms = f"mean(-{number(1 - target)} log p[label] - {number(target)} mean_v log p[v])"
    if spec.loss.z:
        names.append(f"z-loss {number(spec.loss.z)}")
        terms += f" + {number(spec.loss.z)} mean(logsumexp(logits)^2)"
    return Choice(key=("ce", spec.loss), value=", ".join(names), equation=terms)


axis("init", "model")(lambda spec: of_leaf(spec.init))


@axis("special ids", "model", "anyformer/specs/layer.py")
def _special_ids(spec: ModelSpec) -> Choice:
    given = vars(spec.ids) | {"eos": " ".join(map(str, spec.ids.eos)) or None}
    value = ", ".join(f"{name.replace('_', ' ')} {n}" for name, n in given.items() if n is not None)
    return Choice(key=spec.ids, value=value or "none")
