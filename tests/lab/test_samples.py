"""What a model in training says."""

import pytest

from anyformer.cli.main import main
from anyformer.lab.train_run import sample_text
from anyformer.train.components import Components
from anyformer.train.config import Config

WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
SPEC = {"width": 16, "depth": 1, "context": 32, "attention": {"heads": 2}}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Tokens of a text and of pairs."""
    place = tmp_path_factory.mktemp("speech")
    (place / "text.txt").write_text("".join(f"{a} {b} and more\n" for a in WORDS for b in WORDS))
    (place / "pairs.tsv").write_text("".join(f"the {a} {b}\tle {b} {a}\n" for a in WORDS for b in WORDS))
    common = ["--hold-out", "0.2", "--json", "--train"]
    assert main(["tokenize", str(place / "text.txt"), "--lines", *common, "chars", "--out", str(place / "text")]) == 0
    assert (
        main(["tokenize", str(place / "pairs.tsv"), *common, "bpe", "--vocab", "300", "--out", str(place / "pairs")])
        == 0
    )
    return place


@pytest.fixture
def ready(tmp_path, folders):
    made = []

    def open_one(data="text", rows="packed", objective="causal", prompt="", **spec):
        config = Config.from_data({
            "model": {"spec": SPEC | spec}, "data": {"folder": str(folders / data), "rows": rows},
            "objective": {"kind": objective}, "stages": [{"steps": 2, "length": 32, "batch": 2}],
            "run": {"folder": str(tmp_path / f"run{len(made)}"), "prompt": prompt, "sample_tokens": 6},
        })  # fmt: skip
        made.append(Components(config))
        made[-1].open()
        return made[-1]

    yield open_one
    for setup in made:
        setup.close()


def test_sample_text_goes_on_from_the_prompt_and_says_the_same_again(ready):
    setup = ready(prompt="one two")
    said = sample_text(setup, 1)
    assert said.startswith("one two")
    assert len(said) == len("one two") + 6
    assert sample_text(setup, 2) == said


def test_sample_text_without_a_prompt_begins_with_a_held_out_text_or_by_itself(ready):
    setup = ready()
    begun = setup.tokenizer.decode(setup.held_out.read("tokens", 0, 0, 8).tolist())
    assert setup.spec.ids.bos is not None or sample_text(setup, 1).startswith(begun)
    assert sample_text(setup, 1)


@pytest.mark.parametrize("rows", ["packed", "padded"])
def test_sample_text_of_an_encoder_decoder_answers_one_held_out_source(ready, rows):
    setup = ready("pairs", rows=rows, objective="translate", topology="encoder-decoder")
    source, arrow, _ = sample_text(setup, 1).partition("\n-> ")
    assert arrow
    sources = [setup.tokenizer.decode(setup.held_out.read("source", i).tolist()) for i in range(len(setup.held_out))]
    assert source in sources


def test_sample_text_of_an_encoder_decoder_answers_the_prompt(ready):
    setup = ready("pairs", objective="translate", topology="encoder-decoder", prompt="the one")
    assert sample_text(setup, 1).startswith("the one\n-> ")


def test_sample_text_of_a_model_that_reads_numbers_or_only_reads_is_nothing(ready):
    setup = ready()
    setup.tokenizer = None
    assert sample_text(setup, 1) == ""
