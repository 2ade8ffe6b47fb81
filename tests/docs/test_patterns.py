"""docs/patterns.md: every kind is in it, the page and its pictures are up to date, and its examples can be built."""

import json

import pytest

from anyformer.specs import ModelSpec, Pattern
from tests.docs.fences import UPDATE, fences, read
from tests.docs.fences import maker as load_maker

NAME = "docs/patterns.md"
PAGE = read(NAME)


@pytest.fixture(scope="module")
def maker():
    return load_maker("patterns")


def test_patterns_page_is_up_to_date(maker):
    assert maker.page() == PAGE, UPDATE


@pytest.mark.parametrize("kind", Pattern.kinds())
def test_patterns_page_shows_every_kind(kind):
    assert f"### `{kind}`\n" in PAGE, UPDATE
    assert f"pictures/patterns/{kind}.png" in PAGE, UPDATE


@pytest.mark.parametrize("kind", Pattern.kinds())
def test_patterns_page_shows_a_kind_that_nobody_gave_an_example(maker, monkeypatch, kind):
    # Not delitem: what it puts back comes last, and the page follows the order.
    monkeypatch.setattr(maker, "KINDS", {each: text for each, text in maker.KINDS.items() if each != kind})
    assert f"### `{kind}`\n" in maker.page()
    assert maker.drawn(maker.kinds()[kind]).panels


def test_pictures_of_the_page_show_what_is_drawn_now(maker):
    from PIL import Image

    examples = maker.kinds() | maker.MODELS
    for name, example in examples.items():
        with Image.open(maker.PICTURES / maker.file_name(name)) as found:
            told = json.loads(found.info["Description"])
        assert told == json.loads(maker.written(maker.drawn(example))), f"{name}: {UPDATE}"
    assert {path.name for path in maker.PICTURES.iterdir()} == {maker.file_name(name) for name in examples}


def test_picture_is_saved_small_and_with_its_note(maker, tmp_path):
    from PIL import Image

    made = maker.drawn(maker.KINDS["block_sparse"])
    maker.save_picture(made, tmp_path / "x.png", note=maker.written(made))
    assert (tmp_path / "x.png").stat().st_size < 12_000
    with Image.open(tmp_path / "x.png") as found:
        assert found.info["Description"] == maker.written(made)
        # Two heads, side by side.
        assert found.size[0] > 1.8 * found.size[1]


@pytest.mark.parametrize("text", [fence.text for fence in fences(PAGE) if fence.language == "toml"])
def test_examples_of_the_page_are_read(text):
    causal = "prefix" not in text and ("causal" in text or "block_sparse" in text)
    heads = 12 if "12, 4096" in text else 4
    context = 64 if "64)" in text else 4096
    base = (
        f'topology = "{"decoder" if causal else "encoder"}"\nvocab = 32\nwidth = 48\ndepth = 2\ncontext = {context}\n'
    )
    spec = ModelSpec.from_toml(f"{base}{text}heads = {heads}\n")
    assert str(spec.attention.pattern) in text
