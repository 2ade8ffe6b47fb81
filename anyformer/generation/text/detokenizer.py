"""Text from ids that arrive one at a time, without ever showing half a character."""

import codecs
from collections.abc import Iterable

from anyformer.data.tokenizer import Tokenizer

UNKNOWN = "\N{REPLACEMENT CHARACTER}"
"""What a decoder shows for bytes that are no character, or not yet one."""


class Detokenizer:
    """Pieces of text whose concatenation is what `decode` says of all ids.

    `before` are ids whose text has been shown already, such as a prompt; the first `repeated` characters after them
    have been shown too.
    """

    def __init__(self, tokenizer: Tokenizer, before: Iterable[int] = (), *, repeated: int = 0) -> None:
        self._tokenizer = tokenizer
        self._repeated = repeated
        self._silent = frozenset(tokenizer.specials.values())
        self._ids: list[int] = list(before)
        """A tail of the ids, long enough for the tokens after it to decode as they do after all of them."""
        self._settled = 0
        """How many of those ids end where a character ends."""
        text, run = tokenizer.decode(self._ids), self._run()
        # Bytes that are no character yet show as so many unknown ones, which fewer characters may replace.
        self._half = UNKNOWN * run if text.endswith(UNKNOWN * run) else ""
        """What was shown of them, if it was."""
        self._shown = len(text) - len(self._half)
        """How many characters of the tail's text are out."""
        self._byte_run = run > 0
        """Whether the last id that shows is a single byte."""
        if self._ids and not self._half:
            self._move()

    def push(self, *ids: int) -> str:
        """Take more ids; the text that is now certain and was not shown."""
        self._ids += ids
        for each in ids:
            if each not in self._silent:
                self._byte_run = each in self._tokenizer.byte_tokens
        text = self._tokenizer.decode(self._ids)
        # A run of single bytes is read as a whole: one more may turn all of them into something else.
        certain = self._shown if self._byte_run else len(text) - text.endswith(UNKNOWN)
        piece = text[self._shown : certain]
        self._shown = max(self._shown, certain)
        if certain == len(text) and not self._byte_run:
            self._move()
        return self._new(piece)

    def end(self) -> str:
        """The text that was held back: nothing more comes."""
        text = self._tokenizer.decode(self._ids)
        piece = text[self._shown :]
        self._shown = len(text)
        return self._new(piece)

    def held(self) -> str:
        """What `end` would answer, without an end."""
        return self._tokenizer.decode(self._ids)[self._shown :].removeprefix(self._half)[self._repeated :]

    def _run(self) -> int:
        """How many of the last ids that show are single bytes."""
        shows = [each in self._tokenizer.byte_tokens for each in self._ids if each not in self._silent]
        return next((n for n, byte in enumerate(reversed(shows)) if not byte), len(shows))

    def _new(self, piece: str) -> str:
        """What of a piece has not been shown."""
        if piece:
            piece, self._half = piece.removeprefix(self._half), ""
        begin = min(self._repeated, len(piece))
        self._repeated -= begin
        return piece[begin:]

    def _move(self) -> None:
        """Forget ids that no longer matter, at the end of a character."""
        tail = self._ids[self._settled :]
        shown = len(self._tokenizer.decode(tail))
        # Decoders treat the first text of all differently (a space is dropped), so a tail must show something.
        if shown:
            self._ids, self._shown = tail, shown
        self._settled = len(self._ids)


class ByteDetokenizer:
    """The same for tokenizers whose tokens are bytes: text is what they decode to, so no id is ever looked at twice."""

    def __init__(self, tokenizer: Tokenizer, before: Iterable[int] = (), *, repeated: int = 0) -> None:
        self._bytes_of = tokenizer.token_bytes
        self._silent = frozenset(tokenizer.specials.values())
        self._repeated = repeated
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._decode(before)
        if self._decoder.getstate()[0]:
            # The prompt ends within a character, which was shown as an unknown one.
            self._repeated += 1

    def push(self, *ids: int) -> str:
        """Take more ids; the text that is now certain and was not shown."""
        return self._new(self._decode(ids))

    def end(self) -> str:
        """The text that was held back: nothing more comes."""
        return self._new(self._decoder.decode(b"", True))

    def held(self) -> str:
        """What `end` would answer, without an end."""
        return self._decoder.getstate()[0].decode("utf-8", "replace")[self._repeated :]

    def _decode(self, ids: Iterable[int]) -> str:
        bytes_of, silent = self._bytes_of, self._silent
        return self._decoder.decode(b"".join([bytes_of(each) for each in ids if each not in silent]))

    def _new(self, piece: str) -> str:
        if not self._repeated:
            return piece
        begin = min(self._repeated, len(piece))
        self._repeated -= begin
        return piece[begin:]


def detokenizer(
    tokenizer: Tokenizer, before: Iterable[int] = (), *, repeated: int = 0
) -> Detokenizer | ByteDetokenizer:
    """The quickest that a tokenizer allows."""
    made = ByteDetokenizer if tokenizer.joins_bytes else Detokenizer
    return made(tokenizer, before, repeated=repeated)
