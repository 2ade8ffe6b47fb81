"""Log-probabilities in the forms of the API: names that never collide, and places in the text."""

import itertools
import math

import pytest

from anyformer.data.token_bytes import TokenBytes
from anyformer.data.tokenizer import train_bpe
from anyformer.serve.text.logprobs import Entry, Offsets, chat_logprobs, completion_logprobs, vllm_prompt_logprobs

TEXT = "Zoë paid 5 € for the naïve café, twice. " * 20


@pytest.fixture(scope="module")
def words():
    return train_bpe([TEXT], 300)


def test_token_bytes_of_any_text_join_to_its_utf8(words):
    known = TokenBytes(words)
    for text in (TEXT, "日本語 🙂\n\ttab", " a", "a "):
        assert b"".join(map(known, words.encode(text))) == text.encode()


def test_labels_of_half_characters_show_bytes_and_never_collide(words):
    known = TokenBytes(words)
    ids = words.encode("🙂")
    labels = [known.label(token) for token in ids]
    assert all(label.startswith("bytes:\\x") for label in labels)
    assert len(set(known.labels(range(words.vocab)))) == words.vocab


def test_completion_logprobs_hold_the_token_itself_with_the_same_float(words):
    known = TokenBytes(words)
    ids = words.encode("for the")
    value = math.log(0.3)
    top = [[i, -float(n)] for n, i in enumerate(range(3), start=1)]
    entries = [Entry(ids[0], None), *(Entry(token, value, top) for token in ids[1:])]
    found = completion_logprobs(entries, known, Offsets(known, frozenset()))
    assert found["token_logprobs"] == [None, *[value] * (len(ids) - 1)]
    assert found["top_logprobs"][0] is None
    for token, one, best in zip(found["tokens"], found["token_logprobs"], found["top_logprobs"], strict=True):
        if best is not None:
            assert best[token] == one
            assert len(best) == 4
    begins = [*found["text_offset"], len("for the")]
    assert [("for the")[a:b] for a, b in itertools.pairwise(begins)] == found["tokens"]


def test_offsets_of_split_characters_point_at_the_character(words):
    known = TokenBytes(words)
    text = "a🙂b"
    places = [Offsets(known, frozenset())]
    begins = [places[0].push(token) for token in words.encode(text)]
    assert begins[0] == 0
    assert begins[-1] == 2
    assert set(begins[1:-1]) == {1}


def test_chat_logprobs_tokens_join_to_the_text(words):
    known = TokenBytes(words)
    found = chat_logprobs([Entry(token, -1.0, [[token, -1.0]]) for token in words.encode("for the café")], known)
    assert "".join(each["token"] for each in found) == "for the café"
    assert bytes(byte for each in found for byte in each["bytes"]).decode() == "for the café"
    assert all("id" not in each for each in found)


def test_prompt_logprobs_are_by_id_with_ranks(words):
    known = TokenBytes(words)
    found = vllm_prompt_logprobs([Entry(5, None), Entry(7, -0.5, [[9, -0.1]])], known)
    assert found[0] is None
    assert found[1] == {
        "9": {"logprob": -0.1, "rank": 1, "decoded_token": known.label(9)},
        "7": {"logprob": -0.5, "rank": None, "decoded_token": known.label(7)},
    }


def test_tokens_of_a_stop_string_have_no_logprobs(serving):
    with serving() as running:
        free = running.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "the cat"}], "max_tokens": 24, "temperature": 0, "logprobs": True}).data  # fmt: skip
        tokens = [each["token"] for each in free["choices"][0]["logprobs"]["content"]]
        whole = [i for i, token in enumerate(tokens) if not token.startswith("bytes:") and token not in tokens[:i]]
        stop = tokens[whole[len(whole) // 2]]
        body = {"messages": [{"role": "user", "content": "the cat"}], "max_tokens": 24, "temperature": 0, "logprobs": True, "stop": stop}  # fmt: skip
        found = running.post("/v1/chat/completions", body).data["choices"][0]
        assert found["finish_reason"] == "stop"
        assert stop not in found["message"]["content"]
        said = b"".join(bytes(each["bytes"]) for each in found["logprobs"]["content"])
        # Of the last token a part may belong to the stop string.
        assert said.startswith(found["message"]["content"].encode())
        begun = said[: -len(bytes(found["logprobs"]["content"][-1]["bytes"]))] if said else b""
        assert len(begun) <= len(found["message"]["content"].encode())


def test_source_of_an_encoder_decoder_is_bounded_like_a_prompt(tmp_path, serving):
    import anyformer as af
    from tests.contract.contracts import randomise

    words = train_bpe([TEXT], 300)
    spec = {"topology": "encoder-decoder", "vocab": words.vocab, "width": 32, "depth": 1, "context": 64, "ids": {"start": 0, "eos": [1]}, "attention": {"heads": 4}}  # fmt: skip
    af.save(randomise(af.build(af.spec(spec)), 0).eval(), tmp_path / "two")
    words.save(tmp_path / "two")
    with serving(model=str(tmp_path / "two")) as running:
        assert running.post("/v1/completions", {"prompt": [5] * 64, "max_tokens": 2}).status == 200
        found = running.post("/v1/completions", {"prompt": [5] * 65, "max_tokens": 2})
        assert (found.status, found.error["code"]) == (400, "context_length_exceeded")
