"""A published folder's tokenizer files, read as transformers' AutoTokenizer (5.22) reads them: which ids a text becomes.

A tokenizer.json says it all, unless the folder names a class (`tokenizer_class`) that builds its steps anew from the
vocabulary: such a class takes them from tokenizer_config.json (`add_prefix_space`, `legacy`, `do_lower_case`, ...), and
some put their own template around a text. `add_bos_token` and `add_eos_token` count where there is no tokenizer.json.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from anyformer.errors import AnyformerError, DataError
from anyformer.families.shards import CONFIG, CONFIG_BYTES, read_json
from anyformer.files import inside

FILE, SETTINGS, NAMES, ADDED = "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"
LARGEST = 256 * 2**20
"""Bytes of the largest tokenizer.json or vocabulary that is read."""
SETTINGS_BYTES = 8 * 2**20
NAMED = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")
"""Names by which settings and templates speak of special tokens."""
BPE_FILES, WORDPIECE_FILE = ("vocab.json", "merges.txt"), "vocab.txt"
SENTENCEPIECE = re.compile(r".*\.(model|spm)|tekken\.json|tiktoken.*")
PLAIN = "TokenizersBackend"
"""The class that takes a tokenizer.json as it is."""
UNDERLINE = "\u2581"
QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


@dataclass(frozen=True, kw_only=True)
class Read:
    """A tokenizer as a folder's files say it is."""

    inner: tokenizers.Tokenizer
    named: dict[str, str]
    """Special tokens by name: bos_token, ..."""
    splits: bool = False
    """Whether special tokens that are spelled out in a text are text (`split_special_tokens`)."""


Settings = Mapping[str, Any]
Steps = Callable[[tokenizers.Tokenizer, Settings, Mapping[str, str]], None]


@dataclass(frozen=True, kw_only=True)
class Class:
    """A tokenizer class of transformers that builds its steps anew."""

    steps: Steps
    """Sets normalizer, pre-tokenizer and decoder."""
    model: str
    """The model of the tokenizers library that it builds: BPE, WordPiece or Unigram."""
    files: tuple[str, ...] = ()
    """Older files from which it can be built without a tokenizer.json."""
    named: Mapping[str, str] = field(default_factory=dict)
    """Special tokens that it has unless the settings say otherwise."""
    around: Callable[[Mapping[str, str]], tuple[str, str]] | None = None
    """The templates that it puts around a text and around a pair of texts, whatever the files say."""
    forgets: bool = False
    """Whether a template of tokenizer.json is dropped; only the flags add something."""


def _byte_level(*, normalizer: Any = None, split: Any = None) -> Steps:
    def build(inner: tokenizers.Tokenizer, settings: Settings, named: Mapping[str, str]) -> None:
        _set_bpe(inner, unk=None)
        blank = bool(settings.get("add_prefix_space") or False)
        spell: Any = pre_tokenizers.ByteLevel(add_prefix_space=blank, use_regex=not isinstance(split, str))
        before = pre_tokenizers.Split(Regex(split), "isolated") if isinstance(split, str) else split
        _set(inner, "normalizer", normalizer)
        inner.pre_tokenizer = spell if before is None else pre_tokenizers.Sequence([before, spell])
        inner.decoder = decoders.ByteLevel()

    return build


