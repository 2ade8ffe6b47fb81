"""The axis of objectives: how examples become arguments of a model, its loss, and what is judged.

A leaf is a frozen dataclass whose fields are its options. It says how many cells each part of an example takes (`plan`)
and what stands in them (`make`). Rows, padding, packing and the order of batches are the loader's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self

import numpy as np

from anyformer.data.dataset import IGNORE, Examples, Piece, Pieces, cut
from anyformer.errors import DataError
from anyformer.registry import OpenAxis
from anyformer.specs.axes import Problem
from anyformer.specs.embed_head import LabelHead, PairHead, SequenceHead
from anyformer.specs.model import ModelSpec

if TYPE_CHECKING:
    from torch import Tensor

    from anyformer.data.shards import Index
    from anyformer.data.tokenizer import Tokenizer
    from anyformer.kernels.loss import LossTerms
    from anyformer.model.model import Model, Output


Way = Literal["stream", "packed", "padded"]
"""stream: rows cut from one long stream of documents; packed: several documents in a row; padded: one in a row."""

ROLES = ("mask", "cls", "sep")
"""Fields that stand for a special id of the tokenizer, under the name of its role."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The model and the rows that examples are made for."""

    spec: ModelSpec
    length: int


class Made(NamedTuple):
    """What one piece puts into its rows."""

    rows: tuple[dict[str, Any], ...]
    """For each of its rows the cells by argument, without padding."""
    answer: Any = None
    """What a head that pools is asked for, one for the piece; None where labels are cells."""


