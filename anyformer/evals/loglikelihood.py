"""How likely a model finds one text after another, and how it goes on itself: what benchmarks with questions ask for.

A published folder's texts become ids as in the harness's own adapter for transformers (HFLM): what the tokenizer files
say, unless the text begins with the bos token itself; where there is nothing before a text, the tokenizer's bos or eos.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from anyformer.data.tokenizer import Tokenizer
from anyformer.errors import InputError
from anyformer.generation.generate import generate
from anyformer.model.eval_mode import eval_mode
from anyformer.model.model import Model
from anyformer.train.perplexity import MANY, TOKENS, Reader, Window, batches, unpredicted, window_sizes
from anyformer.verify.differences import Progress, Report


class LoglikelihoodModel:
    """A decoder and its tokenizer, asked about many texts at once. Rows of similar length share a batch."""

    def __init__(
        self, model: Model, tokenizer: Tokenizer, *, tokens: int | None = None, prefix: int | None = None,
        stop: Sequence[int] = (),
    ) -> None:  # fmt: skip
        """`tokens` are read at once; unless given, as many as suit the device. `prefix` is read where there is no text
        before (the tokenizer's bos or eos; of a run of ours, the spec's), `stop` ends an answer beside the spec's eos.
        """
        self.room, _ = window_sizes(model, None, None)
        if unpredicted(model) > 1:
            raise InputError(
                f"the first {unpredicted(model)} tokens of this prefix-LM see each other both ways, so what a short "
                "question is followed by can't be judged"
            )
        self.model, self.words = model, tokenizer
        self.device = next(model.parameters()).device
        self.tokens = tokens or TOKENS.get(self.device.type, MANY)
        ids, named = model.spec.ids, [tokenizer.id_named(name) for name in ("bos_token", "eos_token")]
        if prefix is not None and not 0 <= prefix < model.spec.vocab:
            raise InputError(f"prefix_token_id: {prefix} is not an id below vocab = {model.spec.vocab}")
        self.before = [] if tokenizer.published or ids.bos is None or ids.bos in ids.eos else [ids.bos]
        """What stands before every text of a run of ours: a bos that is an eos too stands between texts, not before a
        question.
        """
        usual = named if tokenizer.published else [*self.before, ids.bos, *ids.eos]
        self.prefix = next((i for i in (prefix, *usual) if i is not None), None)
        """What is read where there is no text before."""
        self.stop = tuple(dict.fromkeys((*ids.eos, *stop, *(i for i in named[1:] if i is not None))))
        self._spelled = [] if self.prefix is None else [tokenizer.decode([self.prefix], specials=True)]

    def ids(self, text: str) -> list[int]:
        """Ids of a text that something may come after."""
        if not self.words.published:
            return self.before + self.words.encode(text)
        # Who has written the first token out does not want it twice.
        return self.words.text_ids(text, specials=not any(s and text.startswith(s) for s in self._spelled))

    def split(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Ids of both, cut where the context ends. Blanks at its end belong to the words after it."""
        bare = context.rstrip()
        blank, context, continuation = bool(context), bare, context[len(bare) :] + continuation
        before = self.ids(context) if context or (blank and self.words.published) else []
        if before:
            return before, self.ids(context + continuation)[len(before) :]
        after, first = self._bare(continuation), self._nothing()
        # A text that begins with it needs no other.
        return (after[:1], after[1:]) if self.words.published and after[:1] == first else (first, after)

    def _bare(self, text: str) -> list[int]:
        """Ids of a text with nothing around it."""
        return self.words.text_ids(text, specials=False) if self.words.published else self.words.encode(text)

    def _nothing(self) -> list[int]:
        if self.prefix is None:
            files = "its tokenizer files name no bos_token and no eos_token"
            where = files if self.words.published else "ids of its spec"
            raise InputError(
                f"this model has neither bos nor eos to begin with ({where}); give a context, or prefix_token_id=ID"
            )
        return [self.prefix]

    def loglikelihood(self, pairs: Sequence[tuple[str, str]], report: Report | None = None) -> list[tuple[float, bool]]:
        """For each context and continuation: ln p of the continuation, and whether it is what greedy decoding says.

        What is longer than the model's context loses its beginning.
        """
        rows: list[list[int]] = []
        windows: list[Window] = []
        for i, (context, continuation) in enumerate(pairs):
            before, after = self.split(context, continuation)
            if not after:
                raise InputError(f"pair {i}: the continuation {continuation!r} has no tokens")
            if (count := len(after)) > self.room:
                raise InputError(f"pair {i}: its continuation has {count} tokens, and {self.room} are read at once")
            ids = (before + after)[-(self.room + 1) :]
            rows.append(ids)
            windows.append(Window(i, 0, len(ids) - count, len(ids)))
        found = self._read(rows, windows, report)
        return [(-nats, greedy) for nats, greedy in (found[window] for window in windows)]

    def loglikelihood_rolling(self, texts: Sequence[str], report: Report | None = None) -> list[float]:
        """The logarithm of p of each whole text. A long one is read window by window, the last one as full as it can be."""
        whole = self.ids if self.words.published else self._bare
        rows = [self._nothing() + whole(text) for text in texts]
        windows = [[*full_windows(len(row), self.room, i)] for i, row in enumerate(rows)]
        found = self._read(rows, [window for some in windows for window in some], report)
        return [-sum(found[window][0] for window in some) for some in windows]

    def _read(self, rows: list[list[int]], windows: list[Window], report: Report | None) -> dict[Window, Any]:
        found, progress = dict[Window, Any](), Progress(report, len(windows))
        tensors = [torch.tensor(row, dtype=torch.long) for row in rows]
        with eval_mode(self.model):
            reader = Reader(self.model)
            for batch in batches(windows, self.tokens):
                answers = reader.by_window([(tensors[w.document], w) for w in batch], self.device)
                found |= dict(zip(batch, answers, strict=True))
                progress.tick(len(batch))
        return found

    def generate_until(
        self, contexts: Sequence[str], *, until: Sequence[str], new: int, report: Report | None = None, **options: Any
    ) -> list[str]:
        """What the model says after each context, up to any of the texts in `until`, eos, or `new` tokens.

        A context that leaves no room for them loses its beginning. `options` are those of `generate`.
        """
        room = self.room - new
        if room < 1:
            raise InputError(f"{new} new tokens leave no room for a context: the model is made for {self.room}")
        ids = [(self.ids(text) or self._nothing())[-room:] for text in contexts]
        texts, progress = [""] * len(ids), Progress(report, len(ids))
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
                stop=[*until, *self.stop], details=True, **options,
            )  # fmt: skip
            for i, row, count in zip(some, made.ids.tolist(), made.lengths, strict=True):
                texts[i] = cut_at(self.words.decode(row[width : width + count]), until)
            done += len(some)
            progress.tick(len(some))
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
