"""Stop strings: where a text ends before its tokens do."""

from collections.abc import Generator, Iterable
from contextlib import closing
from typing import Any

from anyformer.data.tokenizer import Tokenizer
from anyformer.generation.params.checks import ids, shown, text
from anyformer.generation.text.detokenizer import ByteDetokenizer, Detokenizer
from anyformer.specs.model import ModelSpec

STOPS = 16
"""The most stop strings."""


class StopText:
    """A stream of text that ends where a stop string begins.

    It wraps a `Detokenizer` and is used like one: what may be the beginning of a stop string is held back until more is
    known, so the pieces add up to the text before the match, however the string is split into tokens. A string that is
    complete within the first `least` tokens is text like any other.
    """

    def __init__(self, stream: Detokenizer | ByteDetokenizer, stops: Iterable[str], *, least: int = 0) -> None:
        self._stream, self._stops, self._least = stream, tuple(stops), least
        self._kept = ""
        """Certain text that was not shown."""
        self.count = self._passed = 0
        """Tokens so far, and characters of the kept text that the first `least` of them had already."""
        self.met: str | None = None
        """The stop string that was found; from then on there is nothing more to show."""
        self.shown = 0
        """Characters that could be shown so far."""

    @property
    def length(self) -> int:
        """Characters so far, those that are held back included: where the next token begins."""
        return self.shown + len(self._kept)

    def push(self, *ids: int) -> str:
        """Take more ids; the text that can be shown."""
        piece = ""
        for each in ids:
            if self.met is None:
                piece += self._push(each)
        self.shown += len(piece)
        return piece

    def end(self) -> str:
        """The text that was held back: nothing more comes."""
        if self.met is not None:
            return ""
        piece, self._kept = self._kept + self._stream.end(), ""
        self.shown += len(piece)
        return piece

    def pieces(self, steps: Generator[Any]) -> Generator[str]:
        """Pieces of the text of a stream of single ids, as they come."""
        with closing(steps):
            for ids_B in steps:
                if piece := self.push(int(ids_B)):
                    yield piece
        if piece := self.end():
            yield piece

    def _push(self, token: int) -> str:
        self.count += 1
        self._kept += self._stream.push(token)
        # If the row ended here, so would the text: what the stream holds back counts.
        whole = self._kept + self._stream.held()
        if self.count <= self._least:
            self._passed = len(whole)
        # A stop string must end behind what passed.
        found = [
            (at, stop) for stop in self._stops if (at := whole.find(stop, max(0, self._passed - len(stop) + 1))) >= 0
        ]
        if found:
            begin, self.met = min(found, key=lambda each: each[0])
            self._kept = ""
            return whole[:begin]
        keep = max((_overlap(self._kept, stop) for stop in self._stops), default=0)
        piece = self._kept[: len(self._kept) - keep]
        self._kept = self._kept[len(piece) :]
        self._passed = max(0, self._passed - len(piece))
        return piece


def _overlap(text: str, stop: str) -> int:
    """Characters at the end of a text that may begin a stop string, but are not all of it."""
    return next((size for size in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:size])), 0)


def read_stop(
    stop: Any, spec: ModelSpec, tokenizer: Tokenizer | None, bad: list[str], *, ignore_eos: bool = False
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Ids and texts that end a row. `ignore_eos`: only those that are given."""
    eos = () if ignore_eos else tuple(spec.ids.eos)
    if stop is None:
        return eos, ()
    given = [stop] if isinstance(stop, int | str) else stop
    if not isinstance(given, Iterable):
        bad.append(f"stop: expected token ids or texts, got {shown(stop)}")
        return (), ()
    each = list(given)
    texts = [one for one in each if isinstance(one, str)]
    if len(texts) > STOPS:
        bad.append(f"stop: {len(texts)} texts; the most is {STOPS}")
    known = [text("stop", one, tokenizer, bad) for one in texts[:STOPS]]
    found = ids("stop", [one for one in each if not isinstance(one, str)], spec.vocab, bad)
    # Who adds a text still wants the model to be able to end by itself.
    if texts and len(texts) == len(each):
        found = eos
    return tuple(dict.fromkeys(found)), tuple(dict.fromkeys(one for one in known if one is not None))
