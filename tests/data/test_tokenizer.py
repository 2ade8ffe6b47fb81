"""Tokenizers: any text survives, control tokens are never made of text, and damaged files are named."""

import json
import random
import unicodedata
from pathlib import Path

import pytest

import anyformer as af
from anyformer.data import tokenizer as module
from anyformer.data import tokenizer_files
from anyformer.data.tokenizer import END, Tokenizer, train_bpe

SHARED = Path(af.__file__).parents[2] / "shared" / "data"
STORIES = SHARED / "stories260K"
CODE = Path(module.__file__).read_text(encoding="utf-8")

needs_stories = pytest.mark.skipif(not STORIES.is_dir(), reason="the folder shared/data is not beside the repository")


@pytest.fixture(scope="module")
def code() -> Tokenizer:
    return train_bpe([CODE, END * 50, "naïve café 日本語 " * 9], 600)


def strange_texts() -> list[str]:
    """Texts that break tokenizers, and random ones from all of Unicode."""
    fixed = [
        "", " ", "  ", "\n", "\r\n", "\r\n\r\n  x\r\n", "\t\t\x0b\x0c", "\x00", "a\x00b", "\ufeffx", "\u00a0 \u2003\u3000x",
        "e\u0301", "\u0301", "\u0301\u0301 \u0301", "👩‍👩‍👧‍👦🏳️‍🌈", "🇫🇷🇩🇪", "\U0010ffff", "ﬁ①Ⅷ½", "é", "日本語。", "العربية ١٢٣",
        "def f(x):\n    return x  # 12_345\n\n\n", "    \n        \n", "don't DON'T we'LL", "1234567 3.14e-10 0xFF",
        END, f"a{END}b", f" {END}\n{END}{END}", "<|endof", "text|>", "\u200d\u200b\u2028\u2029", "a\u0085b",
    ]  # fmt: skip
    rng = random.Random(0)
    planes = [
        (0, 0x7F),
        (0, 0x7FF),
        (0, 0xD7FF),
        (0xE000, 0xFFFF),
        (0x10000, 0x10FFFF),
        (0x1F300, 0x1FAFF),
        (0x300, 0x36F),
    ]
    drawn = ["".join(chr(rng.randint(*rng.choice(planes))) for _ in range(rng.randint(1, 60))) for _ in range(400)]
    spaces = ["".join(rng.choice(" \t\r\n\x0b\u00a0x1.") for _ in range(30)) for _ in range(100)]
    return fixed + drawn + spaces


def test_bpe_decodes_any_text_to_itself(code):
    texts = strange_texts()
    for text, ids in zip(texts, code.encode_many(texts), strict=True):
        assert ids == code.encode(text)
        assert code.decode(ids) == text
        assert 0 not in ids
        assert sum(code.bytes_of(i) for i in ids) == len(text.encode())


def test_bpe_does_not_normalise(code):
    assert code.encode("é") != code.encode(unicodedata.normalize("NFD", "é"))


def test_bpe_reads_a_control_token_in_a_text_as_text(code):
    assert code.specials == {END: 0}
    assert code.id_of(END) == 0
    assert 0 not in code.encode(f"one{END}two")
    assert code.decode([0, *code.encode("one"), 0]) == "one"
    assert code.decode([0, *code.encode("one"), 0], specials=True) == f"{END}one{END}"


def test_bpe_after_a_round_trip_through_a_file_is_the_same(code, tmp_path):
    code.save(tmp_path / "run")
    again = af.tokenizer(tmp_path / "run")
    assert again.to_json() == code.to_json()
    assert (again.vocab, again.specials) == (code.vocab, code.specials)
    for text in strange_texts()[:60]:
        assert again.encode(text) == code.encode(text)
        assert again.decode(again.encode(text)) == text
    assert af.tokenizer(tmp_path / "run" / "tokenizer.json").vocab == code.vocab
    code.save(tmp_path / "other.json")
    assert af.tokenizer(tmp_path / "other.json").vocab == code.vocab
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["other.json", "run", "tokenizer.json"]


def test_bpe_training_is_repeatable(code):
    assert train_bpe(iter([CODE, END * 50, "naïve café 日本語 " * 9]), 600).to_json() == code.to_json()


def test_bpe_makes_tokens_that_fit_code():
    found = train_bpe([CODE * 3, "x = 1234567\n" * 50, "if a:\n        b\n" * 50], 1500)

    def pieces(text: str) -> list[str]:
        return [found.decode([i]) for i in found.encode(text)]

    assert pieces("def encode(self):\n        return") == ["def", " encode", "(self", "):\n", "       ", " return"]
    assert pieces("1234567") == list("1234567")
    assert "\n\n\n" in pieces("x\n\n\ndef")


def test_bpe_of_a_short_text_has_fewer_tokens_and_says_so():
    found = train_bpe(["ababab"], 1000)
    assert 257 < found.vocab < 300
    assert max(found.encode("ababab")) < found.vocab
    assert train_bpe([""], 257).vocab == 257
    assert train_bpe([], 300).vocab == 257


def test_bpe_of_long_texts_is_cut_into_pieces_without_losing_any(monkeypatch):
    monkeypatch.setattr(module, "SCRAP", 10)
    text = "one line\nanother, longer line\n\nx" * 3
    assert "".join(module.scraps([text])) == text
    assert max(len(piece) for piece in module.scraps([text])) <= 10


