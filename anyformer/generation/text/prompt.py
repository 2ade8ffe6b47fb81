"""How a text becomes the ids that a model goes on from."""

from __future__ import annotations

from dataclasses import dataclass

from anyformer.data.tokenizer import Tokenizer
from anyformer.errors import InputError
from anyformer.specs.model import ModelSpec

BLANK = " "


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

    The last blank of a prompt is seldom the end of a token in what a model has learned from, where it is the
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
    if spec.topology == "encoder-decoder":
        return Prompt(ids=tuple(tokenizer.encode(text, specials=True)))
    first = _first(tokenizer) if text.endswith(BLANK) and text != BLANK else ()
    if len(first) > 1:
        return Prompt(ids=prompt_ids(spec, tokenizer, text[:-1]), first=first, repeated=1)
    return Prompt(ids=prompt_ids(spec, tokenizer, text))


def prompt_ids(spec: ModelSpec, tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    """Ids of a text that a decoder is to continue, with what stands before it and nothing that ends it."""
    ids, bos, eos = tokenizer.encode(text, specials=True), spec.ids.bos, spec.ids.eos
    # An eos at the end would end the text before the model has said a word.
    while len(ids) > 1 and ids[-1] in eos:
        ids.pop()
    if bos is not None and bos not in eos and ids == tokenizer.encode(text):
        ids.insert(0, bos)
    if not ids:
        raise InputError("the prompt has no tokens; give a text to continue")
    return tuple(ids)


def _first(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Every token that begins with a blank."""
    blank = tokenizer.encode(BLANK)
    return tokenizer.beginning_with(blank[0]) if len(blank) == 1 else ()