class Objective(OpenAxis, axis="objective", leaves="anyformer.data.objectives"):
    """Base of the objectives."""

    columns: ClassVar[tuple[str, ...]] = ()
    topologies: ClassVar[tuple[str, ...]] = ()
    heads: ClassVar[tuple[str, ...]] = ()
    """What the spec must be."""
    ways: ClassVar[tuple[Way, ...]] = ("padded",)
    """How rows can be filled."""
    lanes: ClassVar[Mapping[str, tuple[str, ...]]] = {"": ("input_ids", "labels")}
    """Arguments with a number for each cell; those of a lane stand above each other."""
    fan: ClassVar[int] = 1
    """Rows that a piece takes, which are judged together."""
    shifts: ClassVar[bool] = False
    """Whether the model compares the label of a cell with the answer of the cell before."""
    ends_source: ClassVar[bool] = False
    """Whether source and target of an encoder-decoder end with eos: a text must then be given one too, or it is another."""
    classes: ClassVar[str] = ""
    """The column of labels whose names the head must have room for; "" if labels are tokens or numbers."""

    def problems(self, spec: ModelSpec, examples: Examples) -> list[Problem]:
        """Everything that does not fit a spec and the data, as a path and what is wrong there."""
        lost = [column for column in self.columns if column not in examples.columns]
        there = f"and there are only {', '.join(examples.columns)}"
        found: list[Problem] = [("data", f"{self.kind!r} needs a column {column!r}, {there}") for column in lost]
        if spec.topology not in self.topologies:
            found.append(("topology", f"{self.kind!r} is for {' or '.join(self.topologies)}, not {spec.topology!r}"))
        if spec.head.kind not in self.heads:
            found.append(("head.kind", f"{self.kind!r} needs {' or '.join(self.heads)}, not {spec.head.kind!r}"))
        names, room = examples.names.get(self.classes, ()), self.answers(spec)
        if self.classes and room is not None and len(names) > room:
            listed = ", ".join(names[:8]) + (" ..." if len(names) > 8 else "")
            found.append(("head.labels", f"{room} are fewer than the {len(names)} classes of the data ({listed})"))
        called = getattr(spec.head, "names", ())
        if called and names and called[: len(names)] != names:
            both = f"{', '.join(called[:8])} are not the classes of the data in their order, {', '.join(names[:8])}"
            found.append(("head.names", f"{both}; make the data with these, or leave names out"))
        problem = getattr(spec.head, "problem", None)
        if self.classes == "label" and problem in ("multi", "regression"):
            found.append(
                ("head.problem", f"{self.kind!r} has one class for each text, and this head is for {problem!r}")
            )
        if self.ends_source and spec.ids.start is None:
            found.append(("ids.start", "is missing; a decoder is fed it first"))
        if self.ends_source and not spec.ids.eos:
            found.append(("ids.eos", "is missing; it ends source and target"))
        return [*found, *self.own_problems(spec)]

    def own_problems(self, spec: ModelSpec) -> Iterator[Problem]:
        yield from ()

    def with_names(self, spec: ModelSpec, examples: Examples) -> ModelSpec:
        """The spec with the names of its classes, where it has none and the data has one for each."""
        names, head = examples.names.get(self.classes, ()), spec.head
        if not isinstance(head, SequenceHead | PairHead | LabelHead) or head.names or len(names) != head.labels:
            return spec
        return spec.vary({"head.names": list(names)})

    def answers(self, spec: ModelSpec) -> int | None:
        """How many labels there are to choose from; None where they are real numbers."""
        head = spec.head
        if head.predicts_tokens:
            return spec.vocab
        return head.labels if isinstance(head, SequenceHead | PairHead | LabelHead) else None

    def ready(self, index: Index, tokenizer: Tokenizer | None) -> Self:
        """With ids that were left out taken from the tokenizer of the data."""
        # The base has no fields of its own; every leaf is a dataclass.
        leaf: Any = self
        unset = [f.name for f in dataclasses.fields(leaf) if f.name in ROLES and getattr(self, f.name) is None]
        return dataclasses.replace(leaf, **{name: index.ids[name] for name in unset if name in index.ids})

    def bits_per_byte(self, loss: float, examples: Examples) -> float | None:
        """A mean loss in nats per token as bits per byte of the text, where every token of it is predicted."""
        return None

    def plan(self, examples: Examples, setting: Setting) -> Pieces:
        """The pieces of all examples, and the cells that each takes."""
        raise TypeError(f"{type(self).__name__} defines no plan()")

    def make(self, examples: Examples, piece: Piece, setting: Setting, key: tuple[int, ...]) -> Made:
        """The cells of one piece. What is drawn depends on the key alone."""
        raise TypeError(f"{type(self).__name__} defines no make()")

    def no_answer(self, setting: Setting) -> Any:
        """The answer of a row that holds nothing; None where labels are cells."""
        return np.int64(IGNORE) if self.classes == "label" else None

    def answer(self, model: Model, inputs: dict[str, Tensor], **how: Any) -> tuple[LossTerms, Output]:
        """One pass and its loss, for who wants to judge as well; `how` is said to the model beside its inputs."""
        from anyformer.kernels.loss import LossTerms

        out = model(**inputs, **how)
        return LossTerms(out.loss, out.losses, out.label_count), out

    def loss(self, model: Model, inputs: dict[str, Tensor]) -> LossTerms:
        return self.answer(model, inputs, return_logits=False)[0]

    def judge(self, out: Output, inputs: dict[str, Tensor]) -> dict[str, tuple[float, float]]:
        """Figures of quality as (sum, count): the fraction of counted labels for which the model's first choice is right."""
        if out.logits is None:
            return {}
        logits, labels = out.logits, inputs["labels"]
        best = (logits if self.fan == 1 else logits.reshape(-1, self.fan)).argmax(-1)
        if self.shifts:
            best, labels = best[:, :-1], labels[:, 1:]
        counted = labels != IGNORE
        return {"accuracy": (float(((best == labels) & counted).sum()), float(counted.sum()))}


def first_eos(spec: ModelSpec) -> int | None:
    """The token that ends a text, if the spec names one."""
    return spec.ids.eos[0] if spec.ids.eos else None


def source_eos(spec: ModelSpec) -> int | None:
    """The token that ends the source of an encoder-decoder: that of its own vocabulary, if it has one."""
    return first_eos(spec) if spec.ids.source_eos is None else spec.ids.source_eos


def ids_of(*given: int | None) -> Any:
    """Those that are there, as an array."""
    return np.array([i for i in given if i is not None], np.int64)


Long = Literal["cut", "skip", "refuse"]
"""What happens to an example that is longer than a row: its end is cut off, it is left out, or it is an error."""


