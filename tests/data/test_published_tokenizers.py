"""Ids of texts by a published folder's own tokenizer files, against AutoTokenizer on the same folder."""

import json
import shutil
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import transformers
from tokenizers import pre_tokenizers
from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES
from transformers.models.mbart import tokenization_mbart as mbart
from transformers.models.mbart50 import tokenization_mbart50 as mbart50

import anyformer as af
from anyformer.data.tokenizer import Tokenizer
from anyformer.data.tokenizer_classes import CLASSES
from anyformer.data.tokenizer_files import public_tokenizers
from anyformer.families.family import families
from anyformer.families.shards import CONFIG
from tests.data.published import (
    NAMES,
    TEXTS,
    around,
    byte_level,
    ended_words,
    sentence_pieces,
    unigram,
    word_pieces,
    write_folder,
)
from tests.data.test_tokenizer import STORIES, needs_stories
from tests.docs.fences import UPDATE, maker

LLAMA = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
END = {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}


@cache
def written(kind: str) -> str:
    """The tokenizer.json of a kind."""
    digits = pre_tokenizers.Digits(individual_digits=True)
    makers = {
        "bytes": lambda: byte_level(NAMES["gpt2"], split=digits),
        "neox": lambda: byte_level(NAMES["neox"]),
        "cohere": lambda: byte_level(NAMES["cohere"], split=digits),
        "roberta": lambda: byte_level(NAMES["roberta"]),
        "llama": lambda: sentence_pieces(NAMES["llama"]),
        "gemma": lambda: sentence_pieces(NAMES["gemma"], prepends=False),
        "bert": lambda: word_pieces(NAMES["bert"]),
        "cased": lambda: word_pieces(NAMES["bert"], lowercase=False),
        "t5": lambda: unigram(NAMES["t5"]),
        "xlmr": lambda: unigram(NAMES["xlmr"]),
        "mpnet": lambda: word_pieces(NAMES["mpnet"]),
        "camembert": lambda: unigram(NAMES["camembert"]),
        "albert": lambda: unigram(NAMES["albert"]),
        "deberta": lambda: unigram(NAMES["bert"], unk="[UNK]"),
        "xglm": lambda: unigram(NAMES["xglm"]),
        "bigbird": lambda: unigram(NAMES["bigbird"]),
        "pegasus": lambda: unigram((*NAMES["t5"], "<mask_1>", "<mask_2>")),
        "mbart": lambda: unigram((*NAMES["xlmr"], *mbart.FAIRSEQ_LANGUAGE_CODES), vocab=150),
        "mbart50": lambda: unigram((*NAMES["xlmr"], *mbart50.FAIRSEQ_LANGUAGE_CODES), vocab=180),
        "reformer": lambda: sentence_pieces(NAMES["t5"], prepends=False),
        "gpt": lambda: ended_words(),
    }
    return makers[kind]().to_str()


def made(kind: str, template: str | None = None) -> tokenizers.Tokenizer:
    inner = tokenizers.Tokenizer.from_str(written(kind))
    return inner if template is None else around(inner, template)


def same_ids(folder: Path) -> tuple[Tokenizer, Any]:
    """Both tokenizers of a folder, after a look at every text with and without what stands around it."""
    ours, theirs = af.tokenizer(folder), transformers.AutoTokenizer.from_pretrained(folder)
    for text in TEXTS:
        assert ours.text_ids(text) == theirs(text).input_ids, text
        assert ours.text_ids(text, specials=False) == theirs(text, add_special_tokens=False).input_ids, text
        assert ours.decode(ours.text_ids(text)) == theirs.decode(theirs(text).input_ids, skip_special_tokens=True), text
    return ours, theirs


