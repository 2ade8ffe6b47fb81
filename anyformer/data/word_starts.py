"""Which tokens of a vocabulary begin a word, by the marks that tokenizers leave in their spelling."""

from __future__ import annotations

from typing import Any

import numpy as np

from anyformer.data.tokenizer import Tokenizer

SPACES = ("\u0120", "\u2581", "\u010a", "\u0109")
"""Signs for a space, a new line and a tab at the beginning of a token: byte-level BPE, and SentencePiece."""
CONTINUES = "##"
"""WordPiece writes this before a token that goes on with a word."""


def word_starts(tokenizer: Tokenizer) -> Any:
    """For each id whether its token begins a word, (vocab,) of bool.

    With WordPiece that is every token without `##`. Where spaces belong to tokens, it is every token with a space, and
    every token that is no letter or digit, such as punctuation right after a word.
    """
    known = tokenizer.inner.get_vocab(with_added_tokens=True)
    marked = any(name.startswith(CONTINUES) and len(name) > len(CONTINUES) for name in known)
    starts_V = np.ones(max(known.values(), default=-1) + 1, bool)
    for name, i in known.items():
        if marked:
            starts_V[i] = not name.startswith(CONTINUES) or name == CONTINUES
        else:
            starts_V[i] = name.startswith(SPACES) or not name[:1].isalnum()
    for i in tokenizer.specials.values():
        starts_V[i] = True
    return starts_V
