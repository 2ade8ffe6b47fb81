"""The two ends of a model: what it reads (`embed`) and what it answers (`head`)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from anyformer.specs.axes import Leaf, Position, Problem
from anyformer.specs.formulas import Scale

Pool = Literal["first", "last", "mean", "eos", "late"]
POOLED: dict[Pool, str] = {
    "first": "the first state", "last": "the last state", "mean": "mean_t h_t", "eos": "the state at the last eos",
    "late": "each state, of whose answers this is the mean",
}  # fmt: skip
"""What a head that pools reads, in an equation."""


class Embed(Leaf, axis="embed", leaves="anyformer.specs.embed_head"):
    """What a model reads."""

    reads: ClassVar[str]
    """The name of the argument of `model(...)` that carries the input."""
    dropout: float
    token_types: int
    position: Position | None = None
    """What is added to the embeddings beside the scheme of the layers."""


@dataclass(frozen=True, kw_only=True)
class TokenEmbed(Embed, kind="tokens"):
    """A table row for each token id."""

    reads = "input_ids"
    width: int | None = None
    """A table narrower than the model, with a projection to its width (ALBERT, OPT-350M, RoFormer)."""
    project: Literal["first", "last"] = "first"
    """The projection comes before positions and the embedding norm, or after them."""
    project_bias: bool = False
    scale: Scale = 1.0
    """The embeddings are multiplied by this, e.g. `sqrt(width)`."""
    round_scale: bool = False
    """Round the scale to the dtype of the weights first (Gemma)."""
    token_types: int = 0
    """Rows of a second table, added: BERT's segments A and B."""
    task_types: int = 0
    """Rows of a third table, of which the first is added to every token: ERNIE's tasks."""
    shared: bool = True
    """In an encoder-decoder: one table for both stacks."""
    position: Position | None = None
    """Positions that are added to the embeddings, beside a `position` that acts on queries, keys or scores (MPNet)."""
    dropout: float = 0.0

    def equation(self) -> str:
        scaled = "" if self.scale == 1 else f"{self.scale} " if isinstance(self.scale, str) else f"{self.scale:g} "
        row = f"{scaled}E[token_t]"
        project = f"W_p {row}{' + b_p' if self.project_bias else ''}"
        row = project if self.width is not None and self.project == "first" else row
        late = ", W_p after positions and norm" if self.width is not None and self.project == "last" else ""
        types = f"{' + T[type_t]' if self.token_types else ''}{' + K[0]' if self.task_types else ''}"
        added = "" if self.position is None else f", {self.position.equation()}"
        return f"x_t = {row}{types}{added}{late}"


