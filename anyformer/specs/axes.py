"""The open axes of a spec, and the small values that their leaves share.

A leaf is one frozen dataclass. Its fields are the spec; its methods are the maths, written on the tensors they
are given. No leaf imports torch when it is imported, so reading, counting and explaining a spec stays fast.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from anyformer.registry import OpenAxis

if TYPE_CHECKING:
    from torch import Tensor
else:
    # Leaves say it in annotations, and reading a spec must not import torch.
    Tensor = Any

Params = Mapping[str, Tensor]
"""The parameters and constants of a leaf by name, as its module keeps them."""
Problem = tuple[str, str]
"""A field (or a dotted path below the node) and what is wrong with it."""


@dataclass(frozen=True, kw_only=True)
class Dims:
    """The sizes of one layer, with every derived size filled in."""

    width: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn_width: int
    depth: int
    context: int
    causal: bool
    embed_width: int

    def names(self) -> dict[str, float]:
        """The names that a scale such as `1/sqrt(head_dim)` may use."""
        return {"width": self.width, "heads": self.heads, "head_dim": self.head_dim, "depth": self.depth}


Role = Literal[
    "embedding", "position_embedding", "query", "key", "value", "attention_out", "ffn_in", "ffn_out",
    "router", "head", "dense", "project", "relative", "gain", "bias", "sink",
]  # fmt: skip
"""What a parameter is for: initialisation, optimizer groups and counts go by it."""


@dataclass(frozen=True, kw_only=True)
class ParamSpec:
    """One parameter tensor: its shape, its role, and its start value if that is a constant."""

    shape: tuple[int, ...]
    role: Role
    fill: float | None = None
    exact: bool = False
    """Whether it stays in at least float32 when a model is cast to 16 bits."""

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


def linear(name: str, out: int, into: int, role: Role, bias: bool, stack: tuple[int, ...] = ()) -> NamedWeights:
    """A matrix (out, in) and its bias, or a stack of them."""
    yield f"{name}.weight", ParamSpec(shape=(*stack, out, into), role=role)
    if bias:
        yield f"{name}.bias", ParamSpec(shape=(*stack, out), role="bias", fill=0.0)


NamedWeights = Iterator[tuple[str, ParamSpec]]


@dataclass(frozen=True, kw_only=True)
class Normal:
    """Draw from N(0, std^2), cut at `cut` standard deviations if given."""

    std: float
    cut: float | None = None


class Leaf(OpenAxis):
    """What the leaves of all axes have in common."""

    title: ClassVar[str] = ""
    """What people call it, if that is not its kind."""
    minimum: ClassVar[Mapping[str, int]] = {}
    """Fields with a smallest value."""
    positive: ClassVar[tuple[str, ...]] = ()
    """Fields that must be above 0."""
    hints: ClassVar[Mapping[str, str]] = {}
    """What to say of a field that is below its bound."""
    formula: ClassVar[str] = ""
    """What it computes, in one line of plain text with {field} for its own numbers, unless `equation` says more."""

    def called(self) -> str:
        """The name for people."""
        return self.title or self.kind

    def equation(self) -> str:
        """What it computes, in one line of plain text with its own numbers filled in; "" if it has nothing to say."""
        return self.formula.format_map(vars(self))

    def problems(self) -> Iterator[Problem]:
        """What is wrong with this node on its own: fields beyond their bounds, and what a leaf adds. Unset is never wrong."""
        for name in (*self.minimum, *self.positive):
            value, least = getattr(self, name), self.minimum.get(name)
            if value is not None and (value <= 0 if least is None else value < least):
                hint = f"; {self.hints[name]}" if name in self.hints else ""
                yield name, f"{value} is not {'above 0' if least is None else f'at least {least}'}{hint}"


class Init(Leaf, axis="init", leaves="anyformer.parts.inits"):
    """How the weight matrices and tables start. Gains, biases and sinks carry their own constant."""

    def rule(self, weight: ParamSpec, *, width: int, depth: int, tied: bool, heads: int, head_dim: int) -> Normal:
        """The distribution of one weight."""
        raise TypeError(f"{type(self).__name__} defines no rule()")


class NormRecipe(NamedTuple):
    """A norm in the words that a fused kernel knows: scale by the mean square, gain, bias."""

    centred: bool
    """The mean is taken off first."""
    gain: Literal["weight", "one_plus", "none"]
    gain_at: Literal["before_cast", "after_cast"]


ActivationName = Literal["none", "sigmoid", "silu", "relu", "relu2", "gelu", "gelu_tanh", "gelu_quick"]


class Activation(NamedTuple):
    """A feed-forward's `combine` in the words that a fused kernel knows; with two inputs the first is the gate."""

    name: ActivationName
    clamp: float | None = None
    offset: float = 0.0


