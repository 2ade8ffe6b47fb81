"""anyformer generate: what it prints, on which stream, and how it ends."""

import io
import json
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

import anyformer as af
from anyformer.cli.main import main
from tests.cli.small_run import small_run
from tests.data.test_tokenizer import STORIES, needs_stories

ROOT = Path(af.__file__).parents[1]
COMMAND = [sys.executable, "-m", "anyformer", "generate"]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    small_run(folder)
    return folder


def expected(folder: Path, prompt: str, new: int, **options) -> str:
    model, tokenizer = af.load(folder), af.tokenizer(folder)
    ids = [0, *tokenizer.encode(prompt)]
    found = af.generate(model, torch.tensor([ids]), max_new_tokens=new, **options)[0].tolist()
    return tokenizer.decode(found)


def test_generate_prints_the_prompt_and_its_continuation_and_ends_the_line(run, capsys):
    assert main(["generate", str(run), "the cat", "--greedy", "--max-new-tokens", "12"]) == 0
    out, err = capsys.readouterr()
    assert out == expected(run, "the cat", 12) + "\n"
    assert out.startswith("the cat")
    assert err == ""


def test_generate_draws_with_the_usual_settings_and_repeats_for_a_seed(run, capsys):
    want = expected(run, "the", 20, temperature=0.8, top_p=0.95, seed=3) + "\n"
    for _ in range(2):
        assert main(["generate", str(run), "the", "--seed", "3", "--max-new-tokens", "20"]) == 0
        assert capsys.readouterr().out == want
    hot = ["--temperature", "1.5", "--top-k", "9", "--top-p", "1", "--seed", "3", "--max-new-tokens", "20"]
    assert main(["generate", str(run), "the", *hot]) == 0
    want = expected(run, "the", 20, temperature=1.5, top_k=9, top_p=1.0, seed=3) + "\n"
    assert capsys.readouterr().out == want


def test_generate_without_a_prompt_begins_with_bos(run, capsys):
    assert main(["generate", str(run), "--greedy", "--max-new-tokens", "9"]) == 0
    assert capsys.readouterr().out == expected(run, "", 9) + "\n"


def test_generate_reads_the_prompt_from_standard_input_without_the_end_of_its_line(run, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"the\ndog\n")))
    assert main(["generate", str(run), "-", "--greedy", "--max-new-tokens", "9"]) == 0
    assert capsys.readouterr().out == expected(run, "the\ndog", 9) + "\n"


