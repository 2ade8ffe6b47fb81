"""Tokenizers: text to ids and back, read from a published folder or a tokenizer.json, or trained as byte-level BPE.

Special tokens are for programs: one that is spelled out in a text is text, and only an id can be a control token. The
exception is `text_ids`, which gives the ids of a text exactly as a published folder's own files do.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import tokenizers
from tokenizers import Regex, decoders, models, pre_tokenizers, processors, trainers

from anyformer.data.tokenizer_files import FILE, guarded, is_published, missing, parsed, read_file, read_published
from anyformer.errors import DataError, InputError, nearest
from anyformer.families.gguf.header import is_gguf
from anyformer.files import replace_file
from anyformer.specs.model import ModelSpec

if TYPE_CHECKING:
    from anyformer.data.token_bytes import TokenBytes

SOURCE = "source_tokenizer.json"
"""The tokenizer of the source, where that has a vocabulary of its own; FILE is then the target's."""
END = "<|endoftext|>"
"""The one special token of tokenizers that we train: it stands between documents, and its id is 0."""
LANGUAGE = re.compile(r"(?:__)?[a-z]{2,3}(?:[-_][A-Za-z]{2,4})?(?:__)?")
"""How the tokens of languages are spelled: en_XX, eng_Latn, __en__."""
LONG = 4096
"""Characters, or ids, above which other threads would wait noticeably."""
SCRAP = 50_000
"""Characters of the pieces in which a corpus is counted: one long text would keep one core busy and the others idle."""