def _llama(inner: tokenizers.Tokenizer, settings: Settings, named: Mapping[str, str]) -> None:
    _set_bpe(inner, unk=None, fuse=True, fallback=True)
    given = settings.get("add_prefix_space")
    blank = given is None or bool(given)
    scheme = ("always" if settings.get("legacy") else "first") if blank else "never"
    _set(inner, "normalizer", None)
    inner.pre_tokenizer = pre_tokenizers.Metaspace(UNDERLINE, prepend_scheme=scheme, split=False)
    strip = [decoders.Strip(content=" ", left=1)] if blank else []
    inner.decoder = decoders.Sequence(
        [decoders.Replace(UNDERLINE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )


def _code_llama(inner: tokenizers.Tokenizer, settings: Settings, named: Mapping[str, str]) -> None:
    _llama(inner, dict(settings) | {"legacy": False}, named)
    model: Any = inner.model
    model.unk_token = named["unk_token"]
    inner.decoder = decoders.Sequence(
        [
            decoders.Replace(UNDERLINE, " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(content=" ", left=1),
        ]
    )


def _gemma(inner: tokenizers.Tokenizer, settings: Settings, named: Mapping[str, str]) -> None:
    _set_bpe(inner, unk=named["unk_token"], fuse=True, fallback=True)
    inner.normalizer = normalizers.Replace(" ", UNDERLINE)
    inner.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    inner.decoder = decoders.Sequence([decoders.Replace(UNDERLINE, " "), decoders.ByteFallback(), decoders.Fuse()])


def _bert(inner: tokenizers.Tokenizer, settings: Settings, named: Mapping[str, str]) -> None:
    model: Any = inner.model
    model.unk_token = named["unk_token"]
    inner.normalizer = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=bool(settings.get("tokenize_chinese_chars", True)),
        strip_accents=settings.get("strip_accents"), lowercase=bool(settings.get("do_lower_case", True)),
    )  # fmt: skip
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.decoder = decoders.WordPiece(prefix="##")


def _unigram(*, words: bool) -> Steps:
    def build(inner: tokenizers.Tokenizer, settings: Settings, named: Mapping[str, str]) -> None:
        # A precompiled map of characters, which came with the vocabulary, is kept; nothing else of the normalizer is.
        _set(inner, "normalizer", _precompiled(inner))
        blank = not words or bool(settings.get("add_prefix_space", True))
        scheme = "always" if blank else "never"
        inner.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(UNDERLINE, prepend_scheme=scheme)]
        )
        inner.decoder = decoders.Metaspace(UNDERLINE, prepend_scheme=scheme)

    return build


GPT2_END: dict[str, str] = dict.fromkeys(("unk_token", "bos_token", "eos_token"), "<|endoftext|>")
ROBERTA = {
    "bos_token": "<s>", "eos_token": "</s>", "sep_token": "</s>", "cls_token": "<s>", "unk_token": "<unk>",
    "pad_token": "<pad>", "mask_token": "<mask>",
}  # fmt: skip
LLAMA = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}


def _sentence(named: Mapping[str, str]) -> tuple[str, str]:
    cls, sep = named["cls_token"], named["sep_token"]
    return f"{cls}:0 $A:0 {sep}:0", f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1"


def _roberta(first: str, last: str) -> Callable[[Mapping[str, str]], tuple[str, str]]:
    def around(named: Mapping[str, str]) -> tuple[str, str]:
        one = f"{named[first]} $A {named[last]}"
        return one, f"{one} {named[last]} $B {named[last]}"

    return around


