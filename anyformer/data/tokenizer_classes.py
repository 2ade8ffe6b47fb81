"""Tokenizer classes of transformers (5.22) that build their steps anew from a vocabulary, whatever a tokenizer.json says."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

BPE_FILES, WORDPIECE_FILE = ("vocab.json", "merges.txt"), "vocab.txt"
UNDERLINE = "\u2581"
QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"

Settings = Mapping[str, Any]
"""What a tokenizer_config.json or another JSON file of a published folder holds."""
Steps = Callable[[tokenizers.Tokenizer, Settings, Mapping[str, str]], tuple[Any, Any, Any]]
"""Sets the model's options; answers normalizer, pre-tokenizer and decoder."""


@dataclass(frozen=True, kw_only=True)
class Class:
    """A tokenizer class of transformers that builds its steps anew."""

    steps: Steps | None = None
    """None: those of tokenizer.json."""
    model: str = "BPE"
    """The model of the tokenizers library that it builds: BPE, WordPiece or Unigram."""
    files: tuple[str, ...] = ()
    """Older files from which it can be built without a tokenizer.json."""
    named: Mapping[str, str] = field(default_factory=dict)
    """Special tokens that it has unless the settings say otherwise."""
    flags: Mapping[str, Mapping[str, bool]] = field(default_factory=dict)
    """Flags of those that the files name without any."""
    around: tuple[str, str] = ("", "")
    """The templates that it puts around a text and around a pair of texts, whatever the files say; tokens by name.

    `src_lang` is that of the language, where a text has one.
    """
    older: tuple[str, str] = ("", "")
    """The same where the settings ask for `legacy_behaviour`."""
    keeps: bool = False
    """Whether a template of tokenizer.json stands, and `around` is only for a file without one."""
    forgets: bool = False
    """Whether a template of tokenizer.json is dropped; only the flags add something."""
    plain: bool = False
    """Whether special tokens lose their flags, such as `lstrip`."""
    sentinels: bool = False
    """Whether it adds `<extra_id_0>` and so on, as many as `extra_ids` says, where the files list no special tokens."""
    extras: tuple[str, ...] = ()
    """Special tokens without a name that it has where the files list none."""
    joins: bool = False
    """Whether `extras` also join those that special_tokens_map.json lists as `additional_special_tokens`."""


def _byte_level(*, normalizer: Any = None, split: Any = None) -> Steps:
    def build(inner: tokenizers.Tokenizer, settings: Settings, named: Mapping[str, str]) -> tuple[Any, Any, Any]:
        _set_bpe(inner, unk=None)
        blank = bool(settings.get("add_prefix_space") or False)
        spell = pre_tokenizers.ByteLevel(add_prefix_space=blank, use_regex=not isinstance(split, str))
        before = pre_tokenizers.Split(Regex(split), "isolated") if isinstance(split, str) else split
        words = spell if before is None else pre_tokenizers.Sequence([before, spell])
        return normalizer, words, decoders.ByteLevel()

    return build


def _llama(inner: tokenizers.Tokenizer, settings: Settings, named: Mapping[str, str]) -> tuple[Any, Any, Any]:
    _set_bpe(inner, unk=None, fuse=True, fallback=True)
    given = settings.get("add_prefix_space")
    blank = given is None or bool(given)
    scheme = ("always" if settings.get("legacy") else "first") if blank else "never"
    words = pre_tokenizers.Metaspace(UNDERLINE, prepend_scheme=scheme, split=False)
    return None, words, sentencepiece_decoder(strip=blank)


def sentencepiece_decoder(*, strip: bool) -> decoders.Sequence:
    """The decoder of a SentencePiece vocabulary; `strip`: without the space before the first word."""
    first = [decoders.Strip(content=" ", left=1)] if strip else []
    return decoders.Sequence([decoders.Replace(UNDERLINE, " "), decoders.ByteFallback(), decoders.Fuse(), *first])


def _code_llama(inner: tokenizers.Tokenizer, settings: Settings, named: Mapping[str, str]) -> tuple[Any, Any, Any]:
    _, words, _ = _llama(inner, dict(settings) | {"legacy": False}, named)
    _set_bpe(inner, unk=named["unk_token"], fuse=True, fallback=True)
    return None, words, sentencepiece_decoder(strip=True)


def _gemma(inner: tokenizers.Tokenizer, settings: Settings, named: Mapping[str, str]) -> tuple[Any, Any, Any]:
    _set_bpe(inner, unk=named["unk_token"], fuse=True, fallback=True)
    words = pre_tokenizers.Split(" ", "merged_with_previous")
    return normalizers.Replace(" ", UNDERLINE), words, sentencepiece_decoder(strip=False)


