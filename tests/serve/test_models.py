"""What a server says of its model."""

import urllib.parse

import pytest

import anyformer as af


def test_models_are_one_with_its_names(serving, model_folder):
    count = sum(each.numel() for each in af.load(model_folder).parameters())
    with serving(served_model_name=("org/tiny", "other")) as server:
        for path in ("/v1/models", "/models"):
            found = server.get(path).data
            assert found["object"] == "list"
            (one,) = found["data"]
            assert (one["id"], one["object"], one["max_model_len"]) == ("org/tiny", "model", 256)
            assert one["aliases"] == ["org/tiny", "other"]
            assert one["tags"] == []
            assert one["meta"]["n_params"] == count
            assert one["meta"] | {"n_ctx_train": 256, "n_embd": 32} == one["meta"]
            assert one["meta"]["size"] >= 4 * count
        for name in ("org/tiny", "other", urllib.parse.quote("org/tiny", safe="")):
            assert server.get(f"/v1/models/{name}").data == one


@pytest.mark.parametrize("name", ["nothing", "../../etc/passwd", "a" * 8000, "%2e%2e%2fetc", "org%2Ftinyy"])
def test_models_of_another_name_are_not_found(serving, name: str):
    with serving(served_model_name=("org/tiny",)) as server:
        answer = server.get(f"/v1/models/{name}")
        assert (answer.status, answer.error["code"]) == (404, "model_not_found")
        assert len(answer.error["message"]) < 300
