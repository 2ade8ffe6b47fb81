"""Classes of tokens, and words and names that they make up: token-classification."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from anyformer.errors import InputError, nearest
from anyformer.generation.pipelines.rows import Reader, Row, check_text, listed
from anyformer.generation.pipelines.source import Source
from anyformer.specs.embed_head import LabelHead

T = TypeVar("T")
STRATEGIES = ("none", "simple", "first", "average", "max")


class Piece(NamedTuple):
    """One token of a text, or a word of several."""

    word: str
    scores_C: Tensor
    start: int
    end: int
    place: int
    """Which token of the row it is."""
    inside: bool
    """Whether it goes on with the word before."""


class TokenClassification(Reader):
    """`pipe(text)`: a label for each token; with `aggregation_strategy` for each word or name."""

    def __init__(self, source: Source) -> None:
        head = source.model.spec.head
        if not isinstance(head, LabelHead):
            raise InputError(
                f"token-classification: needs a head that answers for each token (token), and this model's is {head.kind!r}"
            )
        if source.model.spec.topology == "encoder-decoder":
            raise InputError(
                "token-classification: the head of an encoder-decoder answers for the tokens of its decoder, and not for "
                "those of the text; use an encoder or a decoder"
            )
        super().__init__(source)
        model: Any = source.tokenizer.inner.model
        self.unknown = source.token("unk_token", str(getattr(model, "unk_token", None) or "[UNK]"))
        self.knows_words = bool(getattr(model, "continuing_subword_prefix", None))
        """Whether a token shows that it goes on with a word, as ##ing does."""

    def __call__(
        self,
        inputs: str | Sequence[str],
        *,
        aggregation_strategy: str = "none",
        ignore_labels: Sequence[str] = ("O",),
        stride: int | None = None,
        batch_size: int | None = None,
        truncation: bool = False,
    ) -> list[Any]:
        """Label the tokens of a text, or of each text of a list.

        Args:
            inputs: Texts.
            aggregation_strategy: "none": each token by itself. "simple": neighbours of one label (B- and I- aside)
                together. "first", "average", "max": the same, and a word has one label: that of its first token, of
                the mean of its scores, or of its surest token.
            ignore_labels: Labels that are left out.
            stride: Read a text that is too long in parts, which have so many tokens in common; of labels that overlap the
                longest is kept. It needs an aggregation_strategy.
            batch_size: Texts at once.
            truncation: Cut texts that are too long.
        """
        strategy = aggregation_strategy
        if strategy not in STRATEGIES:
            raise InputError(f"aggregation_strategy: {strategy!r} is unknown{nearest(str(strategy), STRATEGIES)}")
        if strategy in STRATEGIES[2:] and not self.knows_words:
            warnings.warn(
                f"aggregation_strategy: this tokenizer does not mark words, so {strategy!r} takes what stands between "
                "blanks for one", stacklevel=2,
            )  # fmt: skip

        def answer(out: Any, b: int, row: Row) -> list[dict[str, Any]]:
            logits_TC = out.logits[b]
            scores_TC = logits_TC.to(torch.promote_types(logits_TC.dtype, torch.float32)).softmax(-1).cpu()
            return self._label(row, scores_TC, strategy, ignore_labels)

        if stride is None:
            return self.read(inputs, answer, batch_size=batch_size, truncation=truncation)
        if type(stride) is not int or not 0 <= stride < self.limit():
            raise InputError(f"stride: expected a whole number from 0 to {self.limit() - 1}, got {stride!r}")
        if strategy == "none":
            raise InputError("stride: parts of a text are put together by aggregation_strategy, which is 'none'")
        given, alone = listed(inputs)
        parts = [
            self.cut(check_text(text, i), None, length=self.limit(), stride=stride, strategy="longest_first")
            for i, text in enumerate(given)
        ]
        found = iter(self.run([row for rows in parts for row in rows], answer, batch_size=batch_size))
        made = [[next(found) for _ in rows] for rows in parts]
        joined = [each[0] if len(each) == 1 else _longest([one for part in each for one in part]) for each in made]
        return joined[0] if alone else joined

    def _label(self, row: Row, scores_TC: Tensor, strategy: str, ignored: Sequence[str]) -> list[dict[str, Any]]:
        pieces = self._pieces(row, scores_TC)
        if strategy in STRATEGIES[2:]:
            pieces = [self._word(word, strategy) for word in _runs(pieces, lambda _, piece: piece.inside)]
        found: list[dict[str, Any]] = []
        for piece in pieces:
            best = int(piece.scores_C.argmax())
            found.append({
                "entity": self.source.label(best), "score": float(piece.scores_C[best]), "index": piece.place,
                "word": piece.word, "start": piece.start, "end": piece.end,
            })  # fmt: skip
        if strategy == "none":
            return [each for each in found if each["entity"] not in ignored]
        groups = [self._group(group) for group in _runs(found, _continues)]
        return [each for each in groups if each["entity_group"] not in ignored]

    def _pieces(self, row: Row, scores_TC: Tensor) -> list[Piece]:
        """The tokens of the text itself."""
        found: list[Piece] = []
        special, offsets = row.encoding.special_tokens_mask, row.encoding.offsets
        # A row that was cut keeps what the template put at its end, which are special tokens.
        for t in range(len(row.ids)):
            if special[t] or row.encoding.ids[t] != row.ids[t]:
                continue
            start, end = offsets[t]
            word, shown = self.source.tokenizer.inner.id_to_token(row.ids[t]) or "", row.text[start:end]
            if self.knows_words:
                inside = len(word) != len(shown)
            else:
                inside = start > 0 and " " not in row.text[start - 1 : start + 1]
            if row.ids[t] == self.unknown:
                word, inside = shown, False
            found.append(Piece(word, scores_TC[t], start, end, t, inside))
        return found

    def _word(self, pieces: list[Piece], strategy: str) -> Piece:
        """One piece for a word, with the scores that the strategy says."""
        scores_PC = torch.stack([piece.scores_C for piece in pieces])
        surest = int(scores_PC.amax(-1).argmax())
        scores_C = {"first": scores_PC[0], "max": scores_PC[surest], "average": scores_PC.mean(0)}[strategy]
        first, last = pieces[0], pieces[-1]
        return Piece(self._text([piece.word for piece in pieces]), scores_C, first.start, last.end, first.place, False)

    def _group(self, entities: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "entity_group": entities[0]["entity"].partition("-")[2] or entities[0]["entity"],
            "score": sum(each["score"] for each in entities) / len(entities),
            "word": self._text([each["word"] for each in entities]),
            "start": entities[0]["start"],
            "end": entities[-1]["end"],
        }

    def _text(self, words: list[str]) -> str:
        """Tokens as the tokenizer's decoder puts them together."""
        decoder: Any = self.source.tokenizer.inner.decoder
        return " ".join(words) if decoder is None else decoder.decode(words)


def _runs(items: Sequence[T], joins: Callable[[T, T], bool]) -> list[list[T]]:
    """Neighbours together, as long as each one joins the one before."""
    found: list[list[T]] = []
    for item in items:
        if found and joins(found[-1][-1], item):
            found[-1].append(item)
        else:
            found.append([item])
    return found


def _continues(before: dict[str, Any], entity: dict[str, Any]) -> bool:
    """Whether a label goes on with the group of the one before; B- begins a new one."""
    return not entity["entity"].startswith("B-") and _tag(entity["entity"]) == _tag(before["entity"])


def _tag(label: str) -> str:
    """A label without B- or I-."""
    return label[2:] if label.startswith(("B-", "I-")) else label


def _longest(entities: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of groups that overlap the longest, or the surer one of two that are equally long."""
    found: list[dict[str, Any]] = []
    for one in sorted(entities, key=lambda entity: entity["start"]):
        if not found or not found[-1]["start"] <= one["start"] < found[-1]["end"]:
            found.append(one)
        elif (one["end"] - one["start"], one["score"]) > (found[-1]["end"] - found[-1]["start"], found[-1]["score"]):
            found[-1] = one
    return found