def _bert(inner: tokenizers.Tokenizer, settings: Settings, named: Mapping[str, str]) -> tuple[Any, Any, Any]:
    model: Any = inner.model
    model.unk_token = named["unk_token"]
    normalizer = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=bool(settings.get("tokenize_chinese_chars", True)),
        strip_accents=settings.get("strip_accents"), lowercase=bool(settings.get("do_lower_case", True)),
    )  # fmt: skip
    return normalizer, pre_tokenizers.BertPreTokenizer(), decoders.WordPiece(prefix="##")


def _pieces(inner: tokenizers.Tokenizer) -> list[tuple[str, float]]:
    """The vocabulary of a Unigram model."""
    return [(piece, score) for piece, score in json.loads(inner.to_str())["model"]["vocab"]]


def _set_unk(inner: tokenizers.Tokenizer, unk: int, vocab: list[tuple[str, float]] | None = None) -> None:
    """Builds the Unigram model anew, since the id of a piece that is not known can't be changed."""
    inner.model = models.Unigram(_pieces(inner) if vocab is None else vocab, unk, False)


def _unigram(*, words: bool) -> Steps:
    def build(inner: tokenizers.Tokenizer, settings: Settings, named: Mapping[str, str]) -> tuple[Any, Any, Any]:
        split, decoder = _metaspace(blank=not words or bool(settings.get("add_prefix_space", True)))
        # A precompiled map of characters, which came with the vocabulary, is kept; nothing else of the normalizer is.
        return _precompiled(inner), pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), split]), decoder

    return build


def _metaspace(*, blank: bool, otherwise: str = "never") -> tuple[Any, Any]:
    """Pre-tokenizer and decoder: a space is a sign of the word after it; `blank`: so is the beginning of a text."""
    scheme = "always" if blank else otherwise
    steps = (pre_tokenizers.Metaspace, decoders.Metaspace)
    split, decoder = (step(UNDERLINE, prepend_scheme=scheme, split=True) for step in steps)
    return split, decoder


def _big_bird(inner: tokenizers.Tokenizer, settings: Settings, named: Mapping[str, str]) -> tuple[Any, Any, Any]:
    _find_unk(inner, named["unk_token"], otherwise=100)
    strip, blanks = normalizers.Strip(left=False, right=False), normalizers.Replace(Regex(r" {2,}"), UNDERLINE)
    blank = bool(settings.get("add_prefix_space", True))
    return normalizers.Sequence([strip, blanks]), *_metaspace(blank=blank)


def _find_unk(inner: tokenizers.Tokenizer, unk: str, *, otherwise: int) -> None:
    """The id of unknown pieces is that of `unk`, if its score is 0."""
    vocab = _pieces(inner)
    _set_unk(inner, vocab.index((unk, 0.0)) if (unk, 0.0) in vocab else otherwise, vocab)


def _camembert(inner: tokenizers.Tokenizer, settings: Settings, named: Mapping[str, str]) -> tuple[Any, Any, Any]:
    vocab = _pieces(inner)
    _set_unk(inner, next((at for at, (piece, _) in enumerate(vocab) if piece == named["unk_token"]), 0), vocab)
    return _unigram(words=True)(inner, settings, named)


def _albert(inner: tokenizers.Tokenizer, settings: Settings, named: Mapping[str, str]) -> tuple[Any, Any, Any]:
    _set_unk(inner, 1)
    accents = [] if settings.get("keep_accents") else [normalizers.NFKD(), normalizers.StripAccents()]
    lower = [normalizers.Lowercase()] if settings.get("do_lower_case", True) else []
    kept, words, decoder = _unigram(words=True)(inner, settings, named)
    quotes = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    return normalizers.Sequence([*quotes, *accents, *lower, *([] if kept is None else [kept])]), words, decoder


def _deberta_v2(inner: tokenizers.Tokenizer, settings: Settings, named: Mapping[str, str]) -> tuple[Any, Any, Any]:
    _find_unk(inner, named["unk_token"], otherwise=settings.get("unk_id", 1))
    lower = [normalizers.Lowercase()] if settings.get("do_lower_case") else []
    blanks = normalizers.Replace(Regex(r"\s{2,}|[\n\r\t]"), " ")
    normalizer = normalizers.Sequence([*lower, blanks, normalizers.NFC(), normalizers.Strip(left=False, right=True)])
    marks = [pre_tokenizers.Punctuation("isolated")] if settings.get("split_by_punct") else []
    split, decoder = _metaspace(blank=bool(settings.get("add_prefix_space", True)), otherwise="first")
    return normalizer, pre_tokenizers.Sequence([*marks, split]), decoder


