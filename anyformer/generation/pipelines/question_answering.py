"""Where in a text the answer to a question stands: question-answering."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import tokenizers
import torch
from torch import Tensor

from anyformer.errors import InputError
from anyformer.generation.pipelines.rows import Reader, Row, check_count, check_text
from anyformer.generation.pipelines.source import Source
from anyformer.specs.embed_head import AnswerHead

LONGEST = 384
"""Tokens of a row, if nobody says otherwise."""
BELOW = -10000.0
"""The score of a token that can't be part of an answer."""


class Spans(NamedTuple):
    """The likeliest answers of one row, and how likely it is that there is none."""

    found: list[tuple[int, int, float]]
    """First and last token, and score."""
    none: float


class QuestionAnswering(Reader):
    """`pipe(question=..., context=...)`: the answer as it stands in the context, its place and its score."""

    def __init__(self, source: Source) -> None:
        head = source.model.spec.head
        if not isinstance(head, AnswerHead):
            raise InputError(
                f"question-answering: needs a head that finds where an answer starts and ends (qa), and this model's is "
                f"{head.kind!r}"
            )
        super().__init__(source)
        self.first = source.token("cls_token", "[CLS]", "<s>")

    def __call__(
        self,
        inputs: Any = None,
        *,
        question: str | Sequence[str] | None = None,
        context: str | Sequence[str] | None = None,
        top_k: int = 1,
        doc_stride: int | None = None,
        max_answer_len: int = 15,
        max_seq_len: int | None = None,
        max_question_len: int = 64,
        handle_impossible_answer: bool = False,
        align_to_words: bool = True,
        batch_size: int | None = None,
    ) -> Any:
        """Answer a question, or each of a list. With `top_k` above 1 an answer is a list of tables, the best first.

        Args:
            inputs: `{"question": ..., "context": ...}`, or a list of them; or leave it out and give both by name.
            question: Questions; of several with one context, each is asked of it.
            context: The texts that hold the answers.
            top_k: How many answers.
            doc_stride: A context that is too long is read in parts, which have so many tokens in common; None: 128, or
                half of a row if that is less.
            max_answer_len: Tokens of the longest answer.
            max_seq_len: Tokens of a row, question and part of the context; None: 384, or as many as the model has.
            max_question_len: Tokens after which a question is cut.
            handle_impossible_answer: Let "there is no answer" be one, as an empty text.
            align_to_words: Begin and end an answer with whole words.
            batch_size: Rows at once.
        """
        asked, alone = _asked(inputs, question, context)
        if check_count("top_k", top_k) is None or check_count("max_answer_len", max_answer_len) is None:
            raise InputError("top_k, max_answer_len: expected whole numbers of at least 1, got None")
        length = min(self.limit(), LONGEST) if max_seq_len is None else min(max_seq_len, self.limit())
        stride = min(length // 2, 128) if doc_stride is None else doc_stride
        if type(stride) is not int or not 0 <= stride <= length:
            raise InputError(
                f"doc_stride: expected a whole number from 0 to the {length} tokens of a row, got {stride!r}"
            )
        kept = top_k * 2 + 10 if align_to_words else top_k
        parts = [
            self.cut(self._shortened(q, max_question_len), c, length=length, stride=stride, strategy="only_second")
            for q, c in asked
        ]

        def answer(out: Any, b: int, row: Row) -> Spans:
            logits_2T = out.logits[b, : len(row.ids)].float().T.cpu()
            return self._spans(logits_2T, row, kept, max_answer_len)

        found = iter(self.run([row for rows in parts for row in rows], answer, batch_size=batch_size))
        answers: list[Any] = []
        for (_, text), rows in zip(asked, parts, strict=True):
            spans = [(row.encoding, next(found)) for row in rows]
            best = _merged(text, spans, words=align_to_words)
            if handle_impossible_answer:
                best.append({"score": min(each.none for _, each in spans), "start": 0, "end": 0, "answer": ""})
            best = sorted(best, key=lambda one: -one["score"])[:top_k]
            answers.append(best[0] if len(best) == 1 else best)
        return answers[0] if alone else answers

    def marks(self, row: Row) -> list[int]:
        ends = next((t for t, text in enumerate(row.encoding.sequence_ids) if text == 1), len(row.ids))
        return [int(t < ends) for t in range(len(row.ids))]

    def _shortened(self, question: str, most: int) -> str:
        """A question of at most so many tokens."""
        if check_count("max_question_len", most) is None:
            raise InputError("max_question_len: expected a whole number of at least 1, got None")
        read = self.source.reader.inner.encode(question, add_special_tokens=False)
        return question if len(read.ids) <= most else question[: read.offsets[most - 1][1]]

    def _spans(self, logits_2T: Tensor, row: Row, count: int, longest: int) -> Spans:
        """The likeliest spans of the context: the product of two softmaxes, over starts and over ends."""
        may = [text == 1 or token == self.first for text, token in zip(row.encoding.sequence_ids, row.ids, strict=True)]
        may_T = torch.tensor(may)
        probs_2T = logits_2T.masked_fill(~may_T, BELOW).softmax(-1)
        none = float(probs_2T[0, 0] * probs_2T[1, 0])
        probs_2T[:, 0] = 0.0
        pairs_TT = torch.outer(probs_2T[0], probs_2T[1]).triu().tril(longest - 1).flatten()
        best = pairs_TT.topk(min(count, len(pairs_TT)))
        spans = [(i // len(row.ids), i % len(row.ids), p) for p, i in zip(*map(Tensor.tolist, best), strict=True)]
        return Spans([(s, e, p) for s, e, p in spans if may[s] and may[e]], none)


def _asked(inputs: Any, question: Any, context: Any) -> tuple[list[tuple[str, str]], bool]:
    """Questions, each with its context, and whether one alone was given."""
    if (inputs is None) == (question is None and context is None):
        raise InputError('question-answering: give {"question": ..., "context": ...}, or question= and context=')
    if inputs is None:
        several = not isinstance(question, str)
        questions = list(question or ()) if several else [question]
        contexts = [context] * len(questions) if isinstance(context, str) else list(context or ())
        if not questions or len(questions) != len(contexts):
            raise InputError(
                f"context: {len(contexts)} for {len(questions)} questions; give one for each, or one for all"
            )
        given = [{"question": q, "context": c} for q, c in zip(questions, contexts, strict=True)]
        alone = not several
    else:
        alone = isinstance(inputs, Mapping)
        given = [inputs] if alone else list(inputs)
    asked: list[tuple[str, str]] = []
    for i, one in enumerate(given):
        if not isinstance(one, Mapping) or set(one) != {"question", "context"}:
            raise InputError(f'input {i}: expected {{"question": ..., "context": ...}}, got {one!r:.80}')
        asked.append((check_text(one["question"], i), check_text(one["context"], i)))
    return asked, alone


def _merged(text: str, spans: Sequence[tuple[tokenizers.Encoding, Spans]], *, words: bool) -> list[dict[str, Any]]:
    """Answers of all parts of a context; scores of those that read the same add up."""
    found: dict[str, dict[str, Any]] = {}
    for encoding, each in spans:
        for first, last, score in each.found:
            start, end = _place(encoding, first, last, words=words)
            said = text[start:end]
            if said.lower() in found:
                found[said.lower()]["score"] += score
            else:
                found[said.lower()] = {"score": score, "start": start, "end": end, "answer": said}
    return list(found.values())


def _place(encoding: tokenizers.Encoding, first: int, last: int, *, words: bool) -> tuple[int, int]:
    """Where in the context a span of tokens starts and ends; with `words`, the words that it touches."""
    start, end = encoding.offsets[first][0], encoding.offsets[last][1]
    if words:
        ends = [encoding.token_to_word(token) for token in (first, last)]
        places = [None if word is None else encoding.word_to_chars(word, 1) for word in ends]
        if places[0] is not None and places[1] is not None:
            return places[0][0], places[1][1]
    return start, end
