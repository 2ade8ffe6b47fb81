"""The page about a prompt: its data are the model's, no token can break it, and a real browser draws it."""

import base64
import dataclasses
import html as html_text
import json
import re
import shutil
import subprocess
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch

import anyformer as af
from anyformer.errors import InputError
from anyformer.explain import prompt
from anyformer.explain.prompt import page, save, trace_prompt
from tests.cli.small_run import small_run

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
BROWSER = next((found for name in BROWSERS if (found := shutil.which(name))), None)
STORIES = Path(__file__).parents[2].parent / "shared" / "data" / "stories260K"
TEXT = "the cat sat on the dog"
HOSTILE = (
    "</script><script>document.documentElement.dataset.taken='yes'</script>",
    "<!--<script>",
    "]]>&lt;\u2028\n\"'`${0}\\",
    "<img src=x onerror=\"document.documentElement.dataset.taken='yes'\">",
)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return small_run(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def seen(made):
    return trace_prompt(*made, TEXT, name="small")


def levels(weights, rows, columns):
    """The bytes of a matrix, by head."""
    packed = zlib.decompress(base64.b64decode(weights["data"]))
    return np.frombuffer(packed, np.uint8).reshape(weights["heads"], rows, columns)


def browse(text, folder, fragment=""):
    """What the page's element says once its script has run, and all of the document."""
    place = folder / "page.html"
    place.write_text(text, encoding="utf-8")
    command = [
        str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}",
        "--virtual-time-budget=10000", "--dump-dom", f"{place.as_uri()}{fragment}",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, timeout=900, check=True)
    document = done.stdout.decode()
    opening = re.search(r"<html[^>]*>", document)
    assert opening is not None
    return dict(re.findall(r'data-(\w+)="([^"]*)"', opening[0])), document


in_a_browser = pytest.mark.skipif(BROWSER is None, reason=f"no browser found: none of {', '.join(BROWSERS)}")


def test_trace_of_a_prompt_says_what_the_model_says(made, seen):
    model, tokenizer = made
    assert tokenizer.decode(seen.ids) == TEXT
    with torch.no_grad():
        logits = model(torch.tensor([seen.ids])).logits[0].softmax(-1)
    data = json.loads(json.dumps(seen.data()))
    for place, candidates in enumerate(data["layers"][-1]["top"]):
        found = logits[place].topk(prompt.TOP)
        assert [int(token) for token, _ in candidates] == found.indices.tolist()
        assert [share for _, share in candidates] == pytest.approx(found.values.tolist(), abs=6e-5)
    assert [layer["name"] for layer in data["layers"]] == ["embedding", "layer 0", "layer 1"]
    assert data["given"][0] is None
    for place, (share, rank) in enumerate(data["given"][1:]):
        own = logits[place, seen.ids[place + 1]]
        assert share == pytest.approx(float(own), abs=6e-5)
        assert rank == 1 + int((logits[place] > own).sum())
    assert {str(token) for layer in data["layers"] for each in layer["top"] for token, _ in each} <= set(data["texts"])


def test_trace_of_a_prompt_by_layer_and_head_is_the_trace(made, seen):
    model, _ = made
    found = model.trace(torch.tensor([seen.ids]), attention="all", logits="all")
    data = seen.data()
    for name, layer in zip(("embed", 0, 1), data["layers"], strict=True):
        best = found[f"decoder.{name}.logits"][0].argmax(-1).tolist()
        assert [int(each[0][0]) for each in layer["top"]] == best
    size = len(seen.ids)
    for i, weights in enumerate(data["attention"]):
        exact = found[f"decoder.{i}.attention.probs"][0].sqrt().detach().numpy()
        assert np.abs(levels(weights, size, size) / 255 - exact).max() <= 0.5001 / 255


def test_trace_of_tokens_keeps_the_blank_that_a_token_begins_with(seen):
    assert "".join(seen.texts[token] for token in seen.ids[1:]) == TEXT
    assert seen.texts[seen.ids[0]] == "<|endoftext|>"


def test_trace_leaves_layers_out_that_would_make_the_page_too_large(made, monkeypatch):
    monkeypatch.setattr(prompt, "ROOM", 100)
    found = trace_prompt(*made, TEXT, name="small")
    assert [weights.name for weights in found.attention] == ["layer 0"]
    assert found.notes == ["Attention of 1 of 2 layers: all of them would make the page too large."]


def test_trace_of_an_encoder_expects_the_token_in_its_place(tmp_path):
    found = trace_prompt(*small_run(tmp_path, {"topology": "encoder"}), TEXT, name="small")
    assert found.predicts == "same"
    assert all(each is not None for each in found.given)


def test_trace_of_a_classifier_shows_attention_only(tmp_path):
    found = trace_prompt(
        *small_run(tmp_path, {"topology": "encoder", "head": {"kind": "sequence", "labels": 3}}), TEXT, name="s"
    )
    assert (found.predicts, found.layers, len(found.attention)) == (None, [], 2)
    assert "predicts no tokens" in found.notes[0]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "--prompt: is empty"),
        (" \n", "--prompt: is empty"),
        ("the cat " * 400, "a page shows at most 256: shorten it"),
    ],
)
def test_trace_of_a_prompt_that_does_not_fit_teaches(made, text, says):
    with pytest.raises(InputError, match=says):
        trace_prompt(*made, text, name="small")