_GPT2 = Class(steps=_byte_level(), model="BPE", files=BPE_FILES, named=GPT2_END)
_ROBERTA = Class(
    steps=_byte_level(), model="BPE", files=BPE_FILES, named=ROBERTA, around=_roberta("cls_token", "sep_token")
)
_BERT = Class(
    steps=_bert, model="WordPiece", files=(WORDPIECE_FILE,), around=_sentence,
    named={"unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]", "mask_token": "[MASK]"},
)  # fmt: skip
CLASSES: dict[str, Class] = {
    "GPT2Tokenizer": _GPT2,
    "GPTNeoXTokenizer": Class(
        steps=_byte_level(normalizer=normalizers.NFC()), model="BPE", named=GPT2_END | {"pad_token": "<|padding|>"},
        files=BPE_FILES, forgets=True,
    ),
    "Qwen2Tokenizer": Class(
        steps=_byte_level(normalizer=normalizers.NFC(), split=QWEN), model="BPE", files=BPE_FILES,
        named=dict.fromkeys(("unk_token", "eos_token", "pad_token"), "<|endoftext|>"),
    ),
    "CohereTokenizer": Class(
        steps=_byte_level(normalizer=normalizers.NFC(), split=pre_tokenizers.Digits(individual_digits=True)), model="BPE",
        named={
            "unk_token": "<UNK>", "bos_token": "<BOS_TOKEN>", "eos_token": "<|END_OF_TURN_TOKEN|>", "pad_token": "<PAD>",
            "cls_token": "<CLS>", "sep_token": "<SEP>", "mask_token": "<MASK_TOKEN>",
        },
    ),
    "RobertaTokenizer": _ROBERTA, "BartTokenizer": _ROBERTA, "LEDTokenizer": _ROBERTA, "LongformerTokenizer": _ROBERTA,
    "BertTokenizer": _BERT, "DistilBertTokenizer": _BERT, "ElectraTokenizer": _BERT,
    "LlamaTokenizer": Class(steps=_llama, model="BPE", named=LLAMA),
    "CodeLlamaTokenizer": Class(steps=_code_llama, model="BPE", named=LLAMA, around=lambda named: (f"{named['bos_token']} $A", f"{named['bos_token']} $A {named['bos_token']}:1 $B:1"),
    ),
    "GemmaTokenizer": Class(
        steps=_gemma, model="BPE",
        named={
            "unk_token": "<unk>", "bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "mask_token": "<mask>",
        },
    ),
    "T5Tokenizer": Class(
        steps=_unigram(words=False), model="Unigram", around=lambda named: ("$A </s>", "$A </s> $B </s>"),
        named={"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"},
    ),
    "XLMRobertaTokenizer": Class(
        steps=_unigram(words=True), model="Unigram", named=ROBERTA, around=_roberta("bos_token", "eos_token")
    ),
}  # fmt: skip
"""Classes that do not take a tokenizer.json as it is. Any other class that a folder names does."""

REGISTERED = {
    "bert": "BertTokenizer", "cohere": "CohereTokenizer", "cohere2": "CohereTokenizer", "gemma": "GemmaTokenizer",
    "gemma2": "GemmaTokenizer", "gemma3_text": "GemmaTokenizer", "glm": PLAIN, "glm4": PLAIN, "gpt2": "GPT2Tokenizer",
    "gpt_bigcode": PLAIN, "gpt_neo": "GPT2Tokenizer", "gpt_neox": "GPTNeoXTokenizer", "gptj": "GPT2Tokenizer",
    "granite": PLAIN, "led": "LEDTokenizer", "longformer": "RobertaTokenizer", "mistral": PLAIN, "modernbert": PLAIN,
    "modernbert-decoder": PLAIN, "mpt": "GPTNeoXTokenizer", "mt5": "T5Tokenizer", "nemotron": PLAIN,
    "olmo": "GPTNeoXTokenizer", "olmo2": PLAIN, "olmo3": PLAIN, "opt": "GPT2Tokenizer", "phi": "GPT2Tokenizer", "phi3": PLAIN,
    "qwen2": "Qwen2Tokenizer", "qwen3": "Qwen2Tokenizer", "roberta": "RobertaTokenizer", "stablelm": PLAIN,
    "starcoder2": "GPT2Tokenizer", "t5": "T5Tokenizer", "umt5": PLAIN,
}  # fmt: skip
"""The class for a config's model_type where the folder names none. Where one is registered as the plain class, what a
folder names does not count."""
MISNAMED = ("modernbert", "modernbert-decoder", "nemotron", "phi3", "qwen2")
"""Types of model whose folders often name a wrong class, so that the registered one is taken."""


def is_published(folder: Path) -> bool:
    """Whether a folder's files say what a text becomes; otherwise it is a run of ours, and its spec does."""
    return any((folder / name).is_file() for name in (CONFIG, SETTINGS))