BYTE_LEVEL = [
    ("bytes", template, settings, name, model_type)
    for template, settings, (name, model_type) in product(
        (None, "<|endoftext|> $A", "$A <|endoftext|>"),
        (END, END | {"add_bos_token": True}, END | {"add_bos_token": False, "add_eos_token": True, "add_prefix_space": True}),
        (
            ("", "llama"), ("GPT2Tokenizer", "llama"), ("PreTrainedTokenizerFast", "llama"), ("LlamaTokenizerFast", "llama"),
            ("Qwen2Tokenizer", "qwen2"), ("", "qwen3"), ("PreTrainedTokenizerFast", "qwen2"), ("GPT2TokenizerFast", "phi3"),
            ("NoSuchTokenizer", "gpt2"), ("", "starcoder2"), ("BloomTokenizerFast", "bloom"),
        ),
    )
]  # fmt: skip
SENTENCE_PIECES = [
    ("llama", template, LLAMA | settings, name, model_type)
    for template, settings, (name, model_type) in product(
        (None, "<s> $A", "<s> $A </s>"),
        ({}, {"add_bos_token": True, "legacy": True}, {"add_eos_token": True, "legacy": False}, {"add_prefix_space": False}),
        (
            ("", "llama"), ("LlamaTokenizer", "llama"), ("LlamaTokenizerFast", "mistral"), ("CodeLlamaTokenizer", "llama"),
            ("PreTrainedTokenizerFast", "llama"),
        ),
    )
]  # fmt: skip
WORD_PIECES = [
    (kind, template, settings, name, model_type)
    for kind, template, settings, (name, model_type) in product(
        ("bert", "cased"), (None, "[CLS] $A [SEP]"),
        ({}, {"do_lower_case": False}, {"do_lower_case": True, "strip_accents": False}, {"tokenize_chinese_chars": False}),
        (("", "bert"), ("BertTokenizerFast", "llama"), ("PreTrainedTokenizerFast", "llama"), ("DistilBertTokenizer", "bert")),
    )
]  # fmt: skip
OTHERS = [
    *(("gemma", t, s, n, "gemma2") for t, s, n in product((None, "<bos> $A"), ({}, {"add_bos_token": False}), ("", "GemmaTokenizer"))),
    *(("t5", t, s, n, m) for t, s, (n, m) in product(
        (None, "$A </s>"), ({}, {"extra_ids": 0}), (("", "t5"), ("T5TokenizerFast", "llama"), ("T5Tokenizer", "umt5"), ("PreTrainedTokenizerFast", "llama")),
    )),
    *(("xlmr", t, s, n, "llama") for t, s, n in product(
        (None, "<s> $A </s>"), ({}, {"add_prefix_space": False}), ("XLMRobertaTokenizer", "PreTrainedTokenizerFast"),
    )),
    *(("roberta", t, s, n, m) for t, s, (n, m) in product(
        (None, "<s> $A </s>"), ({}, {"add_prefix_space": True}), (("", "roberta"), ("BartTokenizer", "llama"), ("", "led")),
    )),
    *(("neox", t, s, n, m) for t, s, (n, m) in product(
        (None, "<|endoftext|> $A"), ({}, {"add_bos_token": True}), (("", "gpt_neox"), ("GPTNeoXTokenizerFast", "llama"), ("", "mpt")),
    )),
    *(("cohere", t, {}, "CohereTokenizerFast", "cohere") for t in (None, "<BOS_TOKEN> $A")),
    *(("bytes", t, END | s, n, m) for t, s, (n, m) in product(
        (None, "<|endoftext|> $A"), ({}, {"add_prefix_space": True}), (("CodeGenTokenizer", "phi"), ("CodeGenTokenizerFast", "gptj")),
    )),
    *(("bigbird", t, s, n, "big_bird") for t, s, n in product(
        (None, "[CLS] $A [SEP]"), ({}, {"add_prefix_space": False}), ("", "BigBirdTokenizer"),
    )),
    *(("pegasus", t, {}, n, "pegasus") for t, n in product((None, "$A </s>"), ("", "PegasusTokenizerFast"))),
    *(("mbart", t, s, n, "mbart") for t, s, n in product((None, "$A </s> en_XX"), ({}, {"src_lang": "ro_RO"}), ("", "MBartTokenizer"))),
    *(("mbart50", t, s, "MBart50TokenizerFast", "mbart") for t, s in product((None, "en_XX $A </s>"), ({}, {"src_lang": "fr_XX"}))),
    *(("reformer", None, {}, n, "reformer") for n in ("", "ReformerTokenizerFast")),
    *(("gpt", None, {}, n, "openai-gpt") for n in ("", "OpenAIGPTTokenizer")),
    *(("mpnet", t, s, n, "mpnet") for t, s, n in product(
        (None, "$A </s>"), ({}, {"do_lower_case": False}, {"strip_accents": False}, {"tokenize_chinese_chars": False}), ("", "MPNetTokenizerFast"),
    )),
    *(("camembert", t, s, n, "camembert") for t, s, n in product(
        (None, "$A </s>"), ({}, {"add_prefix_space": False}, {"unk_token": "<pad>"}), ("", "CamembertTokenizer"),
    )),
    *(("albert", t, s, n, "albert") for t, s, n in product(
        (None, "$A [SEP]"), ({}, {"do_lower_case": False}, {"keep_accents": True}, {"add_prefix_space": False}), ("", "AlbertTokenizerFast"),
    )),
    *((k, t, s, n, "deberta-v2") for k, t, s, n in product(
        ("deberta", "albert"), (None, "$A [SEP]"),
        ({}, {"do_lower_case": True}, {"split_by_punct": True}, {"add_prefix_space": False}, {"unk_id": 4}), ("", "DebertaV2TokenizerFast"),
    )),
    *((k, t, s, n, "xglm") for k, t, s, n in product(
        ("xglm", "bigbird", "mbart", "t5"), (None, "$A </s>"), ({}, {"add_prefix_space": False}), ("", "XGLMTokenizer"),
    )),
]  # fmt: skip
CASES = [*BYTE_LEVEL, *SENTENCE_PIECES, *WORD_PIECES, *OTHERS]