def _xglm(inner: tokenizers.Tokenizer, settings: Settings, named: Mapping[str, str]) -> tuple[Any, Any, Any]:
    _set_unk(inner, 3)
    normalizer, _, _ = _spaced(lines=False)(inner, settings, named)
    return normalizer, *_metaspace(blank=bool(settings.get("add_prefix_space", True)))


def _reformer(inner: tokenizers.Tokenizer, settings: Settings, named: Mapping[str, str]) -> tuple[Any, Any, Any]:
    _set_bpe(inner, unk=named["unk_token"], fuse=True)
    kept, blanks = _precompiled(inner), normalizers.Replace(Regex(" {2,}"), " ")
    return None if kept is None else normalizers.Sequence([kept, blanks]), *_metaspace(blank=True)


def _spaced(*, lines: bool) -> Steps:
    """Words with the blanks before them, after a precompiled map of characters; `lines`: without one, a new line is a blank."""

    def build(inner: tokenizers.Tokenizer, settings: Settings, named: Mapping[str, str]) -> tuple[Any, Any, Any]:
        kept, blanks = _precompiled(inner), normalizers.Replace(Regex(r" {2,}"), " ")
        first = [kept] if kept is not None else [normalizers.Replace(Regex(r"\n"), " ")] if lines else []
        return normalizers.Sequence([*first, blanks]), *_metaspace(blank=True)

    return build


def _mbart(inner: tokenizers.Tokenizer, settings: Settings, named: Mapping[str, str]) -> tuple[Any, Any, Any]:
    split, decoder = _metaspace(blank=True)
    return None, pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), split]), decoder


def _openai_gpt(inner: tokenizers.Tokenizer, settings: Settings, named: Mapping[str, str]) -> tuple[Any, Any, Any]:
    model = _set_bpe(inner, unk=named["unk_token"])
    model.continuing_subword_prefix, model.end_of_word_suffix = "", "</w>"
    normalizer = normalizers.BertNormalizer(lowercase=True)
    return normalizer, pre_tokenizers.BertPreTokenizer(), decoders.BPEDecoder(suffix="</w>")


def _set_bpe(inner: tokenizers.Tokenizer, *, unk: str | None, fuse: bool = False, fallback: bool = False) -> Any:
    model: Any = inner.model
    model.unk_token, model.fuse_unk, model.byte_fallback, model.ignore_merges = unk, fuse, fallback, False
    return model


def _precompiled(inner: tokenizers.Tokenizer) -> Any:
    found: Any = inner.normalizer
    steps = found if isinstance(found, normalizers.Sequence) else [found]
    return next((step for step in steps if isinstance(step, normalizers.Precompiled)), None)


GPT2_END: dict[str, str] = dict.fromkeys(("unk_token", "bos_token", "eos_token"), "<|endoftext|>")
ROBERTA = {
    "bos_token": "<s>", "eos_token": "</s>", "sep_token": "</s>", "cls_token": "<s>", "unk_token": "<unk>",
    "pad_token": "<pad>", "mask_token": "<mask>",
}  # fmt: skip
LLAMA = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
INFILLING = {
    "prefix_token": "\u2581<PRE>", "middle_token": "\u2581<MID>", "suffix_token": "\u2581<SUF>",
    "eot_token": "\u2581<EOT>", "fill_token": "<FILL_ME>",
}  # fmt: skip
SENTENCE = ("{cls_token}:0 $A:0 {sep_token}:0", "{cls_token}:0 $A:0 {sep_token}:0 $B:1 {sep_token}:1")

