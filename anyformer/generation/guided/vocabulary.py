"""The bytes of all tokens of a model, by which a grammar is held against what the model may say next."""

import threading
import weakref
from dataclasses import dataclass
from typing import Any

from anyformer.data.token_bytes import TokenBytes
from anyformer.data.tokenizer import Tokenizer
from anyformer.data.tokenizer_files import guarded
from anyformer.errors import CapabilityError
from anyformer.registry import installed

PACKAGE = "llguidance"
LONGEST = 512
"""Bytes of the longest token that an answer may have: the trie of the package has room for about twice as many."""


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The tokens that a model's logits stand for."""

    size: int
    """Those of the model, which may be more or fewer than its tokenizer has."""
    specials: dict[str, int]
    """Tokens for programs, which a grammar allows only by their name."""
    tokens: Any
    """The package's trie of them, and at last one that is none of the model's: the end of an answer."""


class Words:
    """What the package asks a tokenizer for."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokens: list[bytes], specials: list[int]) -> None:
        self.tokens, self.special_token_ids, self.eos_token_id = (
            [*tokens, b"end"],
            [*specials, len(tokens)],
            len(tokens),
        )

    def __call__(self, text: str) -> list[int]:
        raise NotImplementedError("how a text is spelled is left to the model")


def llguidance() -> Any:
    """The package."""
    try:
        return installed(PACKAGE)
    except ImportError as error:
        raise CapabilityError(
            f"guided decoding needs the package {PACKAGE}: pip install 'anyformer[guided]'"
        ) from error


_made: weakref.WeakKeyDictionary[Tokenizer, dict[int, Vocabulary]] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def vocabulary_of(tokenizer: Tokenizer, size: int) -> Vocabulary:
    """The vocabulary of a model with so many tokens, made once for each tokenizer. It takes a second for 100,000 tokens."""
    package = llguidance()
    with _lock:
        known = _made.setdefault(tokenizer, {})
        if size not in known:
            specials = {name: token for name, token in tokenizer.specials.items() if token < size}
            words = Words(token_bytes(tokenizer, size), [*specials.values()])
            known[size] = Vocabulary(size, specials, package.LLTokenizer(words))
        return known[size]


def token_bytes(tokenizer: Tokenizer, size: int) -> list[bytes]:
    """What each of the first `size` ids adds to a text; of a special token its name; nothing where there is no token."""
    found = [b""] * size
    known = range(min(size, max(tokenizer.inner.get_vocab(with_added_tokens=True).values(), default=-1) + 1))
    spelled = TokenBytes(tokenizer)
    single = known if tokenizer.spells_bytes else [i for i in known if i in tokenizer.byte_tokens]
    for token in {*single, *tokenizer.specials.values()} & {*known}:
        found[token] = spelled(token)
    others = sorted({*known} - {*single, *tokenizer.specials.values()})
    for token, text in zip(others, _texts(tokenizer, others), strict=True):
        found[token] = text.encode()
    return [each if len(each) <= LONGEST else b"" for each in found]


def _texts(tokenizer: Tokenizer, tokens: list[int]) -> list[str]:
    """What tokens add to a text in the middle of it: decoders treat the first and the last one of all differently."""
    anchor = _anchor(tokenizer, tokens)
    if anchor is None:
        return [""] * len(tokens)
    with guarded("the tokens can't be looked up"):
        alone, twice, *found = tokenizer.inner.decode_batch(
            [[anchor], [anchor, anchor], *([anchor, token, anchor] for token in tokens)], skip_special_tokens=False
        )
    after = twice[len(alone) :]
    around = [each.startswith(alone) and each.endswith(after) for each in found]
    return [each[len(alone) : len(each) - len(after)] if fits else "" for each, fits in zip(found, around, strict=True)]


def _anchor(tokenizer: Tokenizer, tokens: list[int]) -> int | None:
    """A token whose text tells where it ends: best a letter that stays the same beside itself."""
    with guarded("the tokens can't be looked up"):
        texts = tokenizer.inner.decode_batch([[token] for token in tokens], skip_special_tokens=False)
        letters = [token for token, text in zip(tokens, texts, strict=True) if len(text) == 1 and text.isalnum()]
        twice = tokenizer.inner.decode_batch([[token, token] for token in letters], skip_special_tokens=False)
    plain = [token for token, text in zip(letters, twice, strict=True) if text == text[:1] * 2]
    some = [token for token, text in zip(tokens, texts, strict=True) if text.strip()]
    return next(iter((*plain, *letters, *some)), None)
