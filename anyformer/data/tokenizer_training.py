"""Tokenizers from texts: byte-level BPE, WordPiece, Unigram, and one token for each character."""

import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers

from anyformer.data.tokenizer import Tokenizer, guarded, scraps, train_bpe
from anyformer.data.tokenizer_classes import UNDERLINE, sentencepiece_decoder
from anyformer.errors import DataError, InputError, nearest

ROLES: dict[str, tuple[str, ...]] = {
    "pad": ("<pad>", "[PAD]", "<|pad|>", "<|padding|>"),
    "bos": ("<bos>", "<s>", "[BOS]", "<|bos|>", "<|begin_of_text|>", "<|startoftext|>"),
    "eos": ("<eos>", "</s>", "[EOS]", "<|eos|>", "<|endoftext|>", "<|end_of_text|>"),
    "unk": ("<unk>", "[UNK]", "<|unk|>"),
    "mask": ("<mask>", "[MASK]", "<|mask|>"),
    "cls": ("[CLS]", "<cls>"),
    "sep": ("[SEP]", "<sep>"),
}
"""Names under which special tokens are known, by what they are for."""

SENTINEL = "<extra_id_{}>"
NEVER = -1e4
"""The score of what no text is ever made of."""
ALPHABET = 8000
"""WordPiece and Unigram have a token of their own for at most so many different characters, the commonest."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """Which tokenizer to train."""

    kind: str = "bpe"
    vocab: int | None = None
    """Tokens in all, special ones included; None for characters, which are as many as there are."""
    specials: tuple[str, ...] = ()
    """Special tokens besides those that the kind has by itself."""
    sentinels: int = 0
    """How many of <extra_id_0>, <extra_id_1> ... there are, for spans that are taken out."""
    lowercase: bool = False
    """WordPiece: letters lose their case and their accents."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError(f"there is no tokenizer of the kind {self.kind!r}{nearest(self.kind, KINDS)}")
        if self.lowercase and self.kind != "wordpiece":
            raise InputError(f"lowercase goes with wordpiece; a {self.kind} tokenizer keeps texts as they are")
        if self.vocab is None and self.kind != "chars":
            raise InputError(f"{self.kind}: say how large the vocabulary is to be, e.g. --vocab 8192")
        if self.vocab is not None and self.kind == "chars":
            raise InputError("a vocabulary of characters is as large as there are characters; leave out the size")
        twice = [name for name, count in Counter(self.names).items() if count > 1]
        wrong = [name for name in self.names if not re.fullmatch(r"<\S+>|\[\S+\]", name)]
        if twice or wrong:
            # Such a name is no word and no character of a text, whatever the tokenizer.
            names = ", ".join(map(repr, twice or wrong))
            what = f"{names} is there twice" if twice else f"{names} can't be"
            raise InputError(f"special tokens: {what}; write each once, as <name> or [NAME]")

    @property
    def names(self) -> list[str]:
        own = list(KINDS[self.kind].specials)
        return [*own, *(n for n in self.specials if n not in own), *map(SENTINEL.format, range(self.sentinels))]


@dataclass(frozen=True)
class Kind:
    """A kind of tokenizer that can be trained."""

    specials: tuple[str, ...]
    """Special tokens that it always has, by id."""
    train: Callable[[Callable[[], Iterable[str]], Training], Tokenizer]


def train_tokenizer(texts: Callable[[], Iterable[str]], training: Training) -> Tokenizer:
    """Train on `texts()`, which begins anew at each call; memory grows with the number of different words."""
    with guarded("it can't be trained"):
        return KINDS[training.kind].train(texts, training)


def special_ids(made: Tokenizer) -> dict[str, int]:
    """Ids of special tokens by their role, as far as their names tell."""
    found = {role: [made.specials[n] for n in names if n in made.specials] for role, names in ROLES.items()}
    return {role: ids[0] for role, ids in found.items() if ids}


def sentinel_ids(made: Tokenizer) -> tuple[int, ...]:
    """Ids of <extra_id_0>, <extra_id_1> and so on, as many as there are in a row."""
    names = itertools.takewhile(made.specials.__contains__, map(SENTINEL.format, itertools.count()))
    return tuple(made.specials[name] for name in names)