WORDS = "|".join(
    (
        r"'(?i:[sdmt]|ll|ve|re)",
        # A word takes the one sign before it along: " word", "_name", ".append".
        r"[^\r\n\p{L}\p{N}]?\p{L}[\p{L}\p{M}]*",
        # Each digit by itself, so that a number is spelled in one way only.
        r"\p{N}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        # Blank lines together, and indentation together but for the space that goes with a word.
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)
"""No merge crosses the border of a match. Every character is in some match."""


Named = Mapping[str, str]


class Tokenizer:
    """Text to ids and back."""

    def __init__(
        self,
        inner: tokenizers.Tokenizer,
        *,
        published: bool = False,
        named: Named | None = None,
        splits: bool = False,
        spoken: str = "",
    ) -> None:
        """`published`: its files say what a text becomes, otherwise the spec of the run does; `named`: special tokens
        by name (bos_token, ...); `splits`: those that are spelled out in a text are text for `text_ids` too; `spoken`: the
        template around a text in the language `{src_lang}`, where texts have a token for it.
        """
        self.spoken = spoken
        self.published = published
        self.inner = inner
        """The library's own, for what it knows besides ids: offsets, pairs of texts, names of tokens."""
        with guarded("it can't be used"):
            # Either kind of text may come; the more usual one needs no copy.
            inner.encode_special_tokens = splits or not published
            # A file may ask for either, and would silently cut or lengthen a text.
            inner.no_truncation()
            inner.no_padding()
            added = inner.get_added_tokens_decoder()
            self.vocab: int = inner.get_vocab_size(with_added_tokens=True)
            self.texts: int = inner.get_vocab_size(with_added_tokens=False)
            """The same without those that were added, which a text has only if it spells them."""
            decoder = b"" if inner.decoder is None else inner.decoder.__getstate__()
            self.spells_bytes = b"ByteLevel" in decoder
            """Whether a token is written with one sign for each byte."""
            self.joins_bytes = b'"type":"ByteLevel"' in decoder.replace(b" ", b"") and b"Sequence" not in decoder
            """Whether the text of tokens is nothing but their bytes, one after the other."""
            names = [f"<0x{byte:02X}>" for byte in range(256)] if b"ByteFallback" in decoder else []
            self.byte_tokens = frozenset(i for name in names if (i := inner.token_to_id(name)) is not None)
            """Ids of tokens that stand for one byte of a character that has no token (`<0x0A>`)."""
        self.specials: dict[str, int] = {t.content: i for i, t in sorted(added.items()) if t.special}
        self.named: dict[str, str] = dict(named or {})
        """Special tokens by what they are for: bos_token, eos_token, ..."""

    def encode(self, text: str, *, specials: bool = False) -> list[int]:
        """Ids of a text; `specials` adds what the tokenizer's own template puts around a text."""
        with guarded("the text can't be encoded"):
            return encoded(self.literal, _whole(text), specials=specials)

    def encode_many(self, texts: Sequence[str], *, specials: bool = False) -> list[list[int]]:
        """Ids of each text, on all cores."""
        with guarded("the texts can't be encoded"):
            return [e.ids for e in self.literal.encode_batch_fast([*map(_whole, texts)], add_special_tokens=specials)]

    def text_ids(self, text: str, *, specials: bool = True) -> list[int]:
        """Ids as the files give them: in the template (if `specials`), and special tokens spelled out are tokens."""
        with guarded("the text can't be encoded"):
            return encoded(self.inner, _whole(text), specials=specials)

    def decode(self, ids: Iterable[int], *, specials: bool = False) -> str:
        """Text of ids. Special tokens appear only if asked for; an id beyond the vocabulary has no text."""
        with guarded("the ids can't be decoded"):
            given = list(ids)
            if len(given) > LONG:
                return self.inner.decode_batch([given], skip_special_tokens=not specials)[0]
            return self.inner.decode(given, skip_special_tokens=not specials)

    def bytes_of(self, token: int) -> int:
        """How many bytes of UTF-8 one token stands for at the beginning of a text."""
        if token in self.byte_tokens:
            return 1
        with guarded("the token can't be looked up"):
            if self.spells_bytes:
                return len(self.inner.id_to_token(token) or "")
        return len(self.decode([token]).encode())

    def beginning_with(self, token: int) -> tuple[int, ...]:
        """Ids of all tokens whose text begins with that of a token, itself included; only itself unless tokens are bytes."""
        with guarded("the token can't be looked up"):
            spelled = self.inner.id_to_token(token)
            if not self.spells_bytes or not spelled:
                return (token,)
            known = self.inner.get_vocab(with_added_tokens=False)
        return tuple(sorted({token, *(i for name, i in known.items() if name.startswith(spelled))}))

    def id_of(self, token: str) -> int | None:
        """The id of one token, spelled as in the vocabulary."""
        with guarded("the token can't be looked up"):
            return self.inner.token_to_id(token)

    def ending_with(self, token: int) -> Self:
        """A copy whose template puts a token after a text; itself, if its own template adds something already."""
        if self.encode("a", specials=True) != self.encode("a"):
            return self
        with guarded("it can't be copied"):
            name = self.inner.id_to_token(token)
            copy = tokenizers.Tokenizer.from_str(self.inner.to_str())
            template = processors.TemplateProcessing(single=f"$A {name}", special_tokens=[(name, token)])
            own = copy.post_processor
            copy.post_processor = template if own is None else processors.Sequence([own, template])
        return type(self)(copy)

    def language(self, code: str) -> int:
        """The token of a language."""
        found = next((i for name in (code, f"__{code}__") if (i := self.specials.get(name)) is not None), None)
        if found is None:
            known = [name for name in self.specials if LANGUAGE.fullmatch(name)]
            some = f" (such as {', '.join(known[:6])}; {len(known)} in all)" if known else ""
            raise InputError(f"language {code!r} is none of this tokenizer{nearest(code, known)}{some}")
        return found

    def speaking(self, code: str) -> Self:
        """A copy for texts in a language."""
        token = self.language(code)
        if not self.spoken:
            raise InputError("this tokenizer puts no token of a language around a text; leave src_lang out")
        with guarded("it can't be copied"):
            copy = tokenizers.Tokenizer.from_str(self.inner.to_str())
            single = self.spoken.format(src_lang=copy.id_to_token(token))
            names = [each for each in single.split() if each != "$A"]
            copy.post_processor = processors.TemplateProcessing(
                single=single, pair=None, special_tokens=[(each, copy.token_to_id(each)) for each in names]
            )
        return type(self)(copy, published=self.published, named=self.named, splits=self.inner.encode_special_tokens)

    @cached_property
    def token_bytes(self) -> "TokenBytes":
        """The bytes of single tokens."""
        from anyformer.data.token_bytes import TokenBytes

        return TokenBytes(self)

    @cached_property
    def literal(self) -> tokenizers.Tokenizer:
        """For texts of people: special tokens that are spelled out in them are text."""
        return self._with(splits=True)

    @cached_property
    def spelled(self) -> tokenizers.Tokenizer:
        """For texts that a program has put together: special tokens that are spelled out in them are tokens."""
        return self._with(splits=False)

    def _with(self, *, splits: bool) -> tokenizers.Tokenizer:
        if self.inner.encode_special_tokens == splits:
            return self.inner
        with guarded("it can't be copied"):
            copy = tokenizers.Tokenizer.from_str(self.inner.to_str())
            copy.encode_special_tokens = splits
        return copy

    def id_named(self, name: str) -> int | None:
        """The id of a special token by what it is for, such as bos_token; None if the files name none."""
        return self.id_of(self.named[name]) if name in self.named else None

    def to_json(self) -> str:
        with guarded("it can't be written"):
            return self.inner.to_str(pretty=True)

    def save(self, path: str | Path) -> None:
        """Write tokenizer.json into a directory, which is made if need be, or the file if the path ends in .json."""
        place = Path(path) if Path(path).suffix == ".json" else Path(path) / FILE
        place.parent.mkdir(parents=True, exist_ok=True)
        replace_file(place, lambda beside: beside.write_text(self.to_json(), encoding="utf-8"))

    def __repr__(self) -> str:
        return f"Tokenizer(vocab={self.vocab}, specials={self.specials})"


def encoded(inner: tokenizers.Tokenizer, text: str, *, specials: bool) -> list[int]:
    """Ids of a text. The library lets other threads of the process run only while it reads a batch, so a long text is one."""
    if len(text) > LONG:
        return inner.encode_batch_fast([text], add_special_tokens=specials)[0].ids
    return inner.encode(text, add_special_tokens=specials).ids


def tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer of a published folder or of a GGUF file, as they say; or a tokenizer.json, alone or in a folder of
    ours.
    """
    place = Path(path)
    if is_gguf(place) and place.is_file():
        from anyformer.data.gguf_tokenizer import gguf_tokenizer

        return gguf_tokenizer(place)
    folder, file = (place, place / FILE) if place.is_dir() else (place.parent, place)
    if file.name == FILE and is_published(folder):
        return Tokenizer(published=True, **read_published(folder))
    if not file.is_file():
        lost = f"{place}: there is no such file; give a {FILE} or a directory that holds one"
        raise DataError(missing(place) if place.is_dir() else lost)
    return Tokenizer(parsed(read_file(file), file))


def source_tokenizer(folder: str | Path) -> Tokenizer | None:
    """The tokenizer of the source in a directory, if the source has one of its own."""
    place = Path(folder) / SOURCE
    return tokenizer(place) if place.is_file() else None


def train_bpe(texts: Iterable[str], vocab: int, specials: Sequence[str] = (END,)) -> Tokenizer:
    """Byte-level BPE: any text round-trips. Merges need a pair that occurs twice, so `.vocab` may be less."""
    least, names = 256 + len(specials), ", ".join(specials)
    if vocab < least:
        raise DataError(f"vocab: {vocab} is less than {least}: every byte needs a token, and so does {names}")
    inner = tokenizers.Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(WORDS), behavior="isolated")
    spell = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.pre_tokenizer = pre_tokenizers.Sequence([split, spell])
    inner.decoder = decoders.ByteLevel()
    signs = pre_tokenizers.ByteLevel.alphabet()
    options: dict[str, Any] = {"min_frequency": 2, "show_progress": False, "initial_alphabet": signs}
    trainer = trainers.BpeTrainer(vocab_size=vocab, special_tokens=list(specials), **options)
    with guarded("it can't be trained"):
        inner.train_from_iterator(scraps(texts), trainer)
    return Tokenizer(inner)


def scraps(texts: Iterable[str]) -> Iterator[str]:
    """Long texts cut at the ends of lines; a token that spans a cut is counted a little differently, and no more."""
    for text in texts:
        _whole(text)
        start = 0
        while len(text) - start > SCRAP:
            end = text.rfind("\n", start, start + SCRAP) + 1 or start + SCRAP
            yield text[start:end]
            start = end
        yield text[start:]


def _whole(text: str) -> str:
    """The text, if it is one that can be written down in UTF-8."""
    if not isinstance(text, str):
        raise DataError(f"expected a text, got {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = f"{text[error.start]!r}, half of a UTF-16 pair and no character"
        raise DataError(f"character {error.start} of the text is {half}; read the text as UTF-8") from error
    return text


class DocumentIds(NamedTuple):
    """Ids of a document; the first `before` of them stand for none of its text."""

    ids: list[int]
    before: int


def document_ids(spec: ModelSpec, tokenizer: Tokenizer, texts: Sequence[str]) -> list[DocumentIds]:
    """Ids of whole documents, on all cores."""
    if tokenizer.published:
        with guarded("the texts can't be encoded"):
            found = tokenizer.inner.encode_batch([*map(_whole, texts)], add_special_tokens=True)
        return [DocumentIds(e.ids, [*e.special_tokens_mask, 0].index(0)) for e in found]
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
    inside = {name for name in known if name.startswith(CONTINUES) and name != CONTINUES}
    if not inside:
        inside = {name for name in known if name[:1].isalnum() and not name.startswith(SPACES)}
    starts_V = np.ones(max(known.values(), default=-1) + 1, bool)
    starts_V[[known[name] for name in inside - tokenizer.specials.keys()]] = False
    return starts_V
