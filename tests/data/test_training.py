"""Training tokenizers: each kind has the size, the special tokens and the way back to the text that it promises."""

import re
from pathlib import Path

import pytest

from anyformer.data import tokenizer_training as module
from anyformer.data.tokenizer_training import KINDS, Training, sentinel_ids, special_ids, train_tokenizer
from anyformer.errors import DataError, InputError
from tests.data.test_tokenizer import strange_texts

CODE = (
    Path(module.__file__).read_text(encoding="utf-8")[:6000]
    + "caf\u00e9 \u65e5\u672c\u8a9e \U0001f469\u200d\U0001f680\n"
)


def trained(kind: str, **more):
    sizes = {"bpe": 600, "wordpiece": 500, "unigram": 700, "chars": None}
    return train_tokenizer(lambda: [CODE], Training(kind=kind, vocab=sizes[kind], **more))


@pytest.mark.parametrize("kind", KINDS)
def test_training_of_every_kind_twice_gives_specials_at_the_same_ids_and_the_size_asked_for(kind):
    first, again = (trained(kind, specials=("<mask>",), sentinels=3) for _ in range(2))
    assert first.specials == again.specials
    assert list(first.specials) == [*KINDS[kind].specials, "<mask>", "<extra_id_0>", "<extra_id_1>", "<extra_id_2>"]
    assert special_ids(first)["mask"] == first.specials["<mask>"]
    assert sentinel_ids(first) == tuple(first.specials[f"<extra_id_{i}>"] for i in range(3))
    assert first.vocab == {"bpe": 600, "wordpiece": 500, "unigram": 700, "chars": len(set(CODE)) + 4}[kind]
    # The library's Unigram adds up in another order each time, so its scores differ in the last digits.
    if kind != "unigram":
        assert first.to_json() == again.to_json()


@pytest.mark.parametrize("kind", KINDS)
def test_training_of_every_kind_never_makes_control_tokens_of_text(kind):
    made = trained(kind, specials=("<bos>", "<unk>") if kind == "chars" else ("<bos>",))
    allowed = special_ids(made).get("unk")
    ids = made.encode("".join(made.specials))
    assert {i for i in ids if i in made.specials.values()} <= {allowed}


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_training_of_kinds_that_spell_bytes_gives_back_any_text(kind):
    made = trained(kind)
    for text in strange_texts():
        # The sign for a space is the one character that Unigram can't tell from a space.
        text = text.replace("\u2581", "")
        assert made.decode(made.encode(text)) == text


def test_training_of_characters_gives_one_token_each_in_order_of_code_points():
    made = trained("chars")
    assert made.encode("".join(sorted(set(CODE)))) == list(range(made.vocab))
    assert made.decode(made.encode(CODE)) == CODE
    with pytest.raises(DataError):
        made.encode("\u4e00")
    known = trained("chars", specials=("<unk>",))
    assert known.encode("a\u4e00") == [known.id_of("a"), known.specials["<unk>"]]


def test_training_of_wordpieces_splits_words_and_chinese_and_gives_words_back():
    made = trained("wordpiece")
    assert made.decode(made.encode("return texts()")) == "return texts ( )"
    assert len(made.encode("\u65e5\u672c")) == 2
    assert made.encode("\u4e00") == [made.specials["[UNK]"]]
    assert made.encode("Return") != made.encode("return")
    lower = trained("wordpiece", lowercase=True)
    assert lower.encode("Return CAF\u00c9") == lower.encode("return cafe")


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"kind": "bpee", "vocab": 9}, "did you mean 'bpe'"),
        ({"kind": "bpe"}, "--vocab 8192"),
        ({"kind": "chars", "vocab": 9}, "leave out the size"),
        ({"kind": "bpe", "vocab": 999, "lowercase": True}, "lowercase goes with wordpiece"),
        ({"kind": "bpe", "vocab": 999, "specials": ("<x>", "<x>")}, "'<x>' is there twice"),
        ({"kind": "bpe", "vocab": 999, "specials": ("mask", "<a b>")}, "'mask', '<a b>' can't be"),
    ],
)  # fmt: skip
def test_training_asked_for_what_can_not_be_says_so(asked, message):
    with pytest.raises(InputError, match=re.escape(message)):
        Training(**asked)


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "unigram"])
def test_training_of_too_small_a_vocabulary_says_how_large_it_must_be(kind):
    with pytest.raises(DataError, match=r"vocab: 50 is less than \d+"):
        train_tokenizer(lambda: [CODE], Training(kind=kind, vocab=50))


@pytest.mark.parametrize("kind", KINDS)
def test_training_on_a_text_that_fails_passes_its_error_on(kind):
    def texts():
        yield CODE
        raise DataError("f:7: is not JSON")

    with pytest.raises(DataError, match=r"^f:7: is not JSON$"):
        train_tokenizer(texts, Training(kind=kind, vocab=None if kind == "chars" else 700))
