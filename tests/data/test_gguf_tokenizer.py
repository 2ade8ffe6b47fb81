"""Tokenizers in the metadata of GGUF files: the ids that transformers' reader gives, and files that go there and back."""

import json
import warnings

import gguf
import pytest
import tokenizers
import transformers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

import anyformer as af
from anyformer.data.gguf_tokenizer import (
    BYTE,
    CONTROL,
    NORMAL,
    SPLITS,
    TEMPLATE,
    UNKNOWN,
    USER,
    gguf_metadata,
    merges_of,
    tokenizer_in,
)  # fmt: skip
from anyformer.data.tokenizer import Tokenizer, train_bpe
from anyformer.errors import DataError
from anyformer.families.gguf.header import Header, read_header
from anyformer.generation.chat.template import read_template

TEXTS = (
    "Hello, world! It's 12345 o'clock, isn't it?", "def main(args):\n    return  args[0]\n\n", "naïve café, 東京 и так далее 🙂",
    "x", "A  b   c", "trailing ", "WORDS and Words\tand\r\nlines", "<s>text</s>", "<|user|>hi<|end|>",
)  # fmt: skip
CORPUS = [*TEXTS, *(f"the quick brown fox number {i} jumps over lazy dogs; it's fun!" for i in range(60))]


def byte_level(pre):
    """Tokens and merges of byte-level BPE, learned with a way to split."""
    split = SPLITS[pre]
    inner = tokenizers.Tokenizer(models.BPE())
    spell = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split.pattern is None)
    steps = [] if split.pattern is None else [pre_tokenizers.Split(tokenizers.Regex(split.pattern), "isolated")]
    inner.pre_tokenizer = pre_tokenizers.Sequence([*steps, spell])
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    specials = ["<s>", "</s>", "<|user|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=specials, initial_alphabet=alphabet, show_progress=False
    )
    inner.train_from_iterator(CORPUS, trainer)
    model = json.loads(inner.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    merges = [" ".join(pair) if isinstance(pair, list) else pair for pair in model["merges"]]
    types = [CONTROL if token in specials else NORMAL for token in tokens]
    return [*tokens, "<|end|>"], merges, [*types, USER]


def pieces():
    """Tokens and scores of a SentencePiece vocabulary: bytes, characters and words that merges make."""
    inner = tokenizers.Tokenizer(models.BPE())
    inner.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    trainer = trainers.BpeTrainer(vocab_size=260, show_progress=False)
    # SentencePiece has one word of a text after the other, so no token goes beyond a word.
    inner.pre_tokenizer = pre_tokenizers.Split("\u2581", "merged_with_next")
    inner.train_from_iterator([text for text in CORPUS if "<" not in text], trainer)
    model = json.loads(inner.to_str())["model"]
    made = ["".join(pair) if isinstance(pair, list) else pair.replace(" ", "") for pair in model["merges"]]
    chars = [token for token in sorted(model["vocab"], key=model["vocab"].get) if token not in made]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{n:02X}>" for n in range(256)), *dict.fromkeys(made), *chars, "<|user|>"]
    types = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * (len(tokens) - 260), USER]
    scores = [0.0] * 259 + [-float(i) for i in range(len(tokens) - 260)] + [0.0]
    return tokens, scores, types