@pytest.mark.parametrize("vocab", [256, 0, -5])
def test_bpe_refuses_a_vocabulary_below_all_bytes(vocab):
    with pytest.raises(af.DataError, match=rf"vocab: {vocab} is less than 257: every byte needs a token"):
        train_bpe(["x"], vocab)


def test_tokenizer_refuses_half_of_a_pair_and_what_is_no_text(code):
    for call in (code.encode, lambda text: code.encode_many([text]), lambda text: train_bpe([text], 300)):
        with pytest.raises(af.DataError, match=r"character 2 of the text is '\\ud83d', half of a UTF-16 pair"):
            call("ab\ud83d")
        with pytest.raises(af.DataError, match="expected a text, got bytes"):
            call(b"ab")


def test_tokenizer_decoding_skips_ids_beyond_the_vocabulary_and_refuses_what_is_no_id(code):
    assert code.decode([10**6, *code.encode("ok")]) == "ok"
    for bad in ([-1], ["x"], [2**40]):
        with pytest.raises(af.DataError, match="the ids can't be decoded"):
            code.decode(bad)


def test_training_passes_errors_and_interrupts_of_the_texts_on():
    def texts(error):
        yield "some text"
        raise error

    with pytest.raises(KeyboardInterrupt):
        train_bpe(texts(KeyboardInterrupt()), 300)
    with pytest.raises(af.DataError, match="of the corpus"):
        train_bpe(texts(af.DataError("of the corpus")), 300)


def test_tokenizer_turns_a_panic_into_an_error_and_lets_an_interrupt_through(code, monkeypatch):
    class Panic(BaseException):
        pass

    class Inner:
        def __init__(self, error):
            self.error = error

        def encode(self, *_, **__):
            raise self.error

    monkeypatch.setattr(code, "literal", Inner(Panic("index out of bounds\nmore")))
    with pytest.raises(af.DataError, match=r"the text can't be encoded: index out of bounds$"):
        code.encode("x")
    monkeypatch.setattr(code, "literal", Inner(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        code.encode("x")


def test_tokenizer_file_that_cuts_or_pads_does_neither(code, tmp_path):
    data = json.loads(code.to_json())
    data["truncation"] = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    data["padding"] = {
        "strategy": {"Fixed": 50}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0,
        "pad_token": END,
    }  # fmt: skip
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    text = "a text of more than three tokens"
    assert af.tokenizer(tmp_path).encode(text) == code.encode(text)
    assert af.tokenizer(tmp_path).encode_many([text]) == [code.encode(text)]


def test_tokenizer_adds_the_template_of_its_file_only_when_asked(code, tmp_path):
    data = json.loads(code.to_json())
    data["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": END, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {END: {"id": END, "ids": [0], "tokens": [END]}},
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    found = af.tokenizer(tmp_path)
    assert found.encode("x") == code.encode("x")
    assert found.encode("x", specials=True) == [0, *code.encode("x")]
    assert found.encode_many(["x"], specials=True) == [[0, *code.encode("x")]]


def test_tokenizer_of_a_missing_file_says_what_to_give(tmp_path):
    with pytest.raises(af.DataError, match=r"there is no tokenizer.json in it; give a tokenizer.json or a directory"):
        af.tokenizer(tmp_path)
    with pytest.raises(af.DataError, match="nowhere: there is no such file"):
        af.tokenizer(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is damaged"),
        (b"{}", "is damaged"),
        (b'{"version": "1.0", "model": {"type": "Unheard"}}', "is damaged, or of a kind"),
        (b"\xff\xfe", "byte 0 is not UTF-8"),
        (CODE.encode(), "is damaged"),
    ],
)
def test_tokenizer_of_a_damaged_file_names_it_in_one_line(tmp_path, data, words):
    file = tmp_path / "tokenizer.json"
    file.write_bytes(data)
    with pytest.raises(af.DataError, match=words) as caught:
        af.tokenizer(tmp_path)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_tokenizer_of_every_beginning_of_a_file_is_an_error_of_ours(tmp_path):
    text = train_bpe(["some text, some more"], 270).to_json()
    file = tmp_path / "tokenizer.json"
    for end in range(0, len(text) - 1, 97):
        file.write_text(text[:end])
        with pytest.raises(af.DataError):
            af.tokenizer(file)


def test_tokenizer_file_beyond_the_limit_is_not_read(tmp_path, monkeypatch, code):
    code.save(tmp_path)
    monkeypatch.setattr(tokenizer_files, "LARGEST", 1000)
    with pytest.raises(af.DataError, match="a tokenizer of more than 1,000 is not read"):
        af.tokenizer(tmp_path)


@needs_stories
def test_tokenizer_of_a_published_model_reads_its_known_text():
    known = json.loads((STORIES / "greedy.json").read_text(encoding="utf-8"))
    tokens = af.tokenizer(STORIES)
    assert tokens.vocab == 512
    assert tokens.specials == {"<unk>": 0, "<s>": 1, "</s>": 2}
    assert len(tokens.byte_tokens) == 256
    text = known["text"]
    assert tokens.decode(tokens.encode(text)) == text
    assert 1 not in tokens.encode("<s>")
    assert tokens.decode(tokens.encode("<s> é 日本")) == "<s> é 日本"
    assert tokens.bytes_of(tokens.encode("Once upon")[0]) == len("Once")