def test_trace_of_a_model_of_images_teaches(made):
    spec = af.spec({
        "topology": "encoder", "width": 8, "depth": 1, "context": 5, "attention": {"heads": 2},
        "embed": {"kind": "patches", "image": 8, "patch": 4, "channels": 1}, "head": {"kind": "sequence", "labels": 2},
    })  # fmt: skip
    with pytest.raises(InputError, match="this model reads pixel_values, not a text"):
        trace_prompt(af.build(spec), made[1], TEXT, name="images")


def test_page_asks_nobody_for_anything(seen):
    text = page(seen)
    assert "default-src 'none'" in text
    assert not re.search(r"https?:|<link|<iframe|\bsrc=|\burl\(|@import|\bfetch\(|XMLHttpRequest", text)
    assert text.isascii()


def test_page_holds_its_data_whatever_tokens_say(seen):
    texts = dict(zip(seen.texts, (HOSTILE * len(seen.texts))[: len(seen.texts)], strict=True))
    text = page(dataclasses.replace(seen, texts=texts, name=HOSTILE[0]))
    assert text.count("<script") == text.count("</script>") == 2
    assert "<img" not in text
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    assert set(json.loads(found[1])["texts"].values()) == set(HOSTILE)


@pytest.mark.parametrize("name", ["page.txt", "nowhere/page.html"])
def test_page_for_a_file_that_can_not_be_teaches(seen, tmp_path, name):
    with pytest.raises(InputError, match="--html: "):
        save(seen, tmp_path / name)


@in_a_browser
def test_page_in_a_browser_draws_all_and_shows_the_head_that_its_address_names(made, seen, tmp_path):
    model, _ = made
    texts = seen.texts | dict(zip(seen.ids, HOSTILE, strict=False))
    found = dataclasses.replace(seen, texts=texts, name=HOSTILE[0])
    told, document = browse(page(found), tmp_path, "#layer=1&head=2&token=3")
    weights = model.trace(torch.tensor([seen.ids]), attention={1: 2})["decoder.1.attention.probs"][0, 0, 3]
    tokens = len(seen.ids)
    assert "taken" not in told
    assert "error" not in told
    assert {name: told[name] for name in ("ready", "selected", "row", "tokens", "cells", "heads")} == {
        "ready": "yes", "selected": "1.2", "row": "3", "tokens": str(tokens), "cells": str(3 * tokens), "heads": "12",
    }  # fmt: skip
    assert int(told["most"]) == int(weights.argmax())
    assert float(told["sum"]) == pytest.approx(1, abs=0.03)
    assert len(re.findall(r'<button[^>]* aria-pressed="true"', document)) == 3, (
        "a token above, a token that looks, a head"
    )
    assert f"<h1>{html_text.escape(HOSTILE[0], quote=False)}</h1>" in document


@in_a_browser
def test_page_in_a_browser_shows_cross_attention_of_an_encoder_decoder(tmp_path):
    found = trace_prompt(*small_run(tmp_path / "run", {"topology": "encoder-decoder"}), TEXT, name="small")
    names = [
        "encoder 0",
        "encoder 1",
        "decoder 0, attention",
        "decoder 0, cross",
        "decoder 1, attention",
        "decoder 1, cross",
    ]
    assert [weights.name for weights in found.attention] == names
    assert found.source is not None
    assert found.ids[0] == 1
    assert levels(found.data()["attention"][3], len(found.ids), len(found.source)).any()
    told, document = browse(page(found), tmp_path, "#layer=3&head=5&token=0")
    assert (told["ready"], told["selected"], told["row"], told["heads"]) == ("yes", "3.5", "0", "36")
    assert 0 <= int(told["most"]) < len(found.source)
    assert '<option value="3">decoder 0, cross</option>' in document


@pytest.mark.skipif(not STORIES.is_dir(), reason="the checkpoint stories260K is not beside this repository")
def test_trace_of_a_real_checkpoint_expects_what_it_learned():
    found = trace_prompt(
        af.load(STORIES), af.tokenizer(STORIES), "Once upon a time, there was a little", name="stories260K"
    )
    # Its tokenizer files put no bos before a text.
    assert found.texts[found.ids[0]] == " Once"
    best = [found.texts[int(each[0][0])] for each in found.layers[-1].top]
    assert best[:3] == [" upon", " a", " time"]


def test_trace_keeps_the_layer_that_is_shown_first_where_others_are_left_out(made, monkeypatch):
    monkeypatch.setattr(prompt, "ROOM", 100)
    found = trace_prompt(*made, TEXT, name="small", layer=1, head=1)
    assert ([weights.name for weights in found.attention], found.first) == (["layer 1"], (0, 1))


def test_trace_of_an_encoder_decoder_shows_a_layer_of_the_decoder_first(tmp_path):
    found = trace_prompt(
        *small_run(tmp_path, {"topology": "encoder-decoder", "ids.start": 0}), TEXT, name="small", layer=1
    )
    assert found.attention[found.first[0]].name == "decoder 1, attention"


@in_a_browser
def test_page_opens_at_the_layer_and_the_head_that_were_asked_for(made, tmp_path):
    told, _ = browse(page(trace_prompt(*made, TEXT, name="small", layer=1, head=1)), tmp_path)
    assert (told["ready"], told["selected"]) == ("yes", "1.1")