class Norm(Leaf, axis="norm", leaves="anyformer.parts.norms"):
    """Normalises the last dimension of its input, in promote(dtype, float32)."""

    eps: float

    def weights(self, shape: tuple[int, ...]) -> dict[str, ParamSpec]:
        """Parameters for vectors of this shape: a gain, a bias, whatever the norm has."""
        raise TypeError(f"{type(self).__name__} defines no weights()")

    def apply(self, x: Tensor, own: Params) -> Tensor:
        """Normalise x over its last dimension; parameters may have leading head dimensions."""
        raise TypeError(f"{type(self).__name__} defines no apply()")

    def recipe(self) -> NormRecipe | None:
        """What `apply` does, for a kernel that does it on its way; None if only `apply` can."""
        return None


class FeedForward(Leaf, axis="ffn", leaves="anyformer.parts.ffns"):
    """The position-wise network: `inputs` projections of the residual, one product, one projection back."""

    inputs: ClassVar[tuple[str, ...]]
    width: int | None
    bias: bool
    down_bias: bool | None = None
    """Whether the projection back has a bias, if that is not what `bias` says."""
    dropout: float
    chunk: int | None = None
    """Tokens that go through the network at a time; None: all at once."""
    routes: ClassVar[bool] = False
    """True if a router sends each token through some of several networks."""

    def hidden(self, width: int) -> int:
        """Inner width for a residual of this width."""
        raise TypeError(f"{type(self).__name__} defines no hidden()")

    def weights(self, width: int) -> dict[str, ParamSpec]:
        """Parameters of the network, for a residual of this width."""
        inner, found = self.hidden(width), dict[str, ParamSpec]()
        for name in self.inputs:
            found |= linear(name, inner, width, "ffn_in", self.bias)
        return found | dict(linear("down", width, inner, "ffn_out", self.biased_down()))

    def biased_down(self) -> bool:
        """Whether the projection back has a bias."""
        return self.bias if self.down_bias is None else self.down_bias

    def silent(self) -> dict[str, str]:
        """Parameters of `weights` whose gradient is zero by mathematics, with the reason."""
        return {}

    def products(self, width: int) -> int:
        """Multiplications and additions, in pairs, that a token costs."""
        return width * self.hidden(width) * (len(self.inputs) + 1)

    def inside(self, width: int) -> int:
        """Numbers that the network makes for a token between its input and its output."""
        return (len(self.inputs) + 1) * self.hidden(width)

    def idle(self, width: int, tokens: int = 1) -> int:
        """Parameters that so many tokens leave unused at least: those of experts that none of them can choose."""
        return 0

    def combine(self, *inputs: Tensor) -> Tensor:
        """The inner activation from the input projections, in the order of `inputs`."""
        raise TypeError(f"{type(self).__name__} defines no combine()")

    def activation(self) -> Activation | None:
        """What `combine` does, for a kernel that does it on its way; None if only `combine` can."""
        return None


class MixerInput(NamedTuple):
    """What a mixer with a way of its own is given: projected, normed tensors that are not turned yet."""

    q_BTHK: Any
    k_BSGK: Any
    v_BSGK: Any
    turn: Callable[[Any], Any]
    """Rotates new queries or keys by their positions; returns its argument where the scheme rotates nothing."""
    mask: Any
    """Who may see whom (kernels.attention_mask.AttentionMask)."""
    scale: float
    dropout: float
    state: tuple[Any, ...] | None
    """The row's state (of a stateful mixer), changed in place; None without a cache."""
    decide: Callable[[Callable[[], Any]], Any]
    """Calls its argument for a decision (buckets, experts) that must not be made anew when a pass is replayed."""