def read_published(folder: Path) -> Read:
    """The tokenizer of a published folder."""
    settings, config = _table(folder, SETTINGS, SETTINGS_BYTES), _table(folder, CONFIG, CONFIG_BYTES)
    whole = (folder / FILE).is_file()
    text = read_file(folder / FILE) if whole else ""
    declared = next(
        (n for n in (settings.get("tokenizer_class"), config.get("tokenizer_class")) if isinstance(n, str)), ""
    )
    name = class_name(declared, config.get("model_type"), byte_level='"ByteLevel"' in text)
    known = CLASSES.get(name)
    inner = parsed(text, folder / FILE) if whole else _from_older(folder, name, known)
    # A class that expects another model can't be built from this vocabulary; the file stands as it is.
    rebuilt = known if known is not None and type(inner.model).__name__ == known.model else None
    names = _names(settings, folder)
    named = dict(rebuilt.named if rebuilt is not None else {})
    for key in NAMED:
        if key in names:
            named.pop(key, None)
            if (spelled := _content(names[key])) is not None:
                named[key] = spelled
    with guarded(f"{folder}: the steps of {name} can't be set"):
        if rebuilt is not None:
            rebuilt.steps(inner, settings, dict(rebuilt.named) | named)
        _add_tokens(inner, settings, folder, named)
        if rebuilt is not None and rebuilt.around is not None:
            _set_around(inner, *rebuilt.around(dict(rebuilt.named) | named))
        elif not whole or (rebuilt is not None and rebuilt.forgets):
            _set_around(inner, *_flagged({} if whole else settings, named))
    return Read(inner=inner, named=named, splits=bool(settings.get("split_special_tokens") or False))


def _flagged(settings: Settings, named: Mapping[str, str]) -> tuple[str, str]:
    """The templates that `add_bos_token` and `add_eos_token` ask for."""
    bos = f"{named['bos_token']}:0 " if settings.get("add_bos_token") and "bos_token" in named else ""
    eos = f" {named['eos_token']}:0" if settings.get("add_eos_token") and "eos_token" in named else ""
    return f"{bos}$A:0{eos}", f"{bos}$A:0{eos} {bos.replace(':0 ', ':1 ')}$B:1{eos.replace(':0', ':1')}"


def class_name(declared: str, model_type: Any, *, byte_level: bool) -> str:
    """The class that reads a folder, of the one that it names and the one that is registered for its type of model."""
    own = declared.removesuffix("Fast")
    registered = REGISTERED.get(model_type, "") if isinstance(model_type, str) else ""
    if own == "LlamaTokenizer" and byte_level:
        return PLAIN
    if own and registered and own != registered:
        chosen = registered if model_type in MISNAMED else own
        return chosen if registered != PLAIN and chosen in CLASSES else PLAIN
    return own or registered or PLAIN


def parsed(text: str, file: Path) -> tokenizers.Tokenizer:
    """What a tokenizer.json holds."""
    with guarded(f"{file}: is damaged, or of a kind that the tokenizers library does not know"):
        return tokenizers.Tokenizer.from_str(text)


def read_file(file: Path) -> str:
    """The text of a file of a tokenizer."""
    try:
        size = file.stat().st_size
        if size > LARGEST:
            raise DataError(f"{file}: has {size:,} bytes; a tokenizer of more than {LARGEST:,} is not read")
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise DataError(f"{file}: can't be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{file}: is damaged: byte {error.start} is not UTF-8") from error


def _from_older(folder: Path, name: str, known: Class | None) -> tokenizers.Tokenizer:
    """A tokenizer from the files that came before tokenizer.json, where its class can be built from them."""
    if known is None or not known.files or not all((folder / each).is_file() for each in known.files):
        raise DataError(missing(folder, name))
    for each in known.files:
        inside(folder / each, folder)
        read_file(folder / each)
    paths = [str(folder / each) for each in known.files]
    with guarded(f"{folder}: {' and '.join(known.files)} can't be read"):
        if known.model == "WordPiece":
            return tokenizers.Tokenizer(models.WordPiece(models.WordPiece.read_file(paths[0])))
        vocab, merges = models.BPE.read_file(*paths)
        return tokenizers.Tokenizer(models.BPE(vocab, merges))


def missing(folder: Path, name: str = "") -> str:
    """What to do about a folder without a tokenizer.json."""
    there = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    older = [n for n in there if n in (*BPE_FILES, WORDPIECE_FILE) or SENTENCEPIECE.fullmatch(n)]
    if not older:
        return f"{folder}: there is no {FILE} in it; give a {FILE} or a directory that holds one"
    built = " or ".join(
        sorted(each for each, known in CLASSES.items() if known.files and set(known.files) <= set(there))
    )
    why = f"its class is {name or 'not named'}" + (f", and these files are read for {built}" if built else "")
    return (
        f"{folder}: there is no {FILE} in it, only {', '.join(older)}; {why}. Write one with transformers: "
        f"AutoTokenizer.from_pretrained({str(folder)!r}).save_pretrained({str(folder)!r})"
    )


