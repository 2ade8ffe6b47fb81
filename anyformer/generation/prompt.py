"""How a text becomes the ids that a model goes on from."""

from __future__ import annotations

from dataclasses import dataclass

from anyformer.data.tokenizer import Tokenizer
from anyformer.errors import InputError
from anyformer.specs.model import ModelSpec


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """What a model reads, and what of the text its first answer must repeat."""

    ids: tuple[int, ...]
    first: tuple[int, ...] | None = None
    """Ids among which the first new token is chosen; None: all."""
    repeated: int = 0
    """Characters of the prompt that the first new token says again."""


def read_prompt(spec: ModelSpec, tokenizer: Tokenizer, text: str | None) -> Prompt:
    """The prompt of a text; None lets the model begin by itself.

    The tokenizer's own template decides what stands around a text. If it has none, a text begins with the bos token,
    unless that is an eos token too: such a token stands between documents, and a prompt may be the middle of one.

    A blank at the end of a prompt is seldom a token of its own in what a model has learned from, where it is the
    beginning of the next word. It is taken back, and the first new token must begin with it.
    """
    ids_of = spec.ids
    if text is None:
        if spec.topology == "encoder-decoder":
            raise InputError("an encoder-decoder answers a text; give one")
        if ids_of.bos is None:
            raise InputError(
                "this model has no bos token to begin with (its spec has no ids.bos); give a text to continue"
            )
        return Prompt(ids=(ids_of.bos,))
    ids = tokenizer.encode(text, specials=True)
    if spec.topology == "encoder-decoder":
        return Prompt(ids=tuple(ids))
    plain = tokenizer.encode(text)
    while len(ids) > 1 and ids[-1] in ids_of.eos:
        ids.pop()
    if ids == plain and ids_of.bos is not None and ids_of.bos not in ids_of.eos:
        ids.insert(0, ids_of.bos)
    if not ids:
        raise InputError("the prompt has no tokens; give a text to continue")
    return _taken_back(tokenizer, ids, text)


def _taken_back(tokenizer: Tokenizer, ids: list[int], text: str) -> Prompt:
    blank = tokenizer.decode(ids[-1:])
    if len(ids) < 2 or not blank or blank.strip(" ") or not text.endswith(blank):
        return Prompt(ids=tuple(ids))
    first = tokenizer.beginning_with(ids[-1])
    if len(first) < 2:
        return Prompt(ids=tuple(ids))
    return Prompt(ids=tuple(ids[:-1]), first=first, repeated=len(blank))
