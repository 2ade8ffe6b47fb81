"""Log-probabilities as the API sends them: by token for completions, as a list of objects for chat."""

import codecs
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from anyformer.data.token_bytes import TokenBytes


@dataclass(frozen=True, slots=True)
class Entry:
    """A token and what the model gave it; None: nothing stands before it, so nothing predicted it."""

    id: int
    logprob: float | None
    top: Sequence[Sequence[Any]] = ()
    """[id, log-probability] of the likeliest tokens, the likeliest first."""

    def with_own(self) -> list[tuple[int, float]]:
        """The likeliest tokens, and behind them this one if it is none of them."""
        found = [(int(token), float(value)) for token, value in self.top]
        if self.logprob is not None and all(token != self.id for token, _ in found):
            found.append((self.id, self.logprob))
        # One of them is this token: its two figures are the same float.
        return [
            (token, self.logprob if token == self.id and self.logprob is not None else value) for token, value in found
        ]


class Offsets:
    """Where each token begins in a text that grows."""

    def __init__(self, bytes_of: TokenBytes, silent: frozenset[int], start: int = 0) -> None:
        self._bytes_of, self._silent, self.at = bytes_of, silent, start
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> int:
        """The character at which a token begins."""
        if token in self._silent:
            return self.at
        raw, half = self._bytes_of(token), self._decoder.getstate()[0]
        if half and raw and not _goes_on(half, raw[:1]):
            # What was begun before is no character, and is shown as such.
            self.at += len(self._decoder.decode(b"", final=True))
        before = self.at
        self.at += len(self._decoder.decode(raw))
        return before


def _goes_on(half: bytes, byte: bytes) -> bool:
    """Whether a byte belongs to the character that some bytes begin."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(half + byte)
    except UnicodeDecodeError:
        return False
    return True


def completion_logprobs(
    entries: Iterable[Entry], bytes_of: TokenBytes, offsets: Offsets, *, ids: bool = False
) -> dict[str, Any]:
    """The form of /v1/completions: four lists, one entry for each token. `ids` adds those of the likeliest tokens."""
    found: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    if ids:
        found["top_ids"] = []
    for entry in entries:
        top = entry.with_own()
        # The token itself comes first, so that it is never the one whose name had to give way.
        own_first = sorted(top, key=lambda pair: pair[0] != entry.id)
        names = dict(
            zip([token for token, _ in own_first], bytes_of.labels(token for token, _ in own_first), strict=True)
        )
        found["tokens"].append(bytes_of.label(entry.id))
        found["token_logprobs"].append(entry.logprob)
        found["top_logprobs"].append(None if entry.logprob is None else {names[token]: value for token, value in top})
        found["text_offset"].append(offsets.push(entry.id))
        if ids:
            found["top_ids"].append(
                None if entry.logprob is None else [[token, value, bytes_of.label(token)] for token, value in top]
            )
    return found


def chat_logprobs(entries: Iterable[Entry], bytes_of: TokenBytes, *, ids: bool = False) -> list[dict[str, Any]]:
    """The form of /v1/chat/completions: an object for each token, with the likeliest ones inside."""

    def one(token: int, value: float | None) -> dict[str, Any]:
        shown = {"token": bytes_of.label(token), "logprob": value, "bytes": list(bytes_of(token))}
        return shown | {"id": token} if ids else shown

    return [
        one(entry.id, entry.logprob) | {"top_logprobs": [one(int(token), value) for token, value in entry.top]}
        for entry in entries
    ]


def vllm_prompt_logprobs(entries: Iterable[Entry], bytes_of: TokenBytes) -> list[dict[str, Any] | None]:
    """The form of vLLM's prompt_logprobs: by token id, with rank and text."""
    found: list[dict[str, Any] | None] = []
    for entry in entries:
        if entry.logprob is None:
            found.append(None)
            continue
        known = len(entry.top)
        found.append(
            {
                # The rank of a token that is not among the likeliest was not counted.
                str(token): {
                    "logprob": value,
                    "rank": i + 1 if i < known else None,
                    "decoded_token": bytes_of.label(token),
                }
                for i, (token, value) in enumerate(entry.with_own())
            }
        )
    return found
