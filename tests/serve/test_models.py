"""What a server says of its model."""

import urllib.parse

import pytest

import anyformer as af
from anyformer.serve.config import ServeConfig


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


def test_models_of_a_folder_have_its_name_and_those_of_the_hub_their_own(tmp_path, monkeypatch):
    (tmp_path / "runs" / "tiny").mkdir(parents=True)
    (tmp_path / "runs" / "tiny-q8.gguf").touch()
    monkeypatch.chdir(tmp_path)
    for model in ("runs/tiny", "runs/tiny/", "./runs/../runs/tiny", str(tmp_path / "runs" / "tiny")):
        assert ServeConfig(model=model).names == ("tiny",)
    assert ServeConfig(model="runs/tiny-q8.gguf").names == ("tiny-q8",)
    assert ServeConfig(model="org/tiny").names == ("org/tiny",)
    monkeypatch.chdir(tmp_path / "runs" / "tiny")
    assert ServeConfig(model=".").names == ("tiny",)


@pytest.mark.parametrize("name", ["nothing", "../../etc/passwd", "a" * 8000, "%2e%2e%2fetc", "org%2Ftinyy"])
def test_models_of_another_name_are_not_found(serving, name: str):
    with serving(served_model_name=("org/tiny",)) as server:
        answer = server.get(f"/v1/models/{name}")
        assert (answer.status, answer.error["code"]) == (404, "model_not_found")
        assert len(answer.error["message"]) < 300