@pytest.mark.parametrize(
    ("kind", "template", "settings", "name", "model_type"),
    CASES,
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else str(value),
)
def test_text_ids_of_a_published_folder_are_those_of_auto_tokenizer(
    tmp_path, kind, template, settings, name, model_type
):
    named = {"tokenizer_class": name} if name else {}
    same_ids(write_folder(tmp_path, made(kind, template), settings | named, model_type=model_type))


def test_text_ids_cases_reach_every_class_that_builds_its_steps_anew():
    registered = {public_tokenizers()["registered"].get(case[4], "") for case in CASES}
    names = {case[3].removesuffix("Fast") for case in CASES} | registered
    aliases = {"LongformerTokenizer", "ElectraTokenizer", "MvpTokenizer"}
    saved = {"NllbTokenizer"}  # by its own class, with all languages: tests/generation/test_translation.py
    assert set(CLASSES) - names - aliases == saved
    for alias in aliases:
        assert any(CLASSES[alias] is CLASSES[name] for name in names if name in CLASSES)


def test_text_ids_table_of_classes_is_that_of_the_pinned_release():
    assert maker("public_tokenizers").table() == public_tokenizers(), UPDATE


def test_text_ids_table_of_classes_is_that_of_the_public_library():
    known = public_tokenizers()
    # Where a library that a class needs is not there, the public table has none.
    theirs = {kind: name.removesuffix("Fast") for kind, name in TOKENIZER_MAPPING_NAMES.items() if name is not None}
    assert {kind: known["registered"][kind] for kind in theirs} == theirs
    backends = ("TokenizersBackend", "PreTrainedTokenizerBase", "PushToHubMixin")
    for name in [name for name in dir(transformers) if name.endswith("Tokenizer") and name != "PreTrainedTokenizer"]:
        found = getattr(transformers, name)
        if isinstance(found, type):
            made_by = [cls for cls in found.__mro__ if "__init__" in cls.__dict__ and cls.__name__ not in backends]
            own = any(cls.__module__.startswith("transformers") for cls in made_by)
            assert own == (name in known["own steps"]), name


TYPES = sorted({kind for family in families() for kind in (family.model_type, *family.also_types)})
UNKNOWN = {
    "bert-generation", "biogpt", "blenderbot", "ctrl", "fsmt", "gpt-sw3", "gpt_neox_japanese", "m2m_100", "marian", "plbart",
    "roformer",
}  # fmt: skip
"""Types of model whose class is built from other files, or by a library that is not installed: said in a warning."""


FITTING = {
    "AlbertTokenizer": "albert", "BertTokenizer": "bert", "BigBirdTokenizer": "bigbird", "CamembertTokenizer": "camembert",
    "CohereTokenizer": "cohere", "DebertaV2Tokenizer": "deberta", "GPTNeoXTokenizer": "neox", "GemmaTokenizer": "gemma",
    "LEDTokenizer": "roberta", "MBartTokenizer": "mbart", "MPNetTokenizer": "mpnet", "MvpTokenizer": "roberta",
    "OpenAIGPTTokenizer": "gpt", "PegasusTokenizer": "pegasus", "ReformerTokenizer": "reformer",
    "RobertaTokenizer": "roberta", "T5Tokenizer": "t5", "XGLMTokenizer": "xglm", "XLMRobertaTokenizer": "xlmr",
}  # fmt: skip
"""The kind of vocabulary of a class, where it is not GPT-2's."""