def write(file, arch, model, keys):
    writer = gguf.GGUFWriter(file, arch)
    writer.add_tokenizer_model(model)
    for key, value in keys.items():
        if isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        else:
            writer.add_array(key, value)
    # The reader of transformers looks for some tensor.
    writer.add_tensor("token_embd.weight", __import__("numpy").zeros((2, 32), "float32"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def byte_level_file(folder, pre, arch="llama", **more):
    tokens, merges, types = byte_level(pre)
    ids = {"tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.eos_token_id": 1}
    keys = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.merges": merges, "tokenizer.ggml.token_type": types}
    return write(folder / "x.gguf", arch, "gpt2", keys | ids | {"tokenizer.ggml.pre": pre} | more)


def pieces_file(folder, arch="llama", **more):
    tokens, scores, types = pieces()
    ids = {f"tokenizer.ggml.{name}_token_id": i for i, name in enumerate(("unknown", "bos", "eos"))}
    keys = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.scores": scores, "tokenizer.ggml.token_type": types}
    return write(folder / "x.gguf", arch, "llama", keys | ids | more)


def theirs(file):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return transformers.AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)


def check_same(file, texts=TEXTS, *, gemma=False):
    ours, public = af.tokenizer(file), theirs(file)
    for text in texts:
        ids = public.encode(text, add_special_tokens=False)
        assert ours.text_ids(text, specials=False) == ids, text
        # Of Gemma's tokens of several spaces it loses some.
        assert ours.decode(ids) == (text if gemma else public.decode(ids, skip_special_tokens=True)), text


@pytest.mark.parametrize("pre", ["gpt-2", "llama-bpe", "qwen2", "gpt-4o", "tekken"])
def test_byte_level_ids_equal_those_of_the_public_reader(pre, tmp_path):
    check_same(byte_level_file(tmp_path, pre))


@pytest.mark.parametrize("arch", ["llama", "phi3"])
def test_sentencepiece_ids_equal_those_of_the_public_reader(arch, tmp_path):
    file = pieces_file(tmp_path, arch)
    # llama.cpp has a space before every text, also one that begins with a space or stands after a special token; the
    # class LlamaTokenizer has it before the first only.
    check_same(file, [*TEXTS, " two  spaces first"] if arch == "phi3" else [text for text in TEXTS if "<" not in text])
    assert af.tokenizer(file).text_ids(" x", specials=False)[0] == af.tokenizer(file).id_of("\u2581")


def test_gemmas_tokens_of_spaces_equal_those_of_the_public_reader(tmp_path):
    tokens, scores, types = pieces()
    tokens, scores, types = [*tokens, "  ", "   "], [*scores, -9e3, -9e3], [*types, NORMAL, NORMAL]
    keys = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.scores": scores, "tokenizer.ggml.token_type": types}
    keys |= {f"tokenizer.ggml.{name}_token_id": i for i, name in enumerate(("unknown", "bos", "eos"))}
    file = write(tmp_path / "x.gguf", "gemma2", "llama", keys | {"tokenizer.ggml.add_space_prefix": False})
    check_same(file, [text for text in (*TEXTS, " two  spaces", "a   b") if "<" not in text], gemma=True)


@pytest.mark.parametrize(
    ("make", "flags", "first", "last"),
    [
        (pieces_file, {}, 1, None), (pieces_file, {"add_bos_token": False}, None, None),
        (pieces_file, {"add_eos_token": True}, 1, 2), (lambda f, **m: byte_level_file(f, "qwen2", **m), {}, None, None),
        (lambda f, **m: byte_level_file(f, "llama-bpe", **m), {}, 0, None),
        (lambda f, **m: byte_level_file(f, "gpt-2", **m), {"add_bos_token": True}, 0, None),
    ],
)  # fmt: skip
def test_bos_and_eos_stand_around_a_text_as_llama_cpp_has_them(make, flags, first, last, tmp_path):
    words = af.tokenizer(make(tmp_path, **{f"tokenizer.ggml.{key}": value for key, value in flags.items()}))
    plain, whole = words.text_ids("hello", specials=False), words.text_ids("hello")
    assert whole == [*([] if first is None else [first]), *plain, *([] if last is None else [last])]


def test_special_tokens_and_the_chat_template_are_read(tmp_path):
    text = "{% for m in messages %}{{ bos_token }}{{ m['content'] }}{% endfor %}"
    file = byte_level_file(tmp_path, "gpt-2", **{TEMPLATE: text})
    words, template = af.tokenizer(file), read_template(file)
    assert words.named == {"bos_token": "<s>", "eos_token": "</s>"}
    assert words.specials.keys() == {"<s>", "</s>", "<|user|>"}
    assert template.ids(words, [{"role": "user", "content": "hello"}]) == [0, *words.encode("hello")]
    assert read_template(byte_level_file(tmp_path, "gpt-2")) is None


def test_unknown_way_to_split_is_warned_about(tmp_path):
    tokens, merges, _ = byte_level("gpt-2")
    keys = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.merges": merges, "tokenizer.ggml.pre": "strange"}
    file = write(tmp_path / "x.gguf", "llama", "gpt2", keys)
    with pytest.warns(UserWarning, match=r"tokenizer\.ggml\.pre: 'strange'"):
        af.tokenizer(file)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({}, "has no tokenizer"),
        ({"tokens": ["a"], "model": "bert"}, "model: 'bert' can't be read"),
        ({"tokens": ["a"], "model": "gpt2"}, "merges: is no list of pairs"),
        ({"tokens": ["a"], "model": "gpt2", "merges": ["ab"]}, "merges: is no list of pairs"),
        ({"tokens": ["a"], "model": "gpt2", "merges": ["a b"]}, "can't be built"),
        ({"tokens": ["a"], "model": "llama", "scores": []}, "scores: is no list of 1 numbers"),
        ({"tokens": ["a"], "model": "llama", "scores": [0.0], "token_type": [1, 2]}, "token_type: is no list of 1 types"),
        ({"tokens": [1], "model": "llama"}, "has no tokenizer"),
    ],
)  # fmt: skip
def test_damaged_tokenizer_is_refused_with_the_file(keys, words, tmp_path):
    header = Header(tmp_path / "x.gguf", {f"tokenizer.ggml.{key}": value for key, value in keys.items()}, {})
    with pytest.raises(DataError) as caught:
        tokenizer_in(header)
    assert words in str(caught.value)
    assert "x.gguf" in str(caught.value)


