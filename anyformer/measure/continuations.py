"""How likely a model finds one text after another, and how it goes on itself: what benchmarks with questions ask for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from anyformer.data.tokenizer import Tokenizer
from anyformer.errors import InputError
from anyformer.generation.engine import generate
from anyformer.generation.text.stream import TextStream
from anyformer.model.models import Model
from anyformer.model.reading import reading
from anyformer.train.evaluate import MANY, TOKENS, Reader, Window, batches, unpredicted, window_sizes

Report = Callable[[int, int], None]


class Continuations:
    """A decoder and its tokenizer, asked about many texts at once. Rows of similar length share a batch."""

    def __init__(self, model: Model, tokenizer: Tokenizer, *, tokens: int | None = None) -> None:
        """`tokens` are read at once; unless given, as many as suit the device."""
        self.room, _ = window_sizes(model, None, None)
        if unpredicted(model) > 1:
            raise InputError(
                f"the first {unpredicted(model)} tokens of this prefix-LM see each other both ways, so what a short "
                "question is followed by can't be judged"
            )
        self.model, self.words = model, tokenizer
        self.device = next(model.parameters()).device
        self.tokens = tokens or TOKENS.get(self.device.type, MANY)
        ids = model.spec.ids
        self.before = [] if ids.bos is None or ids.bos in ids.eos else [ids.bos]
        """What stands before every text: a bos that is an eos too stands between texts, not before a question."""
        first = next((i for i in (ids.bos, *ids.eos) if i is not None), None)
        self.nothing = self.before or ([] if first is None else [first])
        """What is read where there is no text before."""

    def split(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Ids of both, cut where the context ends. Blanks at its end belong to the words after it."""
        bare = context.rstrip()
        context, continuation = bare, context[len(bare) :] + continuation
        if not context:
            return self._nothing(), self.words.encode(continuation)
        before = self.before + self.words.encode(context)
        return before, (self.before + self.words.encode(context + continuation))[len(before) :]

    def _nothing(self) -> list[int]:
        if not self.nothing:
            raise InputError("this model has neither bos nor eos to begin with (ids of its spec); give a context")
        return list(self.nothing)

    def likelihoods(self, pairs: Sequence[tuple[str, str]], report: Report | None = None) -> list[tuple[float, bool]]:
        """For each context and continuation: ln p of the continuation, and whether it is what greedy decoding says.

        What is longer than the model's context loses its beginning.
        """
        rows: list[list[int]] = []
        windows: list[Window] = []
        for i, (context, continuation) in enumerate(pairs):
            before, after = self.split(context, continuation)
            if not after:
                raise InputError(f"pair {i}: the continuation {continuation!r} has no tokens")
            if len(after) > self.room:
                raise InputError(
                    f"pair {i}: its continuation has {len(after)} tokens, and {self.room} are read at once"
                )
            ids = (before + after)[-(self.room + 1) :]
            rows.append(ids)
            windows.append(Window(i, 0, len(ids) - len(after), len(ids)))
        found = self._read(rows, windows, report)
        return [(-nats, greedy) for nats, greedy in (found[window] for window in windows)]

    def rolling(self, texts: Sequence[str], report: Report | None = None) -> list[float]:
        """The logarithm of p of each whole text. A long one is read window by window, the last one as full as it can be."""
        rows = [self._nothing() + self.words.encode(text) for text in texts]
        windows = [[*full_windows(len(row), self.room, i)] for i, row in enumerate(rows)]
        found = self._read(rows, [window for some in windows for window in some], report)
        return [-sum(found[window][0] for window in some) for some in windows]

    def _read(self, rows: list[list[int]], windows: list[Window], report: Report | None) -> dict[Window, Any]:
        found: dict[Window, Any] = {}
        tensors = [torch.tensor(row, dtype=torch.long) for row in rows]
        with reading(self.model):
            reader = Reader(self.model)
            for batch in batches(windows, self.tokens):
                answers = reader.by_window([(tensors[w.document], w) for w in batch], self.device)
                found |= dict(zip(batch, answers, strict=True))
                if report is not None:
                    report(len(found), len(windows))
        return found

    def go_on(
        self, contexts: Sequence[str], *, until: Sequence[str], new: int, report: Report | None = None, **options: Any
    ) -> list[str]:
        """What the model says after each context, up to any of the texts in `until`, eos, or `new` tokens.

        A context that leaves no room for them loses its beginning. `options` are those of `generate`.
        """
        room = self.room - new
        if room < 1:
            raise InputError(f"{new} new tokens leave no room for a context: the model is made for {self.room}")
        ids = [(self.before + self.words.encode(text) or self._nothing())[-room:] for text in contexts]
        texts = [""] * len(ids)
        order, done = sorted(range(len(ids)), key=lambda i: (-len(ids[i]), i)), 0
        while done < len(order):
            width = len(ids[order[done]])
            some = order[done : done + max(1, self.tokens // (width + new))]
            ids_BT, mask_BT = torch.zeros(2, len(some), width, dtype=torch.long, device=self.device)
            for row, i in enumerate(some):
                # Padding is on the left, so that all rows go on at the same place.
                ids_BT[row, width - len(ids[i]) :] = torch.tensor(ids[i])
                mask_BT[row, width - len(ids[i]) :] = 1
            made = generate(
                self.model, ids_BT, attention_mask=mask_BT, tokenizer=self.words, max_new_tokens=new,
                stop=list(until) or None, details=True, **options,
            )  # fmt: skip
            for i, row, count in zip(some, made.ids.tolist(), made.lengths, strict=True):
                stream = TextStream(self.words, ids[i])
                texts[i] = cut_at(stream.push(*row[width : width + count]) + stream.end(), until)
            done += len(some)
            if report is not None:
                report(done, len(order))
        return texts


def full_windows(tokens: int, room: int, document: int = 0) -> Iterator[Window]:
    """Every token but the first predicted once, each window reading `room` tokens: only the last one looks back."""
    first = 1
    while first < tokens:
        end = min(first + room, tokens)
        yield Window(document, max(0, end - 1 - room), first, end)
        first = end


def cut_at(text: str, until: Sequence[str]) -> str:
    """A text up to the first of some others."""
    return text[: min((place for stop in until if stop and (place := text.find(stop)) >= 0), default=len(text))]