@pytest.mark.parametrize("model_type", TYPES)
def test_text_ids_of_every_family_s_type_are_those_of_auto_tokenizer_or_a_warning_says_so(tmp_path, model_type):
    name = public_tokenizers()["registered"].get(model_type, "")
    folder = write_folder(tmp_path, made(FITTING.get(name, "bytes")), {}, model_type=model_type)
    if model_type in UNKNOWN:
        with pytest.warns(UserWarning, match=rf"{name} of transformers builds steps .* is taken as it is"):
            af.tokenizer(folder)
    else:
        same_ids(folder)


@pytest.mark.parametrize(
    ("name", "kind"), [("BertTokenizer", "bytes"), ("ReformerTokenizer", "t5"), ("T5Tokenizer", "llama")]
)
def test_text_ids_of_a_class_that_builds_another_model_than_the_file_s_come_with_a_warning(tmp_path, name, kind):
    folder = write_folder(tmp_path, made(kind), {"tokenizer_class": name})
    with pytest.warns(UserWarning, match=rf"{name} of transformers builds a \w+ model, and tokenizer\.json holds"):
        af.tokenizer(folder)


@pytest.mark.parametrize("name", sorted(set(public_tokenizers()["own steps"]) - CLASSES.keys()))
def test_text_ids_of_a_class_whose_steps_are_not_known_come_with_a_warning(tmp_path, name):
    folder = write_folder(tmp_path, made("bytes"), END | {"tokenizer_class": name}, model_type="gpt2")
    with pytest.warns(UserWarning, match=f"{name} of transformers builds steps of its own, which are not known here"):
        af.tokenizer(folder)


CHAT = [
    "<|im_start|>user\nhi<|im_end|> there",
    "a <|tool|>b",
    "the cat <|im_end|>  x",
    "a <extra_id_0> b<extra_id_1>c",
    " <image>x",
]
FLAGS = {"lstrip": True, "rstrip": False, "single_word": False, "normalized": False, "__type": "AddedToken"}
SPELLED = [
    {"additional_special_tokens": ["<|im_start|>", "<|im_end|>", "the"]},
    {"extra_special_tokens": ["<|im_start|>", "<|im_end|>", "cat"]},
    {"extra_special_tokens": {"tool_token": "<|tool|>", "end_token": "<|im_end|>"}},
    {"extra_special_tokens": [], "additional_special_tokens": ["<|im_end|>"]},
    {"extra_special_tokens": ["<|tool|>"], "additional_special_tokens": ["<|im_end|>"]},
    {"additional_special_tokens": [{"content": "<|im_end|>", "special": True} | FLAGS]},
    {"additional_special_tokens": [{"content": "<|im_end|>"} | FLAGS, "<|im_start|>"]},
    {"image_token": "<image>", "additional_special_tokens": ["<|tool|>"]},
    {"pad_token": "<|im_end|>"},
    {"mask_token": {"content": "<|im_end|>"} | FLAGS},
]  # fmt: skip
FOLDERS = [
    ("llama", "", "llama"), ("llama", "LlamaTokenizer", "llama"), ("llama", "CodeLlamaTokenizer", "llama"),
    ("bytes", "Qwen2Tokenizer", "qwen2"), ("bytes", "", "gpt2"), ("t5", "", "t5"), ("bert", "", "bert"),
    ("roberta", "", "roberta"), ("bigbird", "", "big_bird"), ("neox", "", "gpt_neox"), ("reformer", "", "reformer"),
    ("cohere", "", "cohere"), ("gemma", "", "gemma2"), ("mpnet", "", "mpnet"), ("camembert", "", "camembert"),
    ("albert", "", "albert"), ("deberta", "", "deberta-v2"), ("xglm", "", "xglm"),
]  # fmt: skip


def same_chat_ids(folder: Path) -> None:
    ours, theirs = same_ids(folder)
    for text in CHAT:
        assert ours.text_ids(text) == theirs(text).input_ids, text
    assert {name: ours.id_of(name) for name in theirs.all_special_tokens} == dict(
        zip(theirs.all_special_tokens, theirs.all_special_ids, strict=True)
    )
    for name in ("bos_token", "eos_token", "unk_token", "pad_token", "mask_token"):
        assert ours.id_named(name) == getattr(theirs, f"{name}_id"), name


