"""The closed nodes of a spec: what every layer has, with fields instead of kinds."""

import functools
from dataclasses import dataclass, field
from typing import Any, Literal

from anyformer.specs.axes import Dims, FeedForward, Mixer, Norm, Position
from anyformer.specs.formulas import Scale
from anyformer.specs.patterns import Pattern

Topology = Literal["decoder", "encoder", "encoder-decoder"]
Placement = Literal["pre", "post", "sandwich", "output", "none"]
Wiring = Literal["serial", "parallel", "parallel2", "reversible"]


def default(axis: type[Any], kind: str, *, inline: bool = False) -> Any:
    """A field whose default is a kind with its own defaults, looked up when a spec is made. The keys of an `inline` leaf
    are written in its parent's table: `norm.kind` beside `norm.placement`.
    """
    return field(default_factory=functools.partial(axis.of_kind, kind), metadata={"inline": inline})


@dataclass(frozen=True, kw_only=True)
class NormPlacement:
    """[norm]: which norm, and where it stands in the residual graph."""

    leaf: Norm = default(Norm, "rmsnorm", inline=True)
    placement: Placement = "pre"
    """pre: on a branch's input; post: after the add; sandwich: input and output; output: branch output only."""
    attention_placement: Placement | None = None
    """Another placement for the attention branches (self and cross)."""
    ffn_placement: Placement | None = None
    """Another placement for the feed-forward branch."""
    final: bool | None = None
    """A norm after the last block; unset: yes, unless the norms of both branches are placed post or none."""
    embedding: bool = False
    """A norm right after the embeddings."""

    def of_attention(self) -> Placement:
        """Where the attention branches have their norms."""
        return self.attention_placement or self.placement

    def of_ffn(self) -> Placement:
        """Where the feed-forward branch has its norms."""
        return self.ffn_placement or self.placement

    def has_final(self) -> bool:
        """Whether a norm follows the last block."""
        if self.final is not None:
            return self.final
        return any(placement not in ("post", "none") for placement in (self.of_attention(), self.of_ffn()))


@dataclass(frozen=True, kw_only=True)
class HeadNorm:
    """A norm on projected queries and keys (or values)."""

    leaf: Norm = default(Norm, "rmsnorm", inline=True)
    scope: Literal["head", "heads", "whole"] = "head"
    """head: each head, one gain for all; heads: each head, a gain of its own; whole: the whole projected vector."""
    when: Literal["before", "after"] = "before"
    """Before or after the position rotates queries and keys (values are never normed after)."""

    def shape(self, heads: int, head_dim: int) -> tuple[int, ...]:
        """Shape of the gain."""
        return {"head": (head_dim,), "heads": (heads, head_dim), "whole": (heads * head_dim,)}[self.scope]


@dataclass(frozen=True, kw_only=True)
class Temperature:
    """A factor on the query that grows with its position p.

    log1p: 1 + strength * ln(1 + floor((p + offset) / length)) (Llama 4, Ministral 3);
    log_n: max(1, ln(p + offset) / ln(length)) (Qwen 1).
    """

    kind: Literal["log1p", "log_n"] = "log1p"
    length: int = 8192
    strength: float = 0.1
    offset: int = 1
    """What the first position counts as: 1, or 0 in Ministral 3."""


@dataclass(frozen=True, kw_only=True)
class Attention:
    """[attention]: heads, projections, scores and pattern of one layer."""

    heads: int
    kv_heads: int | None = None
    """Unset: as many as heads (MHA). 1: MQA. Between: GQA."""
    head_dim: int | None = None
    """Unset: width / heads."""
    pattern: Pattern | None = None
    """Unset: causal in a decoder, full in an encoder."""
    mixer: Mixer = default(Mixer, "softmax")
    bias: str = ""
    """Which projections have a bias: letters of `qkvo`."""
    scale: Scale = "1/sqrt(head_dim)"
    softcap: float | None = None
    """Scores become cap * tanh(score / cap)."""
    temperature: Temperature | None = None
    qk_norm: HeadNorm | None = None
    v_norm: HeadNorm | None = None
    clip_qkv: float | None = None
    """Clamp projected queries, keys and values to +- this."""
    dropout: float = 0.0
    cross_position: bool = False
    """Whether cross-attention uses the position scheme too (rotation and bias between decoder and encoder)."""
    global_projections: bool = False
    """Whether global tokens attend with queries, keys and values of their own (Longformer)."""


def mixer_of(attention: Attention, *, cross: bool) -> Mixer:
    """The mixer of self- or cross-attention: one that needs queries and keys of the same tokens can't serve the latter."""
    return Mixer.of_kind("softmax") if cross and not attention.mixer.weighs else attention.mixer


@dataclass(frozen=True, kw_only=True)
class BlockWiring:
    """[block]: how the branches of a block meet the residual."""

    wiring: Wiring = "serial"
    """serial: attention, then feed-forward; parallel: both on one shared norm; parallel2: both, a norm each;
    reversible: two streams, y1 = x1 + attention(x2), y2 = x2 + ffn(y1), whose inputs the backward pass recomputes."""
    merge: Literal["mean", "concat"] = "mean"
    """What follows a reversible stack: the mean of its two streams, or both side by side (Reformer)."""
    branch_scale: float = 1.0
    """Each branch is multiplied by this before it is added."""
    dropout: float = 0.0
    """Dropout on each branch before it is added."""


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One resolved layer."""

    attention: Attention
    position: Position
    ffn: FeedForward
    norm: NormPlacement
    block: BlockWiring


def absorbs(a: Attention, position: Position, dims: Dims, tokens: int) -> bool:
    """Whether so few global tokens are better served without projecting keys and values of all tokens for them: their
    queries go through the key projection backwards and meet the tokens themselves, and what they take goes through the
    value projection. Possible where nothing stands between projections and scores, and weights add up to 1 (which they
    don't while some are dropped in training).
    """
    between = a.qk_norm or a.v_norm or a.clip_qkv is not None or position.overrides("rotate")
    added = position.biases() or position.reads_probs() or a.softcap is not None
    return not between and not added and a.mixer.ignores_shift and 4 * tokens * dims.heads <= dims.width


@dataclass(frozen=True, kw_only=True)
class Loss:
    """[loss]: what is added to plain cross-entropy."""

    z: float = 0.0
    """Weight of mean(logsumexp(logits)^2)."""
    label_smoothing: float = 0.0
    balance: float = 0.0
    """Weight of experts * sum_i f_i p_i of each router, the mean over layers: f_i is how many of the tokens go to expert
    i, p_i its mean probability (Switch, Mixtral). It is top_k when all experts get the same share."""
    router_z: float = 0.0
    """Weight of mean(logsumexp(router logits)^2), the mean over layers (ST-MoE)."""


@dataclass(frozen=True, kw_only=True)
class SpecialIds:
    """[ids]: token ids with a meaning."""

    pad: int | None = None
    bos: int | None = None
    eos: tuple[int, ...] = ()
    start: int | None = None
    """What a decoder of an encoder-decoder is fed first. Unset, where it reads the source once more for a head that
    classifies: the last token of the row (mBART)."""
    source_pad: int | None = None
    """`pad` of the source, where that has a vocabulary of its own; unset: the same id."""
    source_eos: int | None = None
    """What ends a source, where that has a vocabulary of its own; unset: the first of `eos`."""
