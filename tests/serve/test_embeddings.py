"""Vectors of texts, by hand from the states of the model."""

import base64
import struct
from pathlib import Path

import pytest
import torch

import anyformer as af
from anyformer.data.tokenizer import tokenizer, train_bpe
from tests.contract.contracts import randomise
from tests.serve.conftest import SPEC, TEXT

TEXTS = ["the cat sat on the mat", "the dog", "a"]
ENCODER = {"topology": "encoder", "head": {"kind": "lm"}, "ids": {}}


@pytest.fixture(scope="module")
def encoder_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny encoder."""
    folder = tmp_path_factory.mktemp("served") / "encoder"
    made = train_bpe([TEXT], 300)
    af.save(randomise(af.build(af.spec(SPEC | ENCODER | {"vocab": made.vocab})), 1).eval(), folder)
    made.save(folder)
    return folder


@torch.inference_mode()
def states(folder: Path, ids: list[int]) -> torch.Tensor:
    """The last states of a row, read alone."""
    return af.load(folder, dtype=torch.float32).eval()(torch.tensor([ids])).hidden[0]


def unit(vector: torch.Tensor) -> torch.Tensor:
    return vector / vector.norm()


def close(found: list[float], wanted: torch.Tensor) -> None:
    torch.testing.assert_close(torch.tensor(found), wanted, rtol=1e-4, atol=1e-5)


def test_embeddings_of_a_decoder_are_its_last_states(serving, model_folder):
    own = tokenizer(model_folder)
    with serving() as server:
        found = server.post("/v1/embeddings", {"input": TEXTS, "model": "tiny"}).data
    assert (found["object"], found["model"]) == ("list", "tiny")
    rows = [[0, *own.encode(text)] for text in TEXTS]
    count = sum(map(len, rows))
    assert found["usage"] == {"prompt_tokens": count, "total_tokens": count}
    assert [(each["object"], each["index"]) for each in found["data"]] == [("embedding", i) for i in range(3)]
    for each, ids in zip(found["data"], rows, strict=True):
        close(each["embedding"], unit(states(model_folder, ids)[-1]))


def test_embeddings_of_an_encoder_are_the_mean_of_its_states(serving, encoder_folder):
    ids = tokenizer(encoder_folder).encode(TEXTS[0])
    with serving(model=str(encoder_folder)) as server:
        found = server.post("/v1/embeddings", {"input": TEXTS[0]}).data
        close(found["data"][0]["embedding"], unit(states(encoder_folder, ids).mean(0)))
        answer = server.post("/v1/completions", {"prompt": "the cat"})
        assert (answer.status, answer.error["type"]) == (501, "not_supported_error")
    with serving(model=str(encoder_folder), pooling="cls") as server:
        found = server.post("/v1/embeddings", {"input": TEXTS[0]}).data
        close(found["data"][0]["embedding"], unit(states(encoder_folder, ids)[0]))


def test_embeddings_as_base64_hold_the_same_floats(serving):
    with serving() as server:
        plain = server.post("/v1/embeddings", {"input": TEXTS[0]}).data["data"][0]["embedding"]
        text = server.post("/v1/embeddings", {"input": TEXTS[0], "encoding_format": "base64"}).data["data"][0]["embedding"]  # fmt: skip
    raw = base64.b64decode(text)
    assert list(struct.unpack(f"<{len(raw) // 4}f", raw)) == pytest.approx(plain, abs=0)


def test_embeddings_of_fewer_dimensions_are_cut_and_have_length_one(serving):
    with serving() as server:
        whole = server.post("/v1/embeddings", {"input": TEXTS[0]}).data["data"][0]["embedding"]
        cut = server.post("/v1/embeddings", {"input": TEXTS[0], "dimensions": 5}).data["data"][0]["embedding"]
        close(cut, unit(torch.tensor(whole[:5])))
        assert server.post("/v1/embeddings", {"input": TEXTS[0], "dimensions": 32}).status == 200
        for wrong in (0, 33):
            answer = server.post("/v1/embeddings", {"input": TEXTS[0], "dimensions": wrong})
            assert (answer.status, answer.error["param"]) == (400, "dimensions")


def test_embeddings_read_ids_and_texts_alike(serving, model_folder):
    own = tokenizer(model_folder)
    cat, dog = own.encode("the cat"), own.encode(" dog")
    with serving() as server:

        def vectors(given: object) -> list[object]:
            found = server.post("/v1/embeddings", {"input": given}).data["data"]
            return [pytest.approx(each["embedding"], abs=1e-5) for each in found]

        (text,) = server.post("/v1/embeddings", {"input": "the cat"}).data["data"]
        text = text["embedding"]
        assert [text] == vectors([0, *cat])
        assert [text] * 3 == vectors([[0, *cat], "the cat", [0, "the cat"]])
        (longer,) = server.post("/v1/embeddings", {"input": ["the cat", *dog]}).data["data"]
        assert [longer["embedding"]] == vectors([0, *cat, *dog])
        for wrong in ([], [[]], [10**6], [[1, -1]], ["a", 1.5], {"prompt_string": "a", "multimodal_data": "b"}):
            answer = server.post("/v1/embeddings", {"input": wrong})
            assert answer.status == 400
            assert answer.error["param"].startswith("input")


def test_embeddings_by_token_are_for_the_native_path_only(serving, model_folder):
    ids = [0, *tokenizer(model_folder).encode(TEXTS[0])]
    with serving(pooling="none") as server:
        (one,) = server.post("/embeddings", {"input": TEXTS[0]}).data
        assert one["index"] == 0
        torch.testing.assert_close(torch.tensor(one["embedding"]), states(model_folder, ids), rtol=1e-4, atol=1e-4)
        assert server.post("/v1/embeddings", {"input": TEXTS[0]}).status == 400
    with serving() as server:
        pooled = server.post("/v1/embeddings", {"input": TEXTS[0]}).data["data"][0]["embedding"]
        assert server.post("/embedding", {"content": TEXTS[0]}).data == [{"index": 0, "embedding": [pooled]}]
        assert server.post("/embedding", {}).status == 400
        assert server.post("/embedding", {"content": "a", "input": "b"}).status == 400


def test_embeddings_refuse_a_text_that_is_too_long(serving):
    with serving() as server:
        answer = server.post("/v1/embeddings", {"input": ["a", "the cat " * 500]})
        assert (answer.status, answer.error["type"]) == (400, "exceed_context_size_error")
        assert answer.error["param"] == "input[1]"
        assert server.post("/v1/embeddings", {"input": ["a"] * 257}).status == 400
