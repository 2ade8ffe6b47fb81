"""The ids of a text, by one rule whoever asks: as a published folder's tokenizer files say, or as a run of ours was trained.

Published: exactly what `Tokenizer.text_ids` gives, never an id of config.json. A run of ours: a document begins with the
spec's bos, as in training; a prompt does too, unless bos is an eos as well, which stands between documents.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from anyformer.data.tokenizer import Tokenizer
from anyformer.errors import InputError
from anyformer.specs.model import ModelSpec


class DocumentIds(NamedTuple):
    """Ids of a document; the first `before` of them stand for none of its text."""

    ids: list[int]
    before: int


def document_ids(spec: ModelSpec, tokenizer: Tokenizer, texts: Sequence[str]) -> list[DocumentIds]:
    """Ids of whole documents, on all cores."""
    if tokenizer.published:
        return [DocumentIds(*found) for found in tokenizer.many_text_ids(texts)]
    before = [] if spec.ids.bos is None else [spec.ids.bos]
    return [DocumentIds(before + ids, len(before)) for ids in tokenizer.encode_many(texts)]


def prompt_ids(spec: ModelSpec, tokenizer: Tokenizer, text: str, *, literal: bool = False) -> tuple[int, ...]:
    """Ids of a text that a decoder is to continue. `literal`: special tokens that people spell out in it are text."""
    if tokenizer.published:
        ids = tokenizer.encode(text, specials=True) if literal else tokenizer.text_ids(text)
    else:
        ids, bos, eos = tokenizer.encode(text, specials=True), spec.ids.bos, spec.ids.eos
        # An eos at the end would end the text before the model has said a word.
        while len(ids) > 1 and ids[-1] in eos:
            ids.pop()
        if bos is not None and bos not in eos and ids == tokenizer.encode(text):
            ids.insert(0, bos)
    if not ids:
        raise InputError("the prompt has no tokens; give a text to continue")
    return tuple(ids)


def source_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """Ids of a text that an encoder reads, with the tokenizer's template around it."""
    return tokenizer.text_ids(text) if tokenizer.published else tokenizer.encode(text, specials=True)


def begins(spec: ModelSpec, tokenizer: Tokenizer, found: Sequence[DocumentIds]) -> str:
    """How documents begin, in words."""
    who = "its tokenizer files" if tokenizer.published else "its training"
    firsts = {tuple(row.ids[: row.before]) for row in found if row.ids}
    if firsts <= {()}:
        return f"no bos, as {who} say" if tokenizer.published else "no bos: its spec has none"
    names = [" ".join(tokenizer.inner.id_to_token(i) or str(i) for i in first) for first in sorted(firsts) if first]
    return f"begun with {', '.join(names)}, as {who} say{'' if tokenizer.published else 's'}"
