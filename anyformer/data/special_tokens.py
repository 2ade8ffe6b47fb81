"""Which special tokens a published folder's settings name, in the order in which AutoTokenizer (5.22) adds them.

A token has a name (`bos_token`, or `image_token` of a class's own) or is one of a list: `extra_special_tokens`, which is
`additional_special_tokens` in older files. An older special_tokens_map.json counts where tokens are not listed by id.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tokenizers
from tokenizers import AddedToken

from anyformer.errors import DataError

NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""Names by which settings and templates speak of special tokens, in the order in which they are added."""
LISTED, EXTRA, ADDITIONAL = "added_tokens_decoder", "extra_special_tokens", "additional_special_tokens"
FLAGS = ("lstrip", "rstrip", "single_word", "normalized", "special")

Settings = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Specials:
    """The special tokens of a folder."""

    named: dict[str, Any] = field(default_factory=dict)
    """By name: a text, or a table with its flags. Those of NAMED come first."""
    more: list[Any] = field(default_factory=list)
    """Those without a name."""

    @property
    def names(self) -> dict[str, str]:
        """The text of each of NAMED."""
        found = {name: content(self.named.get(name)) for name in NAMED}
        return {name: text for name, text in found.items() if text is not None}

    @property
    def texts(self) -> list[str]:
        """The text of all, each once."""
        found = (content(token) for token in (*self.named.values(), *self.more))
        return list(dict.fromkeys(text for text in found if text is not None))

    def added(self) -> list[AddedToken]:
        """All of them as the library takes them: one with a name is special, whatever its flags say."""
        found = [flagged(token, special=True) for token in self.named.values() if content(token) is not None]
        return found + [flagged(token) for token in self.more if content(token) is not None]


def content(value: Any) -> str | None:
    """The text of a token, which may be a table with flags."""
    found = value.get("content") if isinstance(value, dict) else value
    return found if isinstance(found, str) else None


def flagged(token: Any, **more: bool) -> AddedToken:
    """A token with its flags; one that is only a text is special."""
    if not isinstance(token, dict):
        return AddedToken(token, **({"special": True} | more))
    kept = {flag: bool(token[flag]) for flag in FLAGS if flag in token}
    return AddedToken(content(token) or "", **(kept | more))


def read_specials(
    settings: Settings, older: Settings, defaults: Mapping[str, Any], sentinels: Sequence[str] | None = None
) -> Specials:
    """The special tokens of tokenizer_config.json and of an older special_tokens_map.json.

    `defaults` are those that a class has unless the files say otherwise. `sentinels` are further ones that a class adds
    where the files list none.
    """
    held = dict(settings)
    if ADDITIONAL in held and not held.get(EXTRA):
        held[EXTRA] = held.pop(ADDITIONAL)
    own = {key: held.pop(key) for key, value in settings.items() if _is_own(key) and isinstance(value, str)}
    if isinstance(held.get(EXTRA), dict):
        own |= held.pop(EXTRA)
    if LISTED not in settings:
        for key, value in older.items():
            if isinstance(value, dict) and key != EXTRA:
                held[key] = value | {"special": True}
            elif key == EXTRA and isinstance(value, list):
                before = list(held.get(EXTRA) or [])
                held[EXTRA] = before + [token for token in value if token not in before]
            else:
                held[key] = value
        if isinstance(held.get(EXTRA), dict):
            own |= held.pop(EXTRA)
    if sentinels is not None and EXTRA not in held:
        given = list(held.get(ADDITIONAL) or [])
        numbered = [text for token in given if "<extra_id_" in (text := content(token) or "")]
        if numbered and sentinels and len(numbered) != len(sentinels):
            raise DataError(
                f"extra_ids: is {len(sentinels)}, but {ADDITIONAL} lists {len(numbered)} <extra_id_...>; make them agree"
            )
        held[ADDITIONAL] = given if numbered else [*given, *sentinels]
    more = held[EXTRA] if EXTRA in held else held.get(ADDITIONAL)
    if more is not None and not isinstance(more, list):
        raise DataError(f"{EXTRA}: is {type(more).__name__}; it must be a list of tokens, or a table of named ones")
    own = {key: value for key, value in (dict(defaults) | held).items() if _is_own(key) and _is_token(value)} | own
    named = {key: value for key in NAMED if (value := held.get(key, defaults.get(key))) is not None}
    return Specials(named=named | own, more=[token for token in more or [] if _is_token(token)])


def _is_own(key: str) -> bool:
    """Whether a key names a special token that not every class has."""
    return key.endswith("_token") and key not in NAMED


def _is_token(value: Any) -> bool:
    return content(value) is not None


def listed_tokens(settings: Settings, older: Settings, special: Sequence[str]) -> list[AddedToken]:
    """Tokens that the settings list by id, or an older added_tokens.json does."""
    listed = settings.get(LISTED)
    if isinstance(listed, dict):
        tokens = [token for _, token in sorted(listed.items(), key=lambda item: int(item[0]))]
        return [
            flagged(token) if isinstance(token, dict) else AddedToken(token) for token in tokens if _is_token(token)
        ]
    names = [name for name, _ in sorted(older.items(), key=lambda item: item[1])]
    return [AddedToken(name, normalized=name not in special, special=name in special) for name in names]


def add_tokens(inner: tokenizers.Tokenizer, listed: Sequence[AddedToken], specials: Specials, *, plain: bool) -> None:
    """Add tokens that are never split: one without an id gets the next. `plain`: special ones have no flags."""
    there = {token.content for token in inner.get_added_tokens_decoder().values()} | {token.content for token in listed}
    new: list[AddedToken] = [*listed, *(token for token in specials.added() if token.content not in there)]
    if new:
        inner.add_tokens(new)
    if plain:
        inner.add_tokens([AddedToken(text, special=True) for text in specials.texts])