def spec(vocab):
    return af.spec("llama-7b", {"vocab": vocab, "ids.bos": None, "ids.eos": []})


@pytest.mark.parametrize("pre", ["gpt-2", "llama-bpe", "qwen2", "gpt-4o", "tekken"])
def test_byte_level_tokenizer_goes_into_metadata_and_back(pre, tmp_path):
    words = af.tokenizer(byte_level_file(tmp_path, pre))
    check_back(words, pre)


def test_sentencepiece_tokenizer_goes_into_metadata_and_back(tmp_path):
    check_back(af.tokenizer(pieces_file(tmp_path)), None)


def check_back(words, pre):
    made = gguf_metadata(words, spec(words.vocab + 5), "a template")
    assert made.get("tokenizer.ggml.pre") == pre
    assert made[TEMPLATE] == "a template"
    assert len(made["tokenizer.ggml.tokens"]) == words.vocab + 5
    again = tokenizer_in(Header(None, made, {}))
    for text in (*TEXTS, " x"):
        assert again.text_ids(text) == words.text_ids(text)
        assert again.decode(again.text_ids(text)) == words.decode(words.text_ids(text))
    assert again.named == words.named
    assert again.specials == words.specials


def test_scores_alone_give_the_same_merges(tmp_path):
    # llama.cpp looks at scores only.
    words = af.tokenizer(pieces_file(tmp_path))
    made = gguf_metadata(words, spec(words.vocab))
    del made["tokenizer.ggml.merges"]
    again = tokenizer_in(Header(None, made, {}))
    for text in TEXTS:
        assert again.text_ids(text) == words.text_ids(text)


def test_tokenizer_that_we_trained_is_warned_about_and_read_back():
    words = train_bpe(CORPUS, 300)
    with pytest.warns(UserWarning, match="llama.cpp will not"):
        made = gguf_metadata(words, spec(300))
    again = tokenizer_in(Header(None, made, {}))
    assert [again.text_ids(text) for text in TEXTS] == [words.text_ids(text) for text in TEXTS]


def test_tokenizer_that_llama_cpp_does_not_have_is_refused():
    word = Tokenizer(tokenizers.Tokenizer(models.WordPiece({"a": 0, "[UNK]": 1}, unk_token="[UNK]")))
    with pytest.raises(DataError, match="holds BPE, and this is WordPiece"):
        gguf_metadata(word, spec(9))
    inner = tokenizers.Tokenizer(models.BPE({"a": 0}, []))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.Whitespace(), decoders.ByteLevel()
    with pytest.raises(DataError, match="no name for the way in which it splits"):
        gguf_metadata(Tokenizer(inner), spec(9))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    with pytest.raises(DataError, match="has id 0, and the model 0 tokens"):
        gguf_metadata(Tokenizer(inner), type("Spec", (), {"vocab": 0}))


def test_merges_come_in_the_order_of_scores():
    tokens, scores = ["a", "b", "c", "ab", "bc", "abc"], [0.0, 0.0, 0.0, -2.0, -1.0, -3.0]
    assert merges_of(tokens, scores) == [("b", "c"), ("a", "b"), ("ab", "c"), ("a", "bc")]


def test_header_of_a_written_tokenizer_is_read_by_the_package(tmp_path):
    file = pieces_file(tmp_path)
    field = gguf.GGUFReader(file).fields["tokenizer.ggml.tokens"]
    assert read_header(file).metadata["tokenizer.ggml.tokens"] == [bytes(field.parts[i]).decode() for i in field.data]