def _wordpiece(texts: Callable[[], Iterable[str]], training: Training) -> Tokenizer:
    """As BERT has it. The library's trainer numbers the pieces within words in an order that differs from run to run.

    So they are all given to it beforehand, as if they were special, and the model is made of what it learned.
    """
    normalizer = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=training.lowercase, lowercase=training.lowercase
    )
    letters: Counter[str] = Counter()
    for text in scraps(texts()):
        letters.update(normalizer.normalize_str(text))
    common = [c for c, _ in sorted(letters.items(), key=lambda item: (-item[1], item[0])) if not c.isspace()]
    alphabet = sorted(common[:ALPHABET])
    inside = [f"##{letter}" for letter in alphabet]
    each = f"{len(alphabet)} characters, at the beginning and inside of words"
    _room(training, len(training.names) + 2 * len(alphabet), each)
    made = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer, made.pre_tokenizer = normalizer, pre_tokenizers.BertPreTokenizer()
    made.train_from_iterator(
        scraps(texts()),
        trainers.WordPieceTrainer(
            vocab_size=training.vocab or 0, show_progress=False, special_tokens=[*training.names, *inside],
            initial_alphabet=alphabet, limit_alphabet=len(alphabet), min_frequency=2,
        ),
    )  # fmt: skip
    model = models.WordPiece(made.get_vocab(with_added_tokens=True), unk_token="[UNK]")
    return _finished(model, training, normalizer, pre_tokenizers.BertPreTokenizer(), decoders.WordPiece())


def _unigram(texts: Callable[[], Iterable[str]], training: Training) -> Tokenizer:
    """As T5 and Llama have it: a space is a sign of the word after it, and a rare character is spelled in bytes."""
    normalizer = normalizers.Sequence([normalizers.Prepend(UNDERLINE), normalizers.Replace(" ", UNDERLINE)])
    lines = pre_tokenizers.Split(Regex(r"[\r\n\t]"), behavior="isolated")
    split = pre_tokenizers.Sequence([pre_tokenizers.Metaspace(prepend_scheme="never", split=True), lines])
    spelled = [f"<0x{byte:02X}>" for byte in range(256)]
    _room(training, len(training.names) + len(spelled) + 2, "every byte")
    made = tokenizers.Tokenizer(models.Unigram())
    made.normalizer, made.pre_tokenizer = normalizer, split
    trainer = trainers.UnigramTrainer(
        vocab_size=(training.vocab or 0) - len(spelled), show_progress=False, special_tokens=training.names,
        unk_token="<unk>",
    )  # fmt: skip
    made.train_from_iterator(scraps(texts()), trainer)
    pieces = made.get_vocab(with_added_tokens=True)
    learned = {piece: score for piece, score in json.loads(made.to_str())["model"]["vocab"] if score}
    lowest = min(learned.values(), default=0.0)
    # The library gives special tokens the best score, and would read one in a text that only spells it.
    ranked = [(piece, learned.get(piece, NEVER)) for piece in sorted(pieces, key=pieces.__getitem__)]
    # A byte costs more than any piece: bytes are for what has no other spelling.
    model = models.Unigram([*ranked, *((byte, lowest - 10.0) for byte in spelled)], pieces["<unk>"], byte_fallback=True)
    return _finished(model, training, normalizer, split, sentencepiece_decoder(strip=True))


def _chars(texts: Callable[[], Iterable[str]], training: Training) -> Tokenizer:
    """One token for each character, by code point; an unseen one is <unk> if there is such a token, else an error."""
    seen = set(itertools.chain.from_iterable(texts()))
    if not seen:
        raise DataError("tokenizer: there are no characters to learn")
    # Characters first, so that ids are those of the simplest list of characters; special tokens after them.
    vocab = {token: i for i, token in enumerate([*sorted(seen), *training.names])}
    unknown = next((name for name in ROLES["unk"] if name in training.names), ROLES["unk"][0])
    split = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    return _finished(models.WordLevel(vocab, unk_token=unknown), training, None, split, decoders.Fuse())


def _finished(model: Any, training: Training, normalizer: Any, split: Any, decoder: Any) -> Tokenizer:
    made = tokenizers.Tokenizer(model)
    if normalizer is not None:
        made.normalizer = normalizer
    made.pre_tokenizer, made.decoder = split, decoder
    made.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in training.names])
    return Tokenizer(made)


def _room(training: Training, least: int, what: str) -> None:
    if (training.vocab or 0) < least:
        needed = f"{what} and {len(training.names)} special tokens need one each"
        raise DataError(f"vocab: {training.vocab} is less than {least}: {needed}")


KINDS: dict[str, Kind] = {
    "bpe": Kind(("<|endoftext|>",), lambda texts, training: train_bpe(texts(), training.vocab or 0, training.names)),
    "wordpiece": Kind(("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"), _wordpiece),
    "unigram": Kind(("<pad>", "</s>", "<unk>"), _unigram),
    "chars": Kind((), _chars),
}
