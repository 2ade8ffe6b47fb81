"""The commands on GGUF files: a run of ours becomes one, is explained, continued and made into folders again."""

import json

import pytest
import torch

import anyformer as af
from anyformer.cli.main import main
from anyformer.errors import AnyformerError
from anyformer.families.facts import differences
from anyformer.families.gguf.header import read_header
from anyformer.families.io import load
from tests.cli.command import run
from tests.cli.small_run import small_run

# The command shows a warning, unless it is an error here.
pytestmark = pytest.mark.filterwarnings("always:tokenizer. it splits texts")


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    place = tmp_path_factory.mktemp("gguf")
    small_run(place / "run", {"ids.start": None})
    (place / "run" / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages[0]['content'] }}"}))
    return place / "run"


@pytest.fixture(scope="module")
def file(source):
    made = source.parent / "run.gguf"
    assert main(["convert", str(source), str(made), "--format", "gguf", "--type", "f32"]) == 0
    return made


def test_gguf_file_of_a_run_says_what_the_run_does(source, file, capsys, tmp_path):
    for given in (["explain", "{}"], ["generate", "{}", "the cat", "--greedy", "--max-new-tokens", "8"]):
        mine, theirs = (run(capsys, *(word.format(place) for word in given)) for place in (file, source))
        assert (mine.status, theirs.status) == (0, 0)
        if given[0] == "generate":
            assert mine.out == theirs.out
    assert differences(load(file).spec, load(source).spec) == []
    for format in ("hf", "anyformer"):
        assert run(capsys, "convert", str(file), str(tmp_path / format), "--format", format).status == 0
        for a, b in zip(load(tmp_path / format).parameters(), load(source).parameters(), strict=True):
            assert torch.equal(a, b)
        text = "def main():\n    return 1"
        assert af.tokenizer(tmp_path / format).text_ids(text) == af.tokenizer(file).text_ids(text)
        assert "chat_template" in json.loads((tmp_path / format / "tokenizer_config.json").read_text())
    assert read_header(file).metadata["tokenizer.chat_template"] == "{{ messages[0]['content'] }}"


def test_pipeline_of_a_gguf_file_speaks_as_that_of_the_folder(source, file):
    mine, theirs = (af.pipeline("text-generation", str(place)) for place in (file, source))
    given = {"max_new_tokens": 6, "do_sample": False}
    assert mine("the cat", **given) == theirs("the cat", **given)


def test_converting_to_gguf_scores_what_was_written(source, capsys, tmp_path):
    (tmp_path / "text.txt").write_text("def main():\n    return 1\n" * 9)
    given = ["--format", "gguf", "--type", "q8_0", "--text", str(tmp_path / "text.txt"), "--json"]
    ran = run(capsys, "convert", str(source), str(tmp_path / "x.gguf"), *given)
    assert "llama.cpp will not" in " ".join(ran.err.split())
    found = ran.json
    assert (found["format"], found["quantized"], found["architecture"]) == ("gguf", "q8_0", "llama")
    assert found["written"]["perplexity"] == pytest.approx(found["before"]["perplexity"], rel=0.05)
    assert found["bytes"] == (tmp_path / "x.gguf").stat().st_size


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["{s}", "{t}/x.bin", "--format", "gguf"], "ends in .gguf"),
        (["{s}", "{t}/x.gguf", "--format", "gguf", "--dtype", "float32"], "--type"),
        (["{s}", "{t}/x", "--type", "f16"], "type: is for the format gguf"),
        (["{s}", "{t}/foreign.gguf", "--format", "gguf"], "is no GGUF file that can be read"),
        (["{f}", "{f}", "--format", "gguf"], "is the source itself"),
        (["{s}", "{t}/x.gguf", "--format", "gguf", "--quantize", "int8"], "leave out --format gguf"),
        (["{t}/missing.gguf", "{t}/x"], "missing.gguf"),
    ],
)
def test_conversion_that_cannot_be_is_refused(given, words, source, file, capsys, tmp_path):
    (tmp_path / "foreign.gguf").write_bytes(b"somebody's")
    ran = run(capsys, "convert", *(word.format(s=source, t=tmp_path, f=file) for word in given))
    assert ran.status != 0
    assert words.split()[-1] in " ".join((ran.out + ran.err).split())
    assert (tmp_path / "foreign.gguf").read_bytes() == b"somebody's"


def test_gguf_file_of_somebody_else_is_left_alone(file, source, capsys, tmp_path):
    foreign = tmp_path / "x.gguf"
    foreign.write_bytes(file.read_bytes().replace(b"\x09\0\0\0\0\0\0\0anyformer", b"\x09\0\0\0\0\0\0\0somebody!"))
    ran = run(capsys, "convert", str(source), str(foreign), "--format", "gguf")
    assert ran.status != 0
    assert "anyformer did not write it" in " ".join((ran.out + ran.err).split())


def test_folder_that_holds_a_gguf_file_says_so(file, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"], "model_type": "llama"}))
    (tmp_path / "x.gguf").write_bytes(file.read_bytes())
    with pytest.raises(AnyformerError, match=r"give the file itself: .*x\.gguf"):
        load(tmp_path)