@dataclass(frozen=True, kw_only=True)
class PatchEmbed(Embed, kind="patches"):
    """An image cut into square patches, each projected to the width (ViT)."""

    title = "image patches"
    reads = "pixel_values"
    minimum = {"image": 1, "channels": 1}
    image: int
    patch: int
    channels: int = 3
    class_token: bool = True
    bias: bool = True
    token_types: int = 0
    position: Position | None = None
    """Positions that are added to the embeddings, beside a `position` that acts on queries, keys or scores."""
    dropout: float = 0.0

    def tokens(self) -> int:
        """Length of the sequence that an image becomes."""
        return (self.image // self.patch) ** 2 + int(self.class_token)

    def equation(self) -> str:
        own = ", x_0 = a learned vector" if self.class_token else ""
        return f"x_p = W pixels of patch p{' + b' if self.bias else ''}{own}"

    def problems(self) -> Iterator[Problem]:
        yield from super().problems()
        if self.patch < 1 or self.image % max(self.patch, 1):
            yield "patch", f"{self.patch} does not tile an image of {self.image} pixels; pick a divisor of it"
        if self.token_types:
            yield "token_types", "patches have no token types; leave it 0"


@dataclass(frozen=True, kw_only=True)
class SeriesEmbed(Embed, kind="series"):
    """A vector of real numbers for each time step, projected to the width."""

    title = "series of vectors"
    reads = "values"
    minimum = {"channels": 1}
    channels: int = 1
    bias: bool = True
    token_types: int = 0
    position: Position | None = None
    """Positions that are added to the embeddings, beside a `position` that acts on queries, keys or scores."""
    dropout: float = 0.0

    def problems(self) -> Iterator[Problem]:
        yield from super().problems()
        if self.token_types:
            yield "token_types", "a series has no token types; leave it 0"

    def equation(self) -> str:
        return f"x_t = W v_t{' + b' if self.bias else ''}"


class Head(Leaf, axis="head", leaves="anyformer.specs.embed_head"):
    """What a model answers."""

    predicts_tokens: ClassVar[bool] = False
    pools: ClassVar[bool] = False
    """True if the head reads one vector for each row instead of one for each token."""


@dataclass(frozen=True, kw_only=True)
class NoHead(Head, kind="none"):
    """No head: the states are the answer."""

    title = "no head"
    formula = "answer_t = h_t"


@dataclass(frozen=True, kw_only=True)
class TokenHead(Head, kind="lm"):
    """A logit for each token of the vocabulary: next-token in a decoder, masked-token in an encoder."""

    title = "token logits"
    predicts_tokens = True
    tied: bool = False
    """The output matrix is the embedding table."""
    bias: bool = False
    adds_bias: bool = True
    """False: that bias is kept and counted, but not added to the logits (the public Reformer class)."""
    transform: bool = False
    """A dense layer, an activation and a norm before the output matrix (BERT's masked-LM head)."""
    transform_bias: bool = True
    """Whether that dense layer has a bias; ModernBERT's has none."""
    activation: str = "gelu"
    """The activation of that dense layer: an ungated ffn kind."""
    scale: Scale = 1.0
    """Logits are multiplied by this."""
    softcap: float | None = None

    def equation(self) -> str:
        dense = f"W_d h_t{' + b_d' if self.transform_bias else ''}"
        read = f"norm({self.activation}({dense}))" if self.transform else "h_t"
        logits = f"{'E' if self.tied else 'W'} {read}{' + b' if self.bias and self.adds_bias else ''}"
        if self.scale != 1:
            logits = f"{self.scale if isinstance(self.scale, str) else f'{self.scale:g}'} ({logits})"
        capped = logits if self.softcap is None else f"{self.softcap:g} tanh(({logits}) / {self.softcap:g})"
        return f"logits_t = {capped}"


@dataclass(frozen=True, kw_only=True)
class Classifier(Head):
    """A linear answer, after an optional dense layer."""

    minimum = {"dense_width": 1}
    dense: bool = False
    """A dense layer with an activation before the classifier (BERT's pooler, RoBERTa's classification head)."""
    dense_width: int | None = None
    """Width that it leads to; unset: that of what the head reads."""
    dense_bias: bool = True
    """Whether it has a bias; ModernBERT's has none."""
    activation: str = "tanh"
    """Its activation: an ungated ffn kind, or `none`."""
    norm: bool = False
    """A norm after it, of the model's kind (ModernBERT)."""
    bias: bool = True
    """A bias on the answer; decoder classes have none."""
    dropout: float = 0.0

    @property
    def answers(self) -> int:
        """Numbers in an answer."""
        return 1

    def read(self, state: str) -> str:
        """What the classifier reads, in an equation."""
        if not self.dense:
            return state
        dense = f"W_d {state}{' + b_d' if self.dense_bias else ''}"
        inner = f"({dense})" if self.activation == "none" else f"{self.activation}({dense})"
        return f"norm({inner})" if self.norm else inner

    def linear(self, state: str) -> str:
        """The answer, in an equation."""
        return f"W {self.read(state)}{' + b' if self.bias else ''}"

    def problems(self) -> Iterator[Problem]:
        yield from super().problems()
        for name in ("dense_width", "dense_bias", "activation", "norm"):
            if not self.dense and getattr(self, name) != type(self).__dataclass_fields__[name].default:
                yield name, "has no effect without dense"
        names, labels = getattr(self, "names", ()), getattr(self, "labels", None)
        if names and labels is not None and len(names) != labels:
            yield "names", f"there are {len(names)} for {labels} labels; give one for each, or none"


@dataclass(frozen=True, kw_only=True)
class SequenceHead(Classifier, kind="sequence"):
    """Classes of the whole row."""

    title = "sequence classes"
    pools = True
    labels: int
    names: tuple[str, ...] = ()
    """What the classes are called, in their order; empty: LABEL_0, LABEL_1 ..."""
    problem: Literal["single", "multi", "regression"] | None = None
    """What the answer is: one class of several, any number of them, or real numbers. Unset: `regression` if there is one
    label; else what the labels are, whole numbers classes, real ones `multi`."""
    pool: Pool = "first"

    @property
    def answers(self) -> int:
        return self.labels

    def problems(self) -> Iterator[Problem]:
        yield from super().problems()
        if self.problem == "single" and self.labels == 1:
            yield (
                "problem",
                "'single' is one class of several, and labels is 1; pick 'regression' or 'multi', or leave it",
            )

    def equation(self) -> str:
        return f"logits = {self.linear('h')}, h = {POOLED[self.pool]}"


@dataclass(frozen=True, kw_only=True)
class ChoiceHead(Classifier, kind="choice"):
    """Which of several rows is the right one: a score for each."""

    title = "multiple choice"
    pools = True
    pool: Pool = "first"

    def equation(self) -> str:
        return f"logit of a choice = {self.linear('h')}, h = {POOLED[self.pool]}"


@dataclass(frozen=True, kw_only=True)
class PairHead(Head, kind="pair"):
    """A class for two texts in one row: [u, v, |u-v|, u*v] of the means over token type 0 and over 1."""

    title = "pair classes"
    pools = True
    labels: int
    names: tuple[str, ...] = ()
    """What the classes are called, in their order; empty: LABEL_0, LABEL_1 ..."""
    dropout: float = 0.0
    formula = "logits = W [u, v, |u - v|, u * v] + b, u and v the means of h over text A and B"


@dataclass(frozen=True, kw_only=True)
class LabelHead(Classifier, kind="token"):
    """A class for each token."""

    title = "token classes"
    labels: int
    names: tuple[str, ...] = ()
    """What the classes are called, in their order; empty: LABEL_0, LABEL_1 ..."""

    @property
    def answers(self) -> int:
        return self.labels

    def equation(self) -> str:
        return f"logits_t = {self.linear('h_t')}"


@dataclass(frozen=True, kw_only=True)
class AnswerHead(Classifier, kind="qa"):
    """Where in the row an answer starts and where it ends: two scores for each token."""

    title = "answer spans"

    @property
    def answers(self) -> int:
        return 2

    def equation(self) -> str:
        return f"(start_t, end_t) = {self.linear('h_t')}"


@dataclass(frozen=True, kw_only=True)
class RegressionHead(Head, kind="regression"):
    """Real numbers for the whole row, with a mean squared error."""

    title = "real numbers"
    pools = True
    outputs: int = 1
    pool: Pool = "mean"
    dropout: float = 0.0

    def equation(self) -> str:
        return f"y = W h + b, h = {POOLED[self.pool]}"
