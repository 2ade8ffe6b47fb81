"""A stream of text pieces: no half characters, and together what decode says."""

import random
from collections.abc import Callable

import pytest
import tokenizers
from tokenizers import decoders, models

import anyformer as af
from anyformer.data.tokenizer import Tokenizer, train_bpe
from anyformer.generation.text.detokenizer import Detokenizer
from tests.data.test_tokenizer import CODE, STORIES, needs_stories, strange_texts


def byte_level() -> Tokenizer:
    return train_bpe([CODE, "naïve café 日本語 " * 9], 400)


def stories() -> Tokenizer:
    return af.tokenizer(STORIES)


def word_pieces() -> Tokenizer:
    words = ["[UNK]", "the", "cat", "s", "##s", "##at", "on", ",", "'"]
    inner = tokenizers.Tokenizer(models.WordPiece({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    inner.decoder = decoders.WordPiece()
    return Tokenizer(inner)


def metaspace() -> Tokenizer:
    words = ["▁", "▁the", "▁cat", "s", "▁▁", "x"]
    inner = tokenizers.Tokenizer(models.BPE({w: i for i, w in enumerate(words)}, []))
    inner.decoder = decoders.Metaspace()
    return Tokenizer(inner)


KINDS = [
    pytest.param(byte_level, id="byte level"),
    pytest.param(stories, id="byte fallback", marks=needs_stories),
    pytest.param(word_pieces, id="word pieces"),
    pytest.param(metaspace, id="metaspace"),
]


def pieces(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    stream = Detokenizer(tokenizer)
    return [stream.push(i) for i in ids] + [stream.end()]


@pytest.mark.parametrize("make", KINDS)
def test_stream_of_any_ids_adds_up_to_what_decode_says(make: Callable[[], Tokenizer]):
    tokenizer, rng = make(), random.Random(0)
    bytes_first = sorted(tokenizer.byte_tokens) or range(min(257, tokenizer.vocab))
    for _ in range(300):
        some = rng.choice((range(tokenizer.vocab), bytes_first))
        ids = [rng.choice(some) for _ in range(rng.randint(1, 40))]
        assert "".join(pieces(tokenizer, ids)) == tokenizer.decode(ids), ids


@pytest.mark.parametrize("make", KINDS[:2])
def test_stream_of_a_text_never_shows_half_a_character(make: Callable[[], Tokenizer]):
    tokenizer = make()
    for text in strange_texts()[:250]:
        ids = tokenizer.encode(text)
        shown = pieces(tokenizer, ids)
        assert "".join(shown) == tokenizer.decode(ids)
        if "\ufffd" not in text:
            assert not any("\ufffd" in piece for piece in shown)


@pytest.mark.parametrize("make", KINDS[:2])
def test_stream_shows_each_word_as_soon_as_it_is_there(make: Callable[[], Tokenizer]):
    tokenizer = make()
    text = "the same words again and again, the same words"
    ids = tokenizer.encode(text)
    stream = Detokenizer(tokenizer)
    shown = ""
    for count, each in enumerate(ids, 1):
        shown += stream.push(each)
        assert shown == tokenizer.decode(ids[:count])


def test_stream_of_garbage_goes_on_showing():
    tokenizer = train_bpe(["x"], 257)
    continuation = next(i for i in range(257) if tokenizer.decode([i]) == "\ufffd")
    stream = Detokenizer(tokenizer)
    shown = "".join(stream.push(continuation) for _ in range(50))
    assert len(shown) >= 49


@needs_stories
def test_stream_after_a_prompt_keeps_the_space_that_decoders_drop():
    tokenizer = stories()
    prompt, rest = tokenizer.encode("Once upon"), tokenizer.encode("a time")
    stream = Detokenizer(tokenizer, prompt)
    shown = "".join([stream.push(i) for i in rest] + [stream.end()])
    assert tokenizer.decode(rest) == "a time"
    assert "Once upon" + shown == tokenizer.decode(prompt + rest) == "Once upon a time"


@needs_stories
def test_stream_after_a_special_token_keeps_the_space_too():
    tokenizer = stories()
    ids = [1, *tokenizer.encode("Once"), 2, 2, *tokenizer.encode("upon a"), 1, *tokenizer.encode("time")]
    assert "".join(pieces(tokenizer, ids)) == tokenizer.decode(ids)


def test_stream_remembers_only_a_tail():
    tokenizer = byte_level()
    stream = Detokenizer(tokenizer)
    for i in tokenizer.encode(CODE):
        stream.push(i)
    assert len(stream._ids) < 10