@pytest.mark.parametrize("place", ["settings", "map", "both"])
@pytest.mark.parametrize("spelled", SPELLED, ids=json.dumps)
@pytest.mark.parametrize(("kind", "name", "model_type"), FOLDERS)
def test_special_tokens_of_either_key_and_file_have_the_ids_of_auto_tokenizer(
    tmp_path, kind, name, model_type, spelled, place
):
    if place != "settings" and any(isinstance(token, dict) for token in spelled.get("additional_special_tokens", ())):
        pytest.skip("AutoTokenizer fails on a list of tables in special_tokens_map.json")
    named = {"tokenizer_class": name} if name else {}
    bare = {key: {k: v for k, v in value.items() if k != "__type"} if isinstance(value, dict) and "content" in value else value
            for key, value in spelled.items()}  # fmt: skip
    files = {} if place == "settings" else {"special_tokens_map": bare}
    settings = named | (
        spelled if place == "settings" else {"extra_special_tokens": ["<|tool|>"]} if place == "both" else {}
    )
    same_chat_ids(write_folder(tmp_path, made(kind), settings, model_type=model_type, **files))


@pytest.mark.parametrize("spelled", SPELLED, ids=json.dumps)
@pytest.mark.parametrize(("kind", "name", "model_type"), [
    ("bytes", "Qwen2Tokenizer", "qwen2"), ("bytes", "", "opt"), ("neox", "GPTNeoXTokenizer", "llama"), ("roberta", "", "roberta"),
    ("bert", "", "bert"), ("mpnet", "", "mpnet"),
])  # fmt: skip
def test_special_tokens_of_files_older_than_tokenizer_json_have_the_ids_of_auto_tokenizer(
    tmp_path, kind, name, model_type, spelled
):
    named = {"tokenizer_class": name} if name else {}
    folder = write_folder(tmp_path, None, named | spelled, model_type=model_type)
    made(kind).model.save(str(folder))
    same_chat_ids(folder)


@pytest.mark.parametrize("extra", [{}, {"extra_ids": 0}, {"extra_ids": 3}, {"extra_ids": 2, "additional_special_tokens": ["<extra_id_0>", "<extra_id_1>"]}])  # fmt: skip
def test_special_tokens_of_t5_include_its_sentinels(tmp_path, extra):
    same_chat_ids(write_folder(tmp_path, made("t5"), extra, model_type="t5"))


@pytest.mark.parametrize(("kind", "model_type"), [
    ("mpnet", "mpnet"), ("camembert", "camembert"), ("albert", "albert"), ("deberta", "deberta-v2"), ("xglm", "xglm"),
])  # fmt: skip
@pytest.mark.parametrize(
    "files", [{}, {"special_tokens_map": {"additional_special_tokens": ["<tool>"]}}], ids=json.dumps
)
def test_special_tokens_that_tokenizer_json_does_not_list_are_those_of_the_class(tmp_path, kind, model_type, files):
    bare = tokenizers.Tokenizer.from_str(json.dumps(json.loads(written(kind)) | {"added_tokens": []}))
    ours, theirs = same_ids(write_folder(tmp_path, bare, {}, model_type=model_type, **files))
    held = [json.loads(inner.to_str())["added_tokens"] for inner in (ours.inner, theirs.backend_tokenizer)]
    assert held[0] == held[1]


@pytest.mark.parametrize("flag", ["lstrip", "rstrip", "single_word", "normalized"])
def test_flags_of_a_named_token_count_in_older_folders(tmp_path, flag):
    token = {"content": "<mask>", "lstrip": False, "rstrip": False, "single_word": False, "normalized": False} | {
        flag: True
    }
    for place in ("settings", "map"):
        settings = {"mask_token": token | {"__type": "AddedToken"}} if place == "settings" else {}
        files = {"special_tokens_map": {"mask_token": token}} if place == "map" else {}
        folder = write_folder(tmp_path / place, None, settings, model_type="roberta", **files)
        made("roberta").model.save(str(folder))
        ours, theirs = same_ids(folder)
        for text in ("a <mask> b", "a<mask>b", "the  <mask>  cat"):
            assert ours.text_ids(text) == theirs(text).input_ids, text


@needs_stories
def test_text_ids_of_a_real_checkpoint_are_those_of_auto_tokenizer_and_have_no_bos():
    ours, _ = same_ids(STORIES)
    assert ours.published
    assert ours.text_ids("Once")[0] != af.spec(STORIES).ids.bos


