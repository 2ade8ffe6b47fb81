"""Streamed text is text at once: whole tokenizers, characters of many bytes, and stop strings wherever they are cut."""

import functools
import random
from collections.abc import Callable, Iterator

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

import anyformer as af
from anyformer.data.tokenizer import Tokenizer, train_bpe
from anyformer.generation.params.stop import StopText
from anyformer.generation.text.detokenizer import Detokenizer
from tests.contract.contracts import model_of
from tests.contract.draw import BASE
from tests.data.test_tokenizer import STORIES, needs_stories, strange_texts

MANY = "日本語の文章。 café naïve e\u0301a\u0300 👩‍👩‍👧‍👦🏳️‍🌈🇫🇷 Привет мир, العربية. the cat sat on the mat\n"
CASES = 150


@functools.cache
def byte_level() -> Tokenizer:
    return train_bpe([MANY * 6], 330)


@functools.cache
def stories() -> Tokenizer:
    return af.tokenizer(STORIES)


@functools.cache
def word_pieces() -> Tokenizer:
    inner = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    inner.normalizer, inner.pre_tokenizer = normalizers.NFC(), pre_tokenizers.BertPreTokenizer()
    inner.decoder = decoders.WordPiece()
    inner.train_from_iterator(
        [MANY] * 4, trainers.WordPieceTrainer(vocab_size=140, special_tokens=["[UNK]"], show_progress=False)
    )
    return Tokenizer(inner)


KINDS = [
    pytest.param(byte_level, id="byte level"),
    pytest.param(stories, id="byte fallback", marks=needs_stories),
    pytest.param(word_pieces, id="word pieces"),
]


def rows(words: Tokenizer, seed: int) -> Iterator[tuple[list[int], list[int], random.Random]]:
    """A prompt, new ids after it, and chance for what else a case needs: real texts, cut anywhere, and noise."""
    rng = random.Random(seed)
    texts = [MANY, *(text for text in strange_texts()[:200] if words.encode(text))]
    plain = [i for i in range(words.vocab) if i not in words.specials.values()]
    for case in range(CASES):
        ids = words.encode(rng.choice(texts))[: rng.randint(4, 40)]
        if case % 3 == 1:
            ids = [rng.choice(plain) for _ in range(rng.randint(2, 25))]
        if case % 3 == 2:
            # A text in which some tokens are missing, so that characters are cut.
            ids = [i for i in ids if rng.random() < 0.7] or ids
        cut = rng.randint(0, len(ids) - 1)
        yield ids[:cut], ids[cut:], rng


def one_by_one(stream: Detokenizer | StopText, ids: list[int]) -> str:
    return "".join([stream.push(i) for i in ids] + [stream.end()])


def in_bunches(stream: Detokenizer | StopText, ids: list[int], rng: random.Random) -> str:
    """As tokens come that were guessed several at once."""
    pieces, left = [], list(ids)
    while left:
        count = rng.randint(1, 4)
        pieces.append(stream.push(*left[:count]))
        left = left[count:]
    return "".join([*pieces, stream.end()])


@pytest.mark.parametrize("make", KINDS)
def test_streamed_text_is_the_text_at_once(make: Callable[[], Tokenizer]):
    words, mismatches, open_ends = make(), [], 0
    for before, ids, rng in rows(words, 1):
        at_once = Detokenizer(words, before)
        want = at_once.push(*ids) + at_once.end()
        found = one_by_one(Detokenizer(words, before), ids), in_bunches(Detokenizer(words, before), ids, rng)
        shown, whole = words.decode(before), words.decode(before + ids)
        if whole.startswith(shown):
            found = (*found, whole[len(shown) :])
        else:
            # The prompt ends within a character, of which a part was shown.
            open_ends += 1
        if set(found) != {want}:
            mismatches.append((before, ids, found, want))
    assert not mismatches, f"{len(mismatches)} of {CASES}: {mismatches[0]}"
    assert open_ends < CASES / 3


@needs_stories
def test_stream_after_half_a_character_shows_the_whole_and_loses_nothing():
    words = stories()
    ids = words.encode("a 日h")
    half = next(n for n in range(1, len(ids)) if words.decode(ids[:n]).endswith("\ufffd\ufffd"))
    assert one_by_one(Detokenizer(words, ids[:half]), ids[half:]) == "日h"
    # What is no character in the end was shown already.
    rest = words.encode("h")
    assert one_by_one(Detokenizer(words, ids[:half]), rest) == words.decode(ids[:half] + rest).removeprefix(
        "a \ufffd\ufffd"
    )


def stops_of(text: str, rng: random.Random) -> list[str]:
    """Stop strings: some that are there, some that begin and don't go on, some that end with another character."""
    found: list[str] = []
    for _ in range(rng.randint(1, 3)):
        begin = rng.randrange(len(text))
        part = text[begin : begin + rng.randint(1, 7)]
        kind = rng.random()
        if kind < 0.35:
            part += rng.choice(("\x01", "é", "日", part))
        elif kind < 0.5:
            part = part[0] + part
        found.append(part)
    return found


@pytest.mark.parametrize("make", KINDS)
def test_streamed_text_with_stop_strings_is_the_text_before_the_first(make: Callable[[], Tokenizer]):
    words, mismatches, met, split, begun = make(), [], 0, 0, 0
    for _, ids, rng in rows(words, 2):
        text = words.decode(ids)
        if not text:
            continue
        stops = stops_of(text, rng)
        # What is known after each token decides, as a row ends with the token that completes a string.
        so_far = [words.decode(ids[:n]) for n in range(1, len(ids) + 1)]
        ends = next((n for n, known in enumerate(so_far) if any(stop in known for stop in stops)), None)
        want = text
        if ends is not None:
            want = so_far[ends][: min(so_far[ends].index(stop) for stop in stops if stop in so_far[ends])]
            met += 1
            split += ends > 0 and len(so_far[ends - 1]) > len(want)
        begun += ends is None and any(stop[0] in text for stop in stops)
        streams = [StopText(Detokenizer(words), stops) for _ in range(2)]
        found = one_by_one(streams[0], ids), in_bunches(streams[1], ids, rng)
        if set(found) != {want} or any((each.met is None) != (ends is None) for each in streams):
            mismatches.append((ids, stops, found, want))
    assert not mismatches, f"{len(mismatches)} of {CASES}: {mismatches[0]}"
    assert met > CASES / 5
    assert split > CASES / 10, "strings must be split over tokens"
    assert begun > CASES / 10, "strings must begin and not go on"


@pytest.mark.parametrize("make", KINDS)
def test_pipeline_streams_the_text_that_it_gives_at_once(make: Callable[[], Tokenizer]):
    words = make()
    model = model_of(af.spec(BASE, {"vocab": words.vocab, "context": 64}))
    write = af.pipeline("text-generation", model, words)
    met = 0
    for seed in range(6):
        asked = {"max_new_tokens": 14, "temperature": 1.2, "seed": seed, "return_full_text": False}
        free = write("the cat", **asked)[0]["generated_text"]
        rng = random.Random(seed)
        stops = stops_of(free, rng) if seed % 3 and free else None
        given = asked | ({} if stops is None else {"stop": stops})
        want = write("the cat", **given)[0]["generated_text"]
        assert (
            "".join(write("the cat", stream=True, **{k: v for k, v in given.items() if k != "return_full_text"}))
            == want
        )
        # Beside others, of which one is longer, it is the same.
        beside = write(["the cat", MANY[:9]], batch_size=2, **given)
        assert beside[0][0]["generated_text"] == want
        assert free.startswith(want) or stops is not None
        met += want != free
    assert met >= 1