@dataclass(frozen=True, kw_only=True)
class Framed(Objective):
    """Texts between two ids."""

    cls: int | None = None
    """The id before a text; unset: the spec's bos, if it has one."""
    sep: int | None = None
    """The id after a text; unset: the spec's first eos, if it has one."""

    def first(self, spec: ModelSpec) -> int | None:
        return spec.ids.bos if self.cls is None else self.cls

    def last(self, spec: ModelSpec) -> int | None:
        return first_eos(spec) if self.sep is None else self.sep

    def framed(self, ids_N: Any, spec: ModelSpec) -> Any:
        return np.concatenate([ids_of(self.first(spec)), ids_N, ids_of(self.last(spec))])

    def frame(self, spec: ModelSpec, texts: int = 1) -> int:
        """Cells of a row that are none of its texts, after each of which there is an id."""
        return len(ids_of(self.first(spec), *[self.last(spec)] * texts))

    def checked_frame(self, setting: Setting, texts: int = 1) -> int:
        """The same, if there is room for a token of each text beside them."""
        frame = self.frame(setting.spec, texts)
        if setting.length < frame + texts:
            few = f"rows of {setting.length} are too short for {self.kind!r}"
            raise DataError(f"length: {few}; give at least {frame + texts}")
        return frame


def fitting(cells_N: Any, length: int, long: Long) -> tuple[Any, Any, dict[str, int]]:
    """The examples that are held (never one of 0 cells), their cells, and how many are left out and shortened."""
    above = cells_N > length
    if long == "refuse" and above.any():
        i = int(np.flatnonzero(above)[0])
        raise DataError(
            f"example {i} takes {cells_N[i]} cells, and a row has {length} ({int(above.sum())} of {len(above)} are too "
            "long); give a greater length, or say objective.long = 'cut' or 'skip' where there is such a choice"
        )
    held = (cells_N > 0) & ~above if long == "skip" else cells_N > 0
    i, counts = np.flatnonzero(held), {"left_out": int((~held).sum()), "shortened": int((above & held).sum())}
    return i, np.minimum(cells_N[i], length), counts


def label_of(examples: Any, example: int) -> Any:
    """The one class of an example."""
    found = np.asarray(examples.read("label", example))
    if found.shape != (1,) or found.dtype.kind not in "iu":
        held = found.tolist()[:4]
        raise DataError(f"example {example}: column 'label' must hold one whole number, the class; it holds {held}")
    return np.int64(found[0] if found[0] >= 0 else IGNORE)


class TextObjective(Objective):
    """Reads the column `tokens`, any part of which can stand by itself."""

    columns = ("tokens",)
    ways: ClassVar[tuple[Way, ...]] = ("stream", "packed", "padded")

    def around(self, setting: Setting, *, stream: bool) -> tuple[int | None, int | None]:
        """The ids before and after each document, whether or not it is cut; None: there is none."""
        return None, None

    def max_tokens(self, setting: Setting) -> int:
        """How many tokens, those around a document included, a row can hold."""
        return setting.length

    def checked_max_tokens(self, setting: Setting) -> int:
        """The same, if it is any at all."""
        room = self.max_tokens(setting)
        if room < 1:
            why = f"leave no room for text beside what {self.kind!r} adds"
            raise DataError(f"length: rows of {setting.length} {why}; give more")
        return room

    def cells(self, tokens_P: Any, setting: Setting) -> dict[str, Any]:
        """How many cells so many tokens become, by lane."""
        return {"": tokens_P}

    def to_inputs(self, ids_N: Any, setting: Setting, key: tuple[int, ...]) -> dict[str, Any]:
        """The cells that some tokens become."""
        raise TypeError(f"{type(self).__name__} defines no to_inputs()")

    def plan(self, examples: Examples, setting: Setting) -> Pieces:
        lengths_N = np.asarray(examples.lengths("tokens"))
        extra = len(ids_of(*self.around(setting, stream=False)))
        cut_P = cut(np.where(lengths_N > 0, lengths_N + extra, 0), self.checked_max_tokens(setting))
        return Pieces(*cut_P, self.cells(cut_P[2] - cut_P[1], setting), left_out=int((lengths_N == 0).sum()))

    def make(self, examples: Examples, piece: Piece, setting: Setting, key: tuple[int, ...]) -> Made:
        ids_N = surrounded(examples, piece, *self.around(setting, stream=False))
        return Made((self.to_inputs(ids_N, setting, key),))


def surrounded(examples: Examples, piece: Piece, before: int | None, after: int | None) -> Any:
    """A part of a document with the ids around it, counted from the one before it if there is one."""
    shift = 0 if before is None else 1
    start, stop = piece.start - shift, piece.stop - shift
    body_N = np.asarray(examples.read("tokens", piece.example, max(start, 0), max(stop, 0)), np.int64)
    first = before if start < 0 else None
    last = after if stop - max(start, 0) > len(body_N) else None
    return body_N if first is None and last is None else np.concatenate([ids_of(first), body_N, ids_of(last)])