class Mixer(Leaf, axis="mixer", leaves="anyformer.parts.mixers"):
    """How scores become weights on values. An exact mixer keeps every promise; an approximate one says so."""

    exact: ClassVar[bool] = True
    shares_keys: ClassVar[bool] = False
    """True if keys are made from the queries (`keys`), so that there is no key projection."""
    stateful: ClassVar[bool] = False
    """True if a cache keeps one state of a fixed size for each row (`state`) instead of keys and values."""

    def approximation(self) -> str:
        """Of a mixer that is not exact: where it departs from attention to all allowed keys, and what it still keeps."""
        return "is approximate: what it drops may depend on how a text is cut, padded or packed"

    @property
    def ignores_shift(self) -> bool:
        """True if adding a number to all scores of a query changes no weight."""
        return False

    def weights(self, heads: int) -> dict[str, ParamSpec]:
        """Parameters of the mixer itself (sink logits, for example)."""
        return {}

    def streams(self, dims: Dims) -> tuple[tuple[int, int], ...]:
        """What a cache keeps for each token and layer, as (heads, dim) of each tensor."""
        return ((dims.kv_heads, dims.head_dim), (dims.kv_heads, dims.head_dim))

    def state(self, dims: Dims) -> tuple[tuple[int, ...], ...]:
        """Shapes of what a stateful mixer keeps of a row."""
        return ()

    def keys(self, q_BTHK: Tensor) -> Tensor:
        """Keys made from queries, where a mixer shares them."""
        raise TypeError(f"{type(self).__name__} defines no keys()")

    @property
    def weighs(self) -> bool:
        """True if scores are turned into weights (`weigh`); otherwise the mixer does the whole of it (`mix`)."""
        return type(self).mix is Mixer.mix

    def mix(self, work: MixerInput) -> Tensor:
        """The output of every head (B,T,H,K), by a way of its own."""
        raise TypeError(f"{type(self).__name__} defines no mix()")

    def serves(self, pattern: Any) -> str | None:
        """Why it can't follow this pattern (specs.patterns.Pattern); None if it can."""
        return None

    def pairs(self, allowed: int, length: int, head_dim: int) -> int:
        """Pairs of query and key that a head computes in a document, of those that the pattern allows; each costs
        4 head_dim FLOPs. What an approximate mixer computes is expected, and what a state costs is worth so many.
        """
        return allowed

    def weigh(self, scores: Tensor, own: Params) -> Tensor:
        """Weights (B,H,T,S) from scores; a key that may not be seen has score -inf, a row of only those gives 0."""
        raise TypeError(f"{type(self).__name__} defines no weigh()")


class QKPositions(NamedTuple):
    """Positions of queries and keys, each inside its own document."""

    q_pos_BT: Any
    k_pos_BS: Any


class ScoreBias(NamedTuple):
    """What a position scheme adds to the scaled score of query t and key s in head h, as kernels can compute it piece
    by piece: slope_H |gap| + table_BHTN[pick(gap)] + q_side . k_side + column_BHS + key_table_BHSN[pick(gap)]. Absent
    terms are None.
    """

    slope_H: Any = None
    """Multiplied with the distance of query and key."""
    table_BHTN: Any = None
    """(B or 1, H, T or 1, N): N numbers for each head (and query), of which the gap picks one."""
    pick: Callable[[Any], Any] | None = None
    """From gaps (key position - query position) to 0 ... N - 1."""
    q_side_BTHE: Any = None
    k_side_BSE: Any = None
    """Vectors of queries and of keys (B or 1) whose product is added."""
    column_BHS: Any = None
    """A number for each key."""
    reach: int | None = None
    """Gaps at least this far back all have the same index, and so have those this far ahead; None: nobody knows."""
    key_table_BHSN: Any = None
    """N numbers for each head and key, of which the gap picks one."""

    @property
    def by_distance(self) -> bool:
        """Whether all of it depends on the head and the gap only."""
        table = self.table_BHTN
        one_row = table is None or table.shape[0] == table.shape[2] == 1
        return one_row and self.q_side_BTHE is None and self.column_BHS is None and self.key_table_BHSN is None

    @property
    def learns(self) -> bool:
        """Whether any of it has a gradient."""
        terms = self.slope_H, self.table_BHTN, self.q_side_BTHE, self.k_side_BSE, self.column_BHS, self.key_table_BHSN
        return any(term is not None and term.requires_grad for term in terms)