@pytest.mark.parametrize("settings", [{}, {"add_bos_token": True}, {"add_bos_token": True, "add_eos_token": True}])
@pytest.mark.parametrize(("kind", "name", "model_type"), [
    ("bytes", "GPT2Tokenizer", "llama"), ("bytes", "", "opt"), ("neox", "GPTNeoXTokenizer", "llama"),
    ("bytes", "Qwen2Tokenizer", "qwen2"), ("roberta", "RobertaTokenizer", "roberta"), ("bert", "BertTokenizer", "bert"),
])  # fmt: skip
def test_text_ids_of_files_older_than_tokenizer_json_follow_the_flags(tmp_path, kind, name, model_type, settings):
    inner = made(kind)
    named = {"tokenizer_class": name} if name else {}
    folder = write_folder(tmp_path, None, (END if kind == "bytes" else {}) | settings | named, model_type=model_type)
    inner.model.save(str(folder))
    ours, _ = same_ids(folder)
    assert ours.published
    if settings and kind == "bytes":
        assert ours.text_ids("the cat")[0] == ours.id_of("<|endoftext|>")


def test_text_ids_know_tokens_that_only_other_files_name(tmp_path):
    inner = made("bytes")
    # A named token of the vocabulary is never split, nor merged with its neighbours.
    spelled = next(name for name in sorted(inner.get_vocab()) if name.isascii() and name.isalpha() and len(name) > 2)
    token = {
        "content": "<|im_start|>",
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "single_word": False,
        "special": True,
    }
    listed = {"added_tokens_decoder": {str(inner.get_vocab_size()): token}, "eos_token": "<|endoftext|>"}
    one = write_folder(tmp_path / "one", inner, listed)
    map_file = {
        "bos_token": {"content": spelled, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    }
    two = write_folder(tmp_path / "two", inner, {}, special_tokens_map=map_file)
    for folder in (one, two):
        ours, theirs = same_ids(folder)
        for text in ("<|im_start|>user", "a<|im_start|> b", f"x{spelled}y {spelled}"):
            assert ours.text_ids(text) == theirs(text).input_ids
        assert ours.id_named("bos_token") == theirs.bos_token_id
        assert ours.id_named("eos_token") == theirs.eos_token_id


def test_text_ids_of_split_special_tokens_take_them_as_text(tmp_path):
    folder = write_folder(tmp_path, made("bytes"), END | {"split_special_tokens": True})
    ours, _ = same_ids(folder)
    assert 0 not in ours.text_ids("x<|endoftext|>y")


def test_encode_of_a_published_folder_takes_special_tokens_as_text(tmp_path):
    ours = af.tokenizer(write_folder(tmp_path, made("llama", "<s> $A"), LLAMA))
    assert ours.text_ids("a</s>")[-1] == ours.id_of("</s>")
    assert ours.id_of("</s>") not in ours.encode("a</s>")
    assert ours.encode("a", specials=True) == ours.text_ids("a")


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (["tokenizer.model"], r"only tokenizer\.model; its class is LlamaTokenizer.*save_pretrained"),
        (["spiece.model", "vocab.txt"], r"only spiece\.model, vocab\.txt.*these files are read for BertTokenizer"),
        ([], r"there is no tokenizer\.json in it; give a tokenizer\.json or a directory"),
    ],
    ids=["sentencepiece", "another class", "nothing"],
)
def test_tokenizer_of_older_files_that_are_not_read_says_what_to_do(tmp_path, files, words):
    write_folder(tmp_path, None, {"tokenizer_class": "LlamaTokenizer"})
    for name in files:
        (tmp_path / name).write_bytes(b"\n")
    with pytest.raises(af.DataError, match=words):
        af.tokenizer(tmp_path)


def test_tokenizer_whose_template_names_no_token_of_the_vocabulary_is_refused(tmp_path):
    write_folder(tmp_path, made("bytes"), {"tokenizer_class": "RobertaTokenizer"})
    with pytest.raises(af.DataError, match=r"the vocabulary has no '<s>', '</s>', which stands around each text"):
        af.tokenizer(tmp_path)


def test_tokenizer_of_a_folder_of_ours_stays_that_of_a_run(tmp_path):
    write_folder(tmp_path / "public", made("llama"), LLAMA)
    (tmp_path / "run").mkdir()
    shutil.copyfile(tmp_path / "public" / "tokenizer.json", tmp_path / "run" / "tokenizer.json")
    assert af.tokenizer(tmp_path / "public").published
    assert af.tokenizer(tmp_path / "public" / "tokenizer.json").published
    assert not af.tokenizer(tmp_path / "run").published
    assert not (tmp_path / "run" / CONFIG).exists()
