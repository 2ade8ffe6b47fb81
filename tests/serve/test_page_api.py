"""The page's files, and what only the page asks for."""

import json

import pytest

import anyformer as af
from anyformer.data.tokenizer import tokenizer
from anyformer.serve.page import page_files

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def test_page_files_are_open_and_under_a_policy(serving):
    with serving(keys=("secret",)) as server:
        for path, file in page_files().items():
            answer = server.get(path)
            assert (answer.status, answer.body) == (200, file.body), path
            assert answer.headers["content-type"] == file.content_type
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["content-security-policy"] == POLICY
        assert server.get("/").headers["content-type"].startswith("text/html")


@pytest.mark.parametrize("path", ["/page/", "/page", "/page/../main.js", "/page/index.html", "/page/__init__.py", "/page/no.js", "/index.html"])  # fmt: skip
def test_page_has_no_other_file(serving, path: str):
    with serving() as server:
        assert server.get(path).status == 404


def test_api_model_tells_the_page_what_it_serves(serving, model_folder):
    with serving(defaults=(("temperature", 0.5),)) as server:
        found = server.get("/api/model").data
    spec = af.load(model_folder).spec
    assert (found["name"], found["chat"], found["topology"], found["generates"]) == ("tiny", True, "decoder", True)
    assert found["spec"] == json.loads(json.dumps(spec.to_data()))
    assert found["counts"] == {"params": spec.count().params, "layers": 2, "width": 32}
    assert (found["max_model_len"], found["vocab"]) == (256, spec.vocab)
    # Two layers, keys and values, two heads of eight numbers in fp32.
    assert found["kv_bytes_per_token"] == 2 * 2 * 2 * 8 * 4
    assert found["limits"]["look_tokens"] == 256
    assert found["defaults"]["temperature"] == 0.5


def test_look_tells_the_same_of_a_text_and_of_its_ids(serving, model_folder):
    ids = [0, *tokenizer(model_folder).encode("the cat sat")]
    with serving() as server:
        text = server.post("/api/look", {"prompt": "the cat sat"}).data
        assert text["ids"] == ids
        assert server.post("/api/look", {"ids": ids}).data == text
        said = [{"role": "user", "content": "the cat"}]
        chat = server.post("/api/look", {"messages": said}).data
        assert chat["ids"] == server.post("/apply-template", {"messages": said}).data["tokens"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": "a", "ids": [1]}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"ids": []}, "ids"),
        ({"ids": [-1]}, "ids[0]"),
        ({"ids": [1] * 9}, "ids"),
        ({"prompt": "the cat sat on the mat, and the dog sat"}, "prompt"),
    ],
)
def test_look_refuses_what_it_can_not_read(serving, body, param: str):
    with serving(limits={"look_tokens": 8}) as server:
        answer = server.post("/api/look", body)
        assert (answer.status, answer.error["param"]) == (400, param)