class ValueTerms(NamedTuple):
    """What a position scheme adds to the value of a key, by its gap: table_NK[pick(gap)]."""

    table_NK: Any
    pick: Callable[[Any], Any]


class Position(Leaf, axis="position", leaves="anyformer.parts.positions"):
    """How a model knows where a token is. Every hook does nothing unless a leaf overrides it.

    `own` holds the leaf's parameters (from `weights`) and constants (from `constants`, fp64, never cast).
    Positions count inside the document, and a leaf sees nothing else of the row.
    """

    relative: ClassVar[bool] = False
    """True if adding a constant to all positions changes nothing."""
    reads_content: ClassVar[bool] = False
    """True if `scores` looks at q or k, so that it can't be shared between layers."""
    products: ClassVar[bool] = False
    """True if `scores` holds a product of vectors of its own, or a table for each key."""
    zero_at_itself: ClassVar[bool] = False
    """True if its parameters add nothing to the score of a token with itself."""
    needs_length: ClassVar[bool] = False
    """True if the document's length matters: it is then declared once for each forward or cache."""

    shared: bool = True
    """False: every layer has its own parameters; otherwise the stack owns one set for all."""

    @property
    def per_layer(self) -> bool:
        """True if every layer has its own parameters."""
        return not self.shared

    @property
    def reach(self) -> int | None:
        """The distance from which on the table that `scores` gives has one entry, before and after; None if it has none."""
        return None

    def limit(self, context: int) -> int | None:
        """How many positions exist, or None if any number does."""
        return None

    def check(self, dims: Dims) -> Iterator[Problem]:
        """What is wrong with this node in a layer of these sizes."""
        yield from ()

    def weights(self, dims: Dims) -> dict[str, ParamSpec]:
        """Parameters of this scheme."""
        return {}

    def constants(self, dims: Dims) -> dict[str, Sequence[float]]:
        """Fixed numbers, kept in fp64 on the model's device."""
        return {}

    def flops(self, dims: Dims) -> tuple[int, int]:
        """FLOPs of the scheme's own matrix products: for each allowed pair, and for each token of a layer."""
        return 0, 0

    def embed(self, own: Params, pos_BT: Tensor, like: Tensor) -> Tensor | None:
        """What is added to the embeddings, (B,T,D) in the dtype of `like`."""
        return None

    def angles(self, own: Params, pos_BT: Tensor, length_BT: Tensor | None, like: Tensor) -> Any:
        """What `rotate` needs for tokens at these positions: a tuple of tensors (B,T,...), computed once for each
        forward, or once for all positions of a cache.
        """
        return None

    def rotate(self, x_BTHK: Tensor, angles: Any) -> Tensor:
        """Queries and keys as seen from their positions."""
        return x_BTHK

    def rotates_values(self) -> bool:
        """True if values are rotated too."""
        return False

    def scores(self, own: Params, q_BTHK: Tensor, k_BSGK: Tensor, where: QKPositions, scale: float) -> ScoreBias | None:
        """What is added to the scaled scores."""
        return None

    def projects(self) -> tuple[int, int]:
        """How many of its vectors a layer sends through its query and its key projection (see `projected_vectors`)."""
        return 0, 0

    def projected_vectors(self, own: Params) -> Tensor:
        """Vectors (N,D) that each layer projects as if they were tokens; `scores` finds what was made of them in `own`, as
        q_NHK and k_NGK.
        """
        raise TypeError(f"{type(self).__name__} defines no projected_vectors()")

    def values(self, own: Params, like: Tensor) -> ValueTerms | None:
        """What is added to the values, in the dtype of `like`."""
        return None

    @classmethod
    def overrides(cls, hook: str) -> bool:
        """True if the leaf defines this hook itself."""
        return getattr(cls, hook) is not getattr(Position, hook)

    def biases(self) -> bool:
        """True if `scores` adds to the scores."""
        return self.overrides("scores")

    def reads_probs(self) -> bool:
        """True if `values` adds to the values, which only a kernel that sees the weights can serve."""
        return self.overrides("values")

    def acts(self) -> bool:
        """True if it does something in the layers: rotates, or adds to scores or values."""
        return self.overrides("rotate") or self.biases() or self.reads_probs()
