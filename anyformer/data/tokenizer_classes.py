"""Tokenizer classes of transformers (5.22) that build their steps anew from a vocabulary, whatever a tokenizer.json says."""

from __future__ import annotations

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
    named: Mapping[str, Any] = field(default_factory=dict)
    """Special tokens that it has unless the settings say otherwise."""
    flags: Mapping[str, Mapping[str, bool]] = field(default_factory=dict)
    """Flags of those that the files name without any."""
    around: Callable[[Mapping[str, str]], tuple[str, str]] | None = None
    """The templates that it puts around a text and around a pair of texts, whatever the files say."""
    forgets: bool = False
    """Whether a template of tokenizer.json is dropped; only the flags add something."""
    plain: bool = False
    """Whether special tokens lose their flags, such as `lstrip`."""
    sentinels: bool = False
    """Whether it adds `<extra_id_0>` and so on, as many as `extra_ids` says, where the files list no special tokens."""


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
    inner.decoder = _spaces(strip=blank)


def _spaces(*, strip: bool) -> decoders.Sequence:
    """The decoder of a SentencePiece vocabulary; `strip`: without the space before the first word."""
    first = [decoders.Strip(content=" ", left=1)] if strip else []
    return decoders.Sequence([decoders.Replace(UNDERLINE, " "), decoders.ByteFallback(), decoders.Fuse(), *first])


def _code_llama(inner: tokenizers.Tokenizer, settings: Settings, named: Mapping[str, str]) -> None:
    _llama(inner, dict(settings) | {"legacy": False}, named)
    _set(inner.model, "unk_token", named["unk_token"])
    inner.decoder = _spaces(strip=True)


def _gemma(inner: tokenizers.Tokenizer, settings: Settings, named: Mapping[str, str]) -> None:
    _set_bpe(inner, unk=named["unk_token"], fuse=True, fallback=True)
    inner.normalizer = normalizers.Replace(" ", UNDERLINE)
    inner.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    inner.decoder = _spaces(strip=False)


def _bert(inner: tokenizers.Tokenizer, settings: Settings, named: Mapping[str, str]) -> None:
    _set(inner.model, "unk_token", named["unk_token"])
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


def _big_bird(inner: tokenizers.Tokenizer, settings: Settings, named: Mapping[str, str]) -> None:
    vocab = [(piece, score) for piece, score in json.loads(inner.to_str())["model"]["vocab"]]
    unk = (named["unk_token"], 0.0)
    inner.model = models.Unigram(vocab, vocab.index(unk) if unk in vocab else 100, False)
    strip, blanks = normalizers.Strip(left=False, right=False), normalizers.Replace(Regex(r" {2,}"), UNDERLINE)
    inner.normalizer = normalizers.Sequence([strip, blanks])
    scheme = "always" if settings.get("add_prefix_space", True) else "never"
    inner.pre_tokenizer = pre_tokenizers.Metaspace(UNDERLINE, prepend_scheme=scheme, split=True)
    inner.decoder = decoders.Metaspace(UNDERLINE, prepend_scheme=scheme, split=True)


def _reformer(inner: tokenizers.Tokenizer, settings: Settings, named: Mapping[str, str]) -> None:
    _set_bpe(inner, unk=named["unk_token"], fuse=True)
    kept = _precompiled(inner)
    blanks = normalizers.Replace(Regex(" {2,}"), " ")
    _set(inner, "normalizer", None if kept is None else normalizers.Sequence([kept, blanks]))
    inner.pre_tokenizer = pre_tokenizers.Metaspace(UNDERLINE, prepend_scheme="always")
    inner.decoder = decoders.Metaspace(UNDERLINE, prepend_scheme="always")


def _openai_gpt(inner: tokenizers.Tokenizer, settings: Settings, named: Mapping[str, str]) -> None:
    _set_bpe(inner, unk=named["unk_token"])
    model: Any = inner.model
    model.continuing_subword_prefix, model.end_of_word_suffix = "", "</w>"
    inner.normalizer = normalizers.BertNormalizer(lowercase=True)
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.decoder = decoders.BPEDecoder(suffix="</w>")


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
    "GPT2Tokenizer": _GPT2, "CodeGenTokenizer": _GPT2,
    "GPTNeoXTokenizer": Class(
        steps=_byte_level(normalizer=normalizers.NFC()), model="BPE", named=GPT2_END | {"pad_token": "<|padding|>"},
        files=BPE_FILES, forgets=True,
    ),
    "Qwen2Tokenizer": Class(
        steps=_byte_level(normalizer=normalizers.NFC(), split=QWEN), model="BPE", files=BPE_FILES,
        named=dict.fromkeys(("unk_token", "eos_token", "pad_token"), "<|endoftext|>"), plain=True,
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
    "CodeLlamaTokenizer": Class(
        steps=_code_llama, model="BPE", named=LLAMA | INFILLING,
        around=lambda named: (f"{named['bos_token']} $A", f"{named['bos_token']} $A {named['bos_token']}:1 $B:1"),
    ),
    "GemmaTokenizer": Class(
        steps=_gemma, model="BPE",
        named={
            "unk_token": "<unk>", "bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "mask_token": "<mask>",
        },
    ),
    "T5Tokenizer": Class(
        steps=_unigram(words=False), model="Unigram", around=lambda named: ("$A </s>", "$A </s> $B </s>"), sentinels=True,
        named={"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"},
    ),
    "BigBirdTokenizer": Class(
        steps=_big_bird, model="Unigram", around=_sentence, flags={"mask_token": {"lstrip": True}},
        named={
            "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "sep_token": "[SEP]",
            "mask_token": "[MASK]", "cls_token": "[CLS]",
        },
    ),
    "ReformerTokenizer": Class(steps=_reformer, model="BPE", named={"eos_token": "</s>", "unk_token": "<unk>"}),
    "OpenAIGPTTokenizer": Class(steps=_openai_gpt, model="BPE", files=BPE_FILES, named={"unk_token": "<unk>"}),
    "XLMRobertaTokenizer": Class(
        steps=_unigram(words=True), model="Unigram", named=ROBERTA, around=_roberta("bos_token", "eos_token")
    ),
}  # fmt: skip
"""Classes that do not take a tokenizer.json as it is, and are built here as transformers builds them."""


def _set(owner: Any, name: str, value: Any) -> None:
    """An attribute that the library's types don't know, or not as None."""
    setattr(owner, name, value)


def _set_bpe(inner: tokenizers.Tokenizer, *, unk: str | None, fuse: bool = False, fallback: bool = False) -> None:
    model: Any = inner.model
    model.unk_token, model.fuse_unk, model.byte_fallback, model.ignore_merges = unk, fuse, fallback, False


def _precompiled(inner: tokenizers.Tokenizer) -> Any:
    found: Any = inner.normalizer
    steps = found if isinstance(found, normalizers.Sequence) else [found]
    return next((step for step in steps if isinstance(step, normalizers.Precompiled)), None)
