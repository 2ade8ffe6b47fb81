"""Stop strings: streamed text is text at once, however a string is split over tokens."""

import random

import pytest
import torch

import anyformer as af
from anyformer.data.tokenizer import Tokenizer
from anyformer.generation.params.stop import StopText
from anyformer.generation.text.detokenizer import Detokenizer
from tests.data.test_tokenizer import needs_stories
from tests.generation.test_stream import KINDS, stories
from tests.generation.words import model, tokenizer

PROMPT = "the cat"


def shown(words: Tokenizer, ids: list[int], stops: list[str], least: int = 0) -> tuple[str, str | None]:
    stream = StopText(Detokenizer(words), stops, least=least)
    return "".join([stream.push(i) for i in ids] + [stream.end()]), stream.met


@pytest.mark.parametrize("make", KINDS)
def test_stop_text_is_the_text_before_the_first_match(make):
    words, rng = make(), random.Random(1)
    some = [i for i in range(words.vocab) if i not in words.specials.values()]
    met = 0
    for _ in range(300):
        ids = [rng.choice(some) for _ in range(rng.randint(1, 25))]
        whole = words.decode(ids)
        cuts = [sorted(rng.sample(range(len(whole) + 1), 2)) for _ in range(rng.randint(1, 3))] if whole else []
        stops = [whole[a:b][:6] for a, b in cuts if a < b] or ["never there"]
        text, found = shown(words, ids, stops)
        # The first token after which the text so far has a match ends it; a later byte may change what came before.
        ends = [n for n in range(1, len(ids) + 1) if any(s in words.decode(ids[:n]) for s in stops)]
        so_far = words.decode(ids[: ends[0]]) if ends else whole
        begins = [so_far.index(s) for s in stops if s in so_far]
        assert text == (so_far[: min(begins)] if begins else whole), (ids, stops)
        assert (found is None) == (not begins)
        met += found is not None
    assert met > 100


def test_stop_text_holds_back_no_more_than_it_must():
    words = tokenizer()
    stream = StopText(Detokenizer(words), ["cat sat!"])
    pieces = [stream.push(i) for i in words.encode("the cat sat on")]
    assert "".join(pieces) == "the cat sat on"
    assert stream.end() == ""
    # Nothing but the beginning of the stop string waits.
    assert "the " in "".join(pieces[: len(words.encode("the cat"))])


def test_stop_text_within_the_least_tokens_is_text():
    words = tokenizer()
    ids = words.encode(" no no no no")
    assert len(ids) == 4
    assert shown(words, ids, ["no"]) == (" ", "no")
    assert shown(words, ids, ["no"], least=2) == (" no no ", "no")
    assert shown(words, ids, ["no"], least=4) == (" no no no no", None)
    # The longer one holds the shorter one back, which had passed already.
    assert shown(words, ids, ["no", "no maybe"], least=3) == (" no no no ", "no")
    assert shown(words, ids, ["no no no"], least=3) == (" no ", "no no no")


@pytest.mark.parametrize("many", [1, 3])
def test_generate_with_a_stop_string_ends_where_its_text_has_it(many):
    words, m = tokenizer(), model()
    ids = torch.tensor([words.encode(PROMPT)[:2], words.encode("yes no")[:2]])
    given = {"max_new_tokens": 12, "temperature": 1.3, "seed": 4, "n": many, "details": True, "stop": ()}
    free = af.generate(m, ids, **given)
    width = ids.shape[1]
    texts = [words.decode(row) for row in free.ids[:, width:].tolist()]
    stops = [texts[0][3:6], texts[1][-4:-2]]
    found = af.generate(m, ids, tokenizer=words, **given | {"stop": stops})
    for i, (row, text) in enumerate(zip(free.ids[:, width:].tolist(), texts, strict=True)):
        ends = [n for n in range(1, 13) if any(s in words.decode(row[:n]) for s in stops)]
        length = ends[0] if ends else 12
        assert found.lengths[i] == length
        assert found.ids[i, width : width + length].tolist() == row[:length]
        assert found.reasons[i] == ("stop" if ends else "length")
        if ends:
            assert found.met[i] in stops
            assert shown(words, row[:length], stops)[0] == text[: text.index(str(found.met[i]))]
    assert any(found.met)
    steps = list(af.generate(m, ids, tokenizer=words, stream=True, **given | {"stop": stops}))
    assert torch.equal(torch.stack([s.ids_B for s in steps], 1), found.ids[:, width:])


def test_generate_with_stop_strings_still_ends_at_eos_unless_ids_are_given():
    words = tokenizer()
    ids = torch.tensor([words.encode(PROMPT)])
    first = int(af.generate(model(()), ids, max_new_tokens=1)[0, -1])
    m = model((first,))
    given = {"max_new_tokens": 6, "tokenizer": words, "details": True}
    assert af.generate(m, ids, stop="never there", **given).lengths == (1,)
    assert af.generate(m, ids, stop=["never there", 1], **given).lengths == (6,)
    assert af.generate(m, ids, stop="never there", **given).met == (None,)


@needs_stories
def test_stop_text_of_a_byte_token_ends_at_that_byte():
    words = stories()
    newline = words.encode("a\nb")
    assert any(i in words.byte_tokens for i in newline)
    stream = StopText(Detokenizer(words), ["\n"])
    count = 0
    for each in newline:
        stream.push(each)
        count += 1
        if stream.met:
            break
    assert count == len(newline) - 1
