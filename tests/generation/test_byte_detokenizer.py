"""Text from bytes says what text from ids decoded again and again says, piece by piece."""

import random

import pytest

from anyformer.data.tokenizer import train_bpe
from anyformer.generation.params.stop import StopText
from anyformer.generation.text.detokenizer import ByteDetokenizer, Detokenizer, detokenizer

TEXT = "Zoë paid 5 € for the naïve café, 🙂 twice — 日本語. " * 20


@pytest.fixture(scope="module")
def words():
    return train_bpe([TEXT], 320, ("<|end|>", "<|other|>"))


def rows(words, count):
    """Ids of texts, whole and cut anywhere; and random ids, most of which are no text."""
    rng = random.Random(0)
    for _ in range(count):
        spelled = words.encode(TEXT[rng.randrange(200) :][: rng.randrange(1, 60)])
        yield [rng.randrange(words.vocab) if rng.random() < 0.2 else token for token in spelled]
        yield [rng.randrange(words.vocab) for _ in range(rng.randrange(1, 30))]


def test_detokenizer_is_that_of_bytes_where_tokens_are_bytes(words):
    assert isinstance(detokenizer(words), ByteDetokenizer)


def test_byte_detokenizer_joins_to_what_the_tokenizer_decodes(words):
    for ids in rows(words, 300):
        made = ByteDetokenizer(words)
        assert "".join(made.push(token) for token in ids) + made.end() == words.decode(ids)


def test_byte_detokenizer_shows_the_same_pieces(words):
    for ids in rows(words, 150):
        one, other = ByteDetokenizer(words), Detokenizer(words)
        shown = ["", ""]
        for token in ids:
            shown[0] += one.push(token)
            shown[1] += other.push(token)
            # What is certain is shown at once; the other one may wait a little longer, and never shows something else.
            assert shown[0].startswith(shown[1]) or shown[1].startswith(shown[0])
            assert shown[0] + one.held() == shown[1] + other.held()
        assert shown[0] + one.end() == shown[1] + other.end()


@pytest.mark.parametrize("cut", range(1, 12))
def test_byte_detokenizer_after_a_prompt_that_ends_anywhere_goes_on_like_the_other(words, cut):
    ids = words.encode("é🙂日 a")
    before, after = ids[:cut], ids[cut:]
    one, other = ByteDetokenizer(words, before), Detokenizer(words, before)
    assert "".join(map(one.push, after)) + one.end() == "".join(map(other.push, after)) + other.end()


def test_stop_strings_are_found_alike(words):
    for ids in rows(words, 60):
        pair = [StopText(made(words), ("é", "pa", "本")) for made in (ByteDetokenizer, Detokenizer)]
        texts = ["".join(each.push(token) for token in ids) + each.end() for each in pair]
        assert texts[0] == texts[1]
        assert pair[0].met == pair[1].met