def test_generate_as_json_is_one_document(run, capsys):
    assert main(["generate", str(run), "the", "--greedy", "--max-new-tokens", "7", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["prompt"] + answer["text"] == expected(run, "the", 7)
    assert (answer["tokens"], answer["reason"]) == (7, "length")
    assert answer["tokens_per_second"] > 0
    assert answer["prompt_tokens"] == 2
    assert 0 < answer["first_token_seconds"] <= answer["seconds"] + 0.001
    assert answer["decode_tokens_per_second"] > 0


def test_generate_stops_at_the_end_of_a_text(tmp_path, capsys):
    model, tokenizer = small_run(tmp_path)
    ids = torch.tensor([[0, *tokenizer.encode("the")]])
    tokens = af.generate(model, ids, max_new_tokens=9, stop=())[0, ids.shape[1] :].tolist()
    af.save(af.load(tmp_path), tmp_path)
    end = tokens[4]
    first = tokens.index(end)
    ending = af.build(model.spec.vary({"ids.eos": [end]}))
    ending.load_state_dict(model.state_dict())
    af.save(ending, tmp_path)
    assert main(["generate", str(tmp_path), "the", "--greedy", "--json", "--max-new-tokens", "9"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["tokens"], answer["reason"]) == (first + 1, "stop")


@pytest.mark.parametrize("position", ["rope", "learned"])
def test_generate_beyond_the_room_gives_what_fits_and_says_so(tmp_path, capsys, position):
    small_run(tmp_path, {"context": 16, "position": {"kind": position}})
    length = len(af.tokenizer(tmp_path).encode("the cat")) + 1
    assert main(["generate", str(tmp_path), "the cat", "--greedy", "--max-new-tokens", "99"]) == 0
    out, err = capsys.readouterr()
    assert out == expected(tmp_path, "the cat", 16 - length) + "\n"
    assert err == (
        f"anyformer: up to 99 tokens, but the model has room for {16 - length} after {length}: it is made for 16\n"
    )


def test_generate_of_an_encoder_decoder_prints_only_its_answer(tmp_path, capsys):
    model, tokenizer = small_run(tmp_path, {"topology": "encoder-decoder", "ids": {"start": 0, "eos": [0]}})
    assert main(["generate", str(tmp_path), "the cat", "--greedy", "--max-new-tokens", "8"]) == 0
    found = af.generate(model, torch.tensor([tokenizer.encode("the cat")]), max_new_tokens=8)
    assert capsys.readouterr().out == tokenizer.decode(found[0].tolist()) + "\n"


def test_generate_on_a_terminal_tells_the_speed_and_hides_commands_to_the_terminal(run, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main(["generate", str(run), "a\x1b[2J\tb\n", "--greedy", "--max-new-tokens", "5"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("a\ufffd[2J\tb\n")
    assert "\x1b" not in out
    assert "5 tokens, " in err
    assert "tokens/s" in err


def test_generate_in_a_narrow_encoding_prints_what_it_can(run, monkeypatch):
    narrow = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", narrow)
    assert main(["generate", str(run), "é", "--greedy", "--max-new-tokens", "2"]) == 0
    assert narrow.buffer.getvalue().startswith(b"?")


def test_generate_takes_the_options_of_generate(run, capsys):
    options = ["--repetition-penalty", "1.4", "--no-repeat-ngram-size", "2", "--min-new-tokens", "3", "--min-p", "0.02",
               "--typical-p", "0.9", "--presence-penalty", "0.5", "--frequency-penalty", "-0.5", "--seed", "4"]  # fmt: skip
    assert main(["generate", str(run), "the", "--max-new-tokens", "12", *options]) == 0
    want = expected(
        run, "the", 12, temperature=0.8, top_p=0.95, repetition_penalty=1.4, no_repeat_ngram_size=2, min_new_tokens=3,
        min_p=0.02, typical_p=0.9, presence_penalty=0.5, frequency_penalty=-0.5, seed=4,
    )  # fmt: skip
    assert capsys.readouterr().out == want + "\n"


def test_generate_ends_before_a_stop_text(run, capsys):
    whole = expected(run, "the", 30)
    stop = whole[12:14]
    argv = ["generate", str(run), "the", "--greedy", "--max-new-tokens", "30", "--stop", "zz", "--stop", stop]
    assert main(argv) == 0
    cut = whole[: whole.index(stop, 3)]
    assert capsys.readouterr().out == cut + "\n"
    assert main([*argv, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["text"], answer["reason"]) == (cut[3:], "stop")


def test_generate_with_beams_gives_what_the_search_finds(run, capsys):
    assert main(["generate", str(run), "the", "--num-beams", "3", "--max-new-tokens", "9"]) == 0
    assert capsys.readouterr().out == expected(run, "the", 9, num_beams=3) + "\n"
    status, err = failed(capsys, str(run), "the", "--num-beams", "3", "--temperature", "1")
    assert (status, "--num-beams: a search draws nothing" in err) == (2, True)


def test_generate_of_several_texts_prints_them_one_after_the_other(run, capsys):
    argv = ["generate", str(run), "the", "--n", "3", "--seed", "2", "--max-new-tokens", "9"]
    model, tokenizer = af.load(run), af.tokenizer(run)
    ids = torch.tensor([[0, *tokenizer.encode("the")]])
    made = af.generate(model, ids, max_new_tokens=9, temperature=0.8, top_p=0.95, seed=2, n=3)
    texts = [tokenizer.decode(row.tolist()) for row in made]
    assert len(set(texts)) == 3
    assert main(argv) == 0
    assert capsys.readouterr().out == "---\n".join(text + "\n" for text in texts)
    assert main([*argv, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert ["the" + each["text"] for each in answer["answers"]] == texts
    assert [each["tokens"] for each in answer["answers"]] == [9, 9, 9]


def test_generate_warns_of_an_option_without_effect(run, capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert main(["generate", str(run), "the", "--greedy", "--top-k", "5", "--max-new-tokens", "2"]) == 0
    assert "top_k has no effect without a draw" in capsys.readouterr().err


def failed(capsys, *arguments: str) -> tuple[int, str]:
    """Exit status and the one line of the error."""
    try:
        status = main(["generate", *arguments])
    except SystemExit as stop:
        status = stop.code
    out, err = capsys.readouterr()
    assert out == ""
    return status, err


def test_generate_names_what_is_missing_in_one_line(run, tmp_path, capsys):
    status, err = failed(capsys, str(tmp_path / "nowhere"), "x")
    assert (status, err.count("\n")) == (2, 1)
    assert "nowhere: there is no such folder; give a trained model: the folder" in err
    status, err = failed(capsys, str(tmp_path), "x")
    assert (status, err.count("\n")) == (2, 1)
    assert "holds no model" in err
    status, err = failed(capsys, str(run / "spec.toml"), "x")
    assert (status, err.count("\n")) == (2, 1)
    assert "is a file" in err
    small_run(tmp_path / "bare")
    (tmp_path / "bare" / "tokenizer.json").unlink()
    status, err = failed(capsys, str(tmp_path / "bare"), "x")
    assert (status, err.count("\n")) == (2, 1)
    assert "there is no tokenizer.json in it" in err


def test_generate_refuses_an_empty_prompt(run, capsys, monkeypatch):
    status, err = failed(capsys, str(run), "")
    assert (status, err.count("\n")) == (2, 1)
    assert "PROMPT: is empty" in err
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    status, err = failed(capsys, str(run), "-")
    assert (status, err) == (2, "anyformer: standard input: is empty\n")


def test_generate_refuses_a_model_that_can_not_begin(tmp_path, capsys):
    small_run(tmp_path / "a", {"ids": {"eos": [0]}})
    status, err = failed(capsys, str(tmp_path / "a"))
    assert (status, err.count("\n")) == (2, 1)
    assert "no bos token to begin with" in err
    small_run(tmp_path / "b", {"topology": "encoder-decoder", "ids": {"start": 0}})
    status, err = failed(capsys, str(tmp_path / "b"))
    assert (status, err.count("\n")) == (2, 1)
    assert "an encoder-decoder answers a text" in err
    small_run(tmp_path / "c", {"topology": "encoder"})
    status, err = failed(capsys, str(tmp_path / "c"), "x")
    assert (status, err.count("\n")) == (2, 1)
    assert "an encoder reads a text at once" in err


def test_generate_refuses_a_prompt_that_leaves_no_room(tmp_path, capsys):
    small_run(tmp_path, {"context": 4})
    status, err = failed(capsys, str(tmp_path), "zzzzzzzz")
    assert (status, err) == (2, "anyformer: PROMPT: 9 tokens fill the 4 that this model is made for; shorten it\n")


def test_generate_of_damaged_weights_fails(tmp_path, capsys):
    small_run(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    status, err = failed(capsys, str(tmp_path), "x")
    assert status == 1
    assert "model.safetensors: is damaged" in err


def test_generate_of_weights_that_are_no_numbers_ends_the_line_and_says_so(tmp_path, capsys):
    model, _ = small_run(tmp_path)
    with torch.no_grad():
        model.head.weight.fill_(float("nan"))
    af.save(model, tmp_path)
    assert main(["generate", str(tmp_path), "x"]) == 2
    out, err = capsys.readouterr()
    assert out == "x\n"
    assert "logits are NaN" in err


@pytest.mark.parametrize(
    "options",
    [
        ["--temperature", "-1"], ["--temperature", "nan"], ["--top-p", "0"], ["--top-p", "1.5"], ["--top-k", "0"],
        ["--seed", "-1"], ["--max-new-tokens", "0"], ["--greedy", "--temperature", "0.5"], ["--max-tokens", "5"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_generate_refuses_options_out_of_bounds(run, capsys, options):
    status, err = failed(capsys, str(run), "x", *options)
    assert status == 2
    assert options[-2] if options[0] == "--greedy" else options[0] in err


def test_generate_as_a_process_streams_and_leaves_errors_to_the_other_stream(run):
    done = subprocess.run(
        [*COMMAND, str(run), "the", "--greedy", "--max-new-tokens", "99"],
        capture_output=True, cwd=ROOT, check=False, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0
    assert done.stdout.decode() == expected(run, "the", 62) + "\n"
    assert done.stderr.decode().startswith("anyformer: up to 99 tokens, but")
    assert b"\x1b" not in done.stdout + done.stderr


def test_generate_stopped_by_control_c_ends_the_line(launch, tmp_path):
    small_run(tmp_path, {"context": 100_000})
    process = launch(
        [*COMMAND, str(tmp_path), "the", "--max-new-tokens", "90000"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT,
    )  # fmt: skip
    first = process.stdout.read(20)
    process.send_signal(signal.SIGINT)
    rest, err = process.communicate(timeout=900)
    assert process.returncode == 130
    assert first.startswith(b"the")
    # The text may have had its last line end already when it was stopped.
    assert (first + rest).endswith(b"\n")
    assert err == b"anyformer: stopped\n"


@needs_stories
def test_generate_from_a_published_model_tells_its_known_story(capsys):
    known = json.loads((STORIES / "greedy.json").read_text(encoding="utf-8"))
    assert main(["generate", str(STORIES), "--greedy", "--max-new-tokens", "200"]) == 0
    assert capsys.readouterr().out == known["text"] + "\n"