def _names(settings: Settings, folder: Path) -> dict[str, Any]:
    """The special tokens that the settings name; an older file adds to them where tokens are not listed."""
    older = {} if "added_tokens_decoder" in settings else _table(folder, NAMES, SETTINGS_BYTES)
    return dict(settings) | older


def _content(value: Any) -> str | None:
    found = value.get("content") if isinstance(value, dict) else value
    return found if isinstance(found, str) else None


def special_tokens(settings: Settings) -> dict[str, str]:
    """Special tokens by name, from a tokenizer_config.json."""
    return {name: found for name in NAMED if (found := _content(settings.get(name))) is not None}


def _add_tokens(inner: tokenizers.Tokenizer, settings: Settings, folder: Path, named: Mapping[str, str]) -> None:
    """Tokens that the settings list, and the named special ones of the vocabulary, are never split."""
    listed = settings.get("added_tokens_decoder")
    flags = ("lstrip", "rstrip", "single_word", "normalized", "special")
    more: list[AddedToken] = []
    if isinstance(listed, dict):
        for _, token in sorted(listed.items(), key=lambda item: int(item[0])):
            if (spelled := _content(token)) is not None:
                kept = {flag: bool(token[flag]) for flag in flags if isinstance(token, dict) and flag in token}
                more.append(AddedToken(spelled, **kept))
    else:
        older = _table(folder, ADDED, SETTINGS_BYTES)
        for spelled, _ in sorted(older.items(), key=lambda item: item[1]):
            is_special = spelled in named.values()
            more.append(AddedToken(spelled, normalized=not is_special, special=is_special))
    if more:
        inner.add_tokens(more)
    there = {token.content for token in inner.get_added_tokens_decoder().values()}
    # One that has no id is no token of the model.
    new = [n for n in dict.fromkeys(named.values()) if n not in there and inner.token_to_id(n) is not None]
    if new:
        inner.add_tokens([AddedToken(name, special=True, normalized=False) for name in new])


def _set_around(inner: tokenizers.Tokenizer, single: str, pair: str) -> None:
    """A template of special tokens around each text."""
    names = dict.fromkeys(re.sub(r":[01]$", "", each) for each in single.split() if not each.startswith("$"))
    ids = {name: inner.token_to_id(name) for name in names}
    lost = [name for name, found in ids.items() if found is None]
    if lost:
        raise DataError(f"the vocabulary has no {', '.join(map(repr, lost))}, which stands around each text")
    inner.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=list(ids.items()))


def _set(inner: Any, step: str, value: Any) -> None:
    """A step, which may be none."""
    setattr(inner, step, value)


def _set_bpe(inner: tokenizers.Tokenizer, *, unk: str | None, fuse: bool = False, fallback: bool = False) -> None:
    model: Any = inner.model
    model.unk_token, model.fuse_unk, model.byte_fallback, model.ignore_merges = unk, fuse, fallback, False


def _precompiled(inner: tokenizers.Tokenizer) -> Any:
    found: Any = inner.normalizer
    steps = [found] if isinstance(found, normalizers.Precompiled) else []
    if isinstance(found, normalizers.Sequence):
        some: Any = found
        steps = [step for step in some if isinstance(step, normalizers.Precompiled)]
    return steps[0] if steps else None


def _table(folder: Path, name: str, most: int) -> dict[str, Any]:
    return read_json(folder / name, most) if (folder / name).is_file() else {}


@contextmanager
def guarded(what: str) -> Iterator[None]:
    """Errors of the library as ours. Its panics are no `Exception`, and Ctrl-C must still get through."""
    try:
        yield
    except (AnyformerError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        first: Any = str(error).strip().splitlines() or [type(error).__name__]
        raise DataError(f"tokenizer: {what}: {first[0]}") from error