_GPT2 = Class(steps=_byte_level(), files=BPE_FILES, named=GPT2_END)
PAIRED = ("{cls_token} $A {sep_token}", "{cls_token} $A {sep_token} {sep_token} $B {sep_token}")
_ROBERTA = Class(steps=_byte_level(), files=BPE_FILES, named=ROBERTA, around=PAIRED)
ENDED = ("{bos_token} $A {eos_token}", "{bos_token} $A {eos_token} {eos_token} $B {eos_token}")
BERT = {"unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]", "mask_token": "[MASK]"}
CLS_SEP = BERT | {"bos_token": "[CLS]", "eos_token": "[SEP]"}
_BERT = Class(steps=_bert, model="WordPiece", files=(WORDPIECE_FILE,), around=SENTENCE, named=BERT)
BEFORE = ("{src_lang} $A {eos_token}", "{src_lang} $A $B {eos_token}")
AFTER = ("$A {eos_token} {src_lang}", "$A $B {eos_token} {src_lang}")
"""The token of a text's language, before it or at its end."""
MASK = {"mask_token": {"lstrip": True}}
CLASSES: dict[str, Class] = {
    "MBartTokenizer": Class(
        steps=_mbart, model="Unigram", named=ROBERTA | {"src_lang": "en_XX"}, around=AFTER, flags=MASK
    ),
    "MBart50Tokenizer": Class(
        steps=_spaced(lines=False), model="Unigram", named=ROBERTA | {"src_lang": "en_XX"}, around=BEFORE, flags=MASK
    ),
    "NllbTokenizer": Class(
        steps=_reformer, named=ROBERTA | {"src_lang": "eng_Latn"}, around=BEFORE, older=AFTER, flags=MASK
    ),
    "PegasusTokenizer": Class(
        steps=_spaced(lines=True), model="Unigram", around=("$A {eos_token}", "$A $B {eos_token}"),
        named={
            "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>", "mask_token": "<mask_2>",
        },
    ),
    "GPT2Tokenizer": _GPT2, "CodeGenTokenizer": _GPT2,
    "GPTNeoXTokenizer": Class(
        steps=_byte_level(normalizer=normalizers.NFC()), named=GPT2_END | {"pad_token": "<|padding|>"}, files=BPE_FILES,
        forgets=True,
    ),
    "Qwen2Tokenizer": Class(
        steps=_byte_level(normalizer=normalizers.NFC(), split=QWEN), files=BPE_FILES, plain=True,
        named=dict.fromkeys(("unk_token", "eos_token", "pad_token"), "<|endoftext|>"),
    ),
    "CohereTokenizer": Class(
        steps=_byte_level(normalizer=normalizers.NFC(), split=pre_tokenizers.Digits(individual_digits=True)),
        named={
            "unk_token": "<UNK>", "bos_token": "<BOS_TOKEN>", "eos_token": "<|END_OF_TURN_TOKEN|>", "pad_token": "<PAD>",
            "cls_token": "<CLS>", "sep_token": "<SEP>", "mask_token": "<MASK_TOKEN>",
        },
    ),
    "RobertaTokenizer": _ROBERTA, "BartTokenizer": _ROBERTA, "LEDTokenizer": _ROBERTA, "LongformerTokenizer": _ROBERTA,
    "MvpTokenizer": _ROBERTA,
    "BertTokenizer": _BERT, "DistilBertTokenizer": _BERT, "ElectraTokenizer": _BERT,
    "MPNetTokenizer": Class(
        steps=_bert, model="WordPiece", files=(WORDPIECE_FILE,), around=PAIRED, flags=MASK,
        named=ROBERTA | {"unk_token": "[UNK]"},
    ),
    "LlamaTokenizer": Class(steps=_llama, named=LLAMA),
    "CodeLlamaTokenizer": Class(
        steps=_code_llama, named=LLAMA | INFILLING, around=("{bos_token} $A", "{bos_token} $A {bos_token}:1 $B:1")
    ),
    "GemmaTokenizer": Class(
        steps=_gemma,
        named={
            "unk_token": "<unk>", "bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "mask_token": "<mask>",
        },
    ),
    "T5Tokenizer": Class(
        steps=_unigram(words=False), model="Unigram", around=("$A </s>", "$A </s> $B </s>"), sentinels=True,
        named={"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"},
    ),
    "BigBirdTokenizer": Class(
        steps=_big_bird, model="Unigram", around=SENTENCE, flags={"mask_token": {"lstrip": True}},
        named={
            "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "sep_token": "[SEP]",
            "mask_token": "[MASK]", "cls_token": "[CLS]",
        },
    ),
    "ReformerTokenizer": Class(steps=_reformer, named={"eos_token": "</s>", "unk_token": "<unk>"}),
    "OpenAIGPTTokenizer": Class(steps=_openai_gpt, files=BPE_FILES, named={"unk_token": "<unk>"}),
    "XLMRobertaTokenizer": Class(steps=_unigram(words=True), model="Unigram", named=ROBERTA, around=ENDED),
    "CamembertTokenizer": Class(
        steps=_camembert, model="Unigram", named=ROBERTA, around=ENDED, flags=MASK,
        extras=("<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED"),
    ),
    "AlbertTokenizer": Class(
        steps=_albert, model="Unigram", named=CLS_SEP | {"unk_token": "<unk>", "pad_token": "<pad>"}, around=SENTENCE,
        keeps=True,
    ),
    "DebertaV2Tokenizer": Class(steps=_deberta_v2, model="Unigram", named=CLS_SEP, around=SENTENCE),
    "XGLMTokenizer": Class(
        steps=_xglm, model="Unigram", around=("{eos_token} $A", "{eos_token} $A {eos_token} {eos_token} $B"),
        named={name: token for name, token in ROBERTA.items() if name != "mask_token"},
        extras=tuple(f"<madeupword{i}>" for i in range(7)), joins=True,
    ),
}  # fmt: skip
"""Classes that do not take a tokenizer.json as it is, and are built here as transformers builds them."""
