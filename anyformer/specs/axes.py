"""The open axes of a spec, and the small values that their leaves share.

A leaf is one frozen dataclass. Its fields are the spec; its methods are the maths, written on the tensors they
are given. No leaf imports torch when it is imported, so reading, counting and explaining a spec stays fast.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from anyformer.registry import OpenAxis

if TYPE_CHECKING:
    from torch import Tensor

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
    "head", "dense", "project", "relative", "gain", "bias", "sink",
]  # fmt: skip
"""What a parameter is for: initialisation, optimizer groups and counts go by it."""


@dataclass(frozen=True, kw_only=True)
class Weight:
    """One parameter tensor: its shape, its role, and its start value if that is a constant."""

    shape: tuple[int, ...]
    role: Role
    fill: float | None = None

    @property
    def size(self) -> int:
        """Number of elements."""
        total = 1
        for n in self.shape:
            total *= n
        return total


@dataclass(frozen=True, kw_only=True)
class Normal:
    """Draw from N(0, std^2), cut at `cut` standard deviations if given."""

    std: float
    cut: float | None = None


class Leaf(OpenAxis):
    """What the leaves of all axes have in common."""

    title: ClassVar[str] = ""
    """What people call it, if that is not its kind."""

    def called(self) -> str:
        """The name for people."""
        return self.title or self.kind

    def equation(self) -> str:
        """What it computes, in one line of plain text with its own numbers filled in; "" if it has nothing to say."""
        return ""

    def problems(self) -> Iterator[Problem]:
        """What is wrong with this node on its own."""
        yield from ()


class Init(Leaf, axis="init", leaves="anyformer.parts.inits"):
    """How the weight matrices and tables start. Gains, biases and sinks carry their own constant."""

    def rule(self, weight: Weight, *, width: int, depth: int, tied: bool, heads: int, head_dim: int) -> Normal:
        """The distribution of one weight."""
        raise TypeError(f"{type(self).__name__} defines no rule()")


class Norm(Leaf, axis="norm", leaves="anyformer.parts.norms"):
    """Normalises the last dimension of its input, in promote(dtype, float32)."""

    eps: float

    def weights(self, shape: tuple[int, ...]) -> dict[str, Weight]:
        """Parameters for vectors of this shape: a gain, a bias, whatever the norm has."""
        raise TypeError(f"{type(self).__name__} defines no weights()")

    def apply(self, x: Tensor, own: Mapping[str, Tensor]) -> Tensor:
        """Normalise x over its last dimension; parameters may have leading head dimensions."""
        raise TypeError(f"{type(self).__name__} defines no apply()")


class FeedForward(Leaf, axis="ffn", leaves="anyformer.parts.ffns"):
    """The position-wise network: `inputs` projections of the residual, one product, one projection back."""

    inputs: ClassVar[tuple[str, ...]]
    width: int | None
    bias: bool
    dropout: float

    def hidden(self, width: int) -> int:
        """Inner width for a residual of this width."""
        raise TypeError(f"{type(self).__name__} defines no hidden()")

    def combine(self, *inputs: Tensor) -> Tensor:
        """The inner activation from the input projections, in the order of `inputs`."""
        raise TypeError(f"{type(self).__name__} defines no combine()")


class Mixer(Leaf, axis="mixer", leaves="anyformer.parts.mixers"):
    """How scores become weights on values. An exact mixer keeps every promise; an approximate one says so."""

    exact: ClassVar[bool] = True

    @property
    def ignores_shift(self) -> bool:
        """True if adding a number to all scores of a query changes no weight."""
        return False

    def weights(self, heads: int) -> dict[str, Weight]:
        """Parameters of the mixer itself (sink logits, for example)."""
        return {}

    def streams(self, dims: Dims) -> tuple[tuple[int, int], ...]:
        """What a cache keeps for each token and layer, as (heads, dim) of each tensor."""
        return ((dims.kv_heads, dims.head_dim), (dims.kv_heads, dims.head_dim))

    def weigh(self, scores: Tensor, own: Mapping[str, Tensor]) -> Tensor:
        """Weights (B,H,T,S) from scores; a key that may not be seen has score -inf, a row of only those gives 0."""
        raise TypeError(f"{type(self).__name__} defines no weigh()")


class Where(NamedTuple):
    """Positions of queries and keys, each inside its own document."""

    q_pos_BT: Any
    k_pos_BS: Any

    def gap_BTS(self) -> Any:
        """How far each key comes after each query."""
        return self.k_pos_BS[:, None, :] - self.q_pos_BT[:, :, None]


class Position(Leaf, axis="position", leaves="anyformer.parts.positions"):
    """How a model knows where a token is. Every hook does nothing unless a leaf overrides it.

    `own` holds the leaf's parameters (from `weights`) and constants (from `constants`, fp64, never cast).
    Positions count inside the document, and a leaf sees nothing else of the row.
    """

    relative: ClassVar[bool] = False
    """True if adding a constant to all positions changes nothing."""
    reads_content: ClassVar[bool] = False
    """True if `bias` looks at q or k, so that it can't be shared between layers."""
    needs_length: ClassVar[bool] = False
    """True if the document's length matters: it is then declared once for each forward or cache."""

    @property
    def per_layer(self) -> bool:
        """True if every layer has its own parameters; otherwise the stack owns one set for all."""
        return False

    def limit(self, context: int) -> int | None:
        """How many positions exist, or None if any number does."""
        return None

    def check(self, dims: Dims) -> Iterator[Problem]:
        """What is wrong with this node in a layer of these sizes."""
        yield from ()

    def weights(self, dims: Dims) -> dict[str, Weight]:
        """Parameters of this scheme."""
        return {}

    def constants(self, dims: Dims) -> dict[str, Sequence[float]]:
        """Fixed numbers, kept in fp64 on the model's device."""
        return {}

    def flops(self, dims: Dims) -> tuple[int, int]:
        """FLOPs of the scheme's own matrix products: for each allowed pair, and for each token of a layer."""
        return 0, 0

    def embed(self, own: Mapping[str, Tensor], pos_BT: Tensor, like: Tensor) -> Tensor | None:
        """What is added to the embeddings, (B,T,D) in the dtype of `like`."""
        return None

    def angles(self, own: Mapping[str, Tensor], pos_BT: Tensor, length_BT: Tensor | None, like: Tensor) -> Any:
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

    def bias(
        self, own: Mapping[str, Tensor], q_BTHK: Tensor, k_BSGK: Tensor, where: Where, scale: float
    ) -> Tensor | None:
        """What is added to the scaled scores, broadcastable to (B,H,T,S)."""
        return None

    def values(self, own: Mapping[str, Tensor], probs_BHTS: Tensor, where: Where) -> Tensor | None:
        """What is added to the output of each head, (B,T,H,K), given the attention weights."""
        return None

    @classmethod
    def overrides(cls, hook: str) -> bool:
        """True if the leaf defines this hook itself."""
        return getattr(cls, hook) is not getattr(Position, hook)

    def biases(self) -> bool:
        """True if `bias` adds to the scores."""
        return self.overrides("bias")

    def reads_probs(self) -> bool:
        """True if `values` adds to the output, which only a kernel that exposes probabilities can serve."""
        return self.overrides("values")
