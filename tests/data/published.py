"""Small published folders: tokenizer files of every kind, as old and new versions of public libraries write them."""

import json
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

CORPUS = [
    "Once upon a time there was a little cat. The cat sat on the mat, and the dog sat on the cat!",
    "In 1984 there were 12 cats and 345 dogs;  they didn't see 6,789 birds.",
    "def f(self):\n    return self.x + 1\n\n\n    # na\u00efve caf\u00e9, \u00c9cole \u6f22\u5b57",
    "The quick brown fox jumps over the lazy dog, and the lazy dog sleeps on.",
] * 4
TEXTS = [
    "Once upon a time", "the cat sat on the mat.", " a leading blank", "  two  blanks  inside ", "", " ", "\n", "\n\n x",
    "In 1984, 12  345 cats\t6", "NA\u00cfVE Caf\u00e9 e\u0301cole", "\u6f22\u5b57 \u4e2d", "emoji \U0001f600 here", "don't I'LL they're",
    "    return self.x\n\n\n  y", "a<s> b </s>c", "x<|endoftext|>y <|endoftext|>", "[CLS] a [SEP]b [MASK] c", "the <mask> cat<pad>",
    "<unk>[UNK] <bos>a", "tail blank ", "``quoted'' words",
]  # fmt: skip
"""Blanks, digits, accents, other scripts, and special tokens that are spelled out."""
NAMES = {
    "gpt2": ("<|endoftext|>",), "llama": ("<unk>", "<s>", "</s>"), "gemma": ("<pad>", "<eos>", "<bos>", "<unk>", "<mask>"),
    "bert": ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"), "roberta": ("<s>", "<pad>", "</s>", "<unk>", "<mask>"),
    "t5": ("<pad>", "</s>", "<unk>"), "xlmr": ("<s>", "<pad>", "</s>", "<unk>", "<mask>"),
    "cohere": ("<PAD>", "<UNK>", "<CLS>", "<SEP>", "<MASK_TOKEN>", "<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>"),
    "bigbird": ("<pad>", "</s>", "<s>", "<unk>", "[CLS]", "[SEP]", "[MASK]"),
    "neox": ("<|endoftext|>", "<|padding|>"),
    "mpnet": ("<s>", "<pad>", "</s>", "[UNK]", "<mask>"), "albert": ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"),
    "camembert": ("<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<s>", "</s>", "<mask>"),
    "xglm": ("<s>", "<pad>", "</s>", "<unk>", "<madeupword0>", "<madeupword3>"),
}  # fmt: skip
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def byte_level(names, *, split=None, vocab: int = 340) -> tokenizers.Tokenizer:
    """GPT-2's kind."""
    inner = tokenizers.Tokenizer(models.BPE())
    spell = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.pre_tokenizer = spell if split is None else pre_tokenizers.Sequence([split, spell])
    inner.decoder, inner.post_processor = decoders.ByteLevel(), processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab, special_tokens=list(names), initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )  # fmt: skip
    inner.train_from_iterator(CORPUS, trainer)
    return inner


def sentence_pieces(names, *, prepends: bool = True, vocab: int = 400) -> tokenizers.Tokenizer:
    """Llama-2's kind: pieces of SentencePiece as BPE, and bytes for what has none; the normalizer of older files."""
    inner = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    steps = [normalizers.Prepend("\u2581")] if prepends else []
    inner.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "\u2581")])
    inner.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    inner.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    trainer = trainers.BpeTrainer(vocab_size=vocab, special_tokens=[*names, *BYTES], show_progress=False)
    inner.train_from_iterator([text.replace(" ", " \u2581") for text in CORPUS], trainer)
    inner.pre_tokenizer = None
    held = json.loads(inner.to_str())
    # Bytes are tokens of the vocabulary, not special ones.
    held["added_tokens"] = [each for each in held["added_tokens"] if each["content"] in names]
    return tokenizers.Tokenizer.from_str(json.dumps(held))


def ended_words(*, vocab: int = 200) -> tokenizers.Tokenizer:
    """The first GPT's kind: words in lower case, whose last piece ends with `</w>`."""
    inner = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    inner.normalizer, inner.pre_tokenizer = (
        normalizers.BertNormalizer(lowercase=True),
        pre_tokenizers.BertPreTokenizer(),
    )
    inner.decoder = decoders.BPEDecoder(suffix="</w>")
    trainer = trainers.BpeTrainer(
        vocab_size=vocab, special_tokens=["<unk>"], end_of_word_suffix="</w>", show_progress=False
    )
    inner.train_from_iterator(CORPUS, trainer)
    return inner


def unigram(names, *, vocab: int = 120, unk: str = "<unk>") -> tokenizers.Tokenizer:
    """T5's and XLM-R's kind."""
    inner = tokenizers.Tokenizer(models.Unigram())
    inner.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(tokenizers.Regex(" {2,}"), " ")])
    inner.pre_tokenizer = pre_tokenizers.Metaspace()
    inner.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=vocab, special_tokens=list(names), unk_token=unk, show_progress=False)
    inner.train_from_iterator(CORPUS, trainer)
    return inner


def word_pieces(names, *, lowercase: bool = True, vocab: int = 160) -> tokenizers.Tokenizer:
    """BERT's kind."""
    inner = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    inner.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    inner.train_from_iterator(
        CORPUS, trainers.WordPieceTrainer(vocab_size=vocab, special_tokens=list(names), show_progress=False)
    )
    return inner


def around(inner: tokenizers.Tokenizer, single: str) -> tokenizers.Tokenizer:
    """The same with a template around each text."""
    names = [each for each in single.split() if each != "$A"]
    inner.post_processor = processors.TemplateProcessing(
        single=single, special_tokens=[(name, inner.token_to_id(name)) for name in names]
    )
    return inner


def write_folder(
    place: Path, inner: tokenizers.Tokenizer | None, settings: dict[str, Any] | None = None, *, model_type: str = "llama",
    **files: Any,
) -> Path:  # fmt: skip
    """A folder with a config.json and tokenizer files; `files` are others, as JSON."""
    place.mkdir(parents=True, exist_ok=True)
    (place / "config.json").write_text(json.dumps({"model_type": model_type, "bos_token_id": 0, "eos_token_id": 1}))
    if inner is not None:
        inner.save(str(place / "tokenizer.json"))
    if settings is not None:
        (place / "tokenizer_config.json").write_text(json.dumps(settings))
    for name, held in files.items():
        (place / f"{name}.json").write_text(json.dumps(held))
    return place
