"""`anyformer serve`: what it is told, what it refuses in one line, and that it leaves nothing behind."""

import contextlib
import dataclasses
import http.client
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import anyformer as af
from anyformer.cli.main import main
from anyformer.errors import InputError
from anyformer.serve.config import Limits, ServeConfig
from anyformer.serve.engine.load import load_engine
from tests.cli.command import Ran, run
from tests.cli.small_run import small_run
from tests.specs.small import small
from tests.test_import import fresh

pytest.importorskip("uvicorn")
pytest.importorskip("httptools")

ROOT = Path(af.__file__).parents[1]
PICTURES = {
    "topology": "encoder", "vocab": 0, "context": 5, "embed": {"kind": "patches", "image": 8, "patch": 4},
    "head": {"kind": "sequence", "labels": 3},
}  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A small decoder with learned positions, so that it has no more of them than its context."""
    folder = tmp_path_factory.mktemp("served") / "tiny"
    small_run(folder, {"context": 64, "position.kind": "learned"})
    return folder


@pytest.fixture(autouse=True)
def left_as_found(monkeypatch):
    """No key of the machine's own, and nothing is left behind: no thread, and no handler of a log."""
    monkeypatch.delenv("ANYFORMER_API_KEY", raising=False)
    before = set(threading.enumerate())
    loggers = [logging.getLogger(name) for name in ("anyformer.serve", "uvicorn.error")]
    kept = [(each, each.handlers, each.propagate, each.level) for each in loggers]
    yield
    for each, handlers, propagate, level in kept:
        each.handlers, each.propagate = handlers, propagate
        each.setLevel(level)
    assert set(threading.enumerate()) <= before


def refused(capsys, *argv: str) -> str:
    """The one line in which a command line is refused."""
    ran: Ran = run(capsys, "serve", *argv)
    assert (ran.status, ran.out) == (2, ""), ran.err
    assert ran.err.startswith("anyformer: ")
    assert ran.err.count("\n") == 1, ran.err
    return ran.err


def test_serve_without_a_model_and_without_runs_says_how_to_get_one(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    line = refused(capsys)
    assert "MODEL: is missing" in line
    assert "no trained model in runs/" in line
    assert line.endswith("or train one: anyformer quickstart\n")


def test_serve_without_a_model_offers_the_newest_run_first(capsys, tmp_path, monkeypatch):
    for age, name in enumerate(("new", "old", "older")):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        (folder / "spec.toml").touch()
        os.utime(folder / "spec.toml", (1e9 - age, 1e9 - age))
    (tmp_path / "runs" / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    ran = run(capsys, "serve")
    assert (ran.status, ran.out) == (2, "")
    first, *offers = ran.err.splitlines()
    assert first == "anyformer: MODEL is missing; trained models here, the newest first:"
    assert offers == [f"  anyformer serve runs/{name}" for name in ("new", "old", "older")]


def test_serve_help_loads_neither_torch_nor_uvicorn():
    code = (
        "import contextlib, io, sys\nfrom anyformer.cli.main import main\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):\n    main(['serve', '--help'])\n"
        "assert not {'uvicorn', 'httptools', 'uvloop', 'asyncio', 'anyformer.serve.server'} & sys.modules.keys()"
    )
    assert fresh(code) == []


def test_serve_of_no_model_says_what_is_there_instead(capsys, tmp_path, model):
    assert "nowhere: there is no such folder; give a trained model" in refused(capsys, str(tmp_path / "nowhere"))
    assert "holds no model" in refused(capsys, str(tmp_path))
    assert "is a file" in refused(capsys, str(model / "spec.toml"))
    assert "gpt2-small is a preset: an architecture without weights" in refused(capsys, "gpt2-small")
    assert "nowhere: there is no such folder" in refused(capsys, str(model), "--draft", str(tmp_path / "nowhere"))


def test_serve_of_a_model_without_a_tokenizer_is_refused(capsys, tmp_path):
    small_run(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    assert "there is no tokenizer.json in it" in refused(capsys, str(tmp_path), "--port", "0", "--threads", "1")


def test_serve_of_a_model_that_reads_pictures_is_refused(capsys, tmp_path):
    af.save(af.build(small(PICTURES)), tmp_path)
    line = refused(capsys, str(tmp_path), "--port", "0", "--threads", "1")
    assert "this model reads pixel_values" in line
    assert "give a model of texts" in line


def test_serve_of_damaged_weights_fails_in_one_line(capsys, tmp_path):
    small_run(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    ran = run(capsys, "serve", str(tmp_path), "--port", "0", "--threads", "1")
    assert (ran.status, ran.out, ran.err.count("\n")) == (1, "", 1)
    assert "model.safetensors: is damaged" in ran.err


def test_serve_on_a_port_in_use_says_so_before_the_model_is_read(capsys, model, monkeypatch):
    monkeypatch.setattr("anyformer.serve.engine.client.open_engine", lambda config: pytest.fail("it was read"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = refused(capsys, str(model), "--port", str(port))
    assert f"127.0.0.1:{port}: " in line
    assert "something else listens there; give another --port, or 0" in line


def test_serve_that_fails_gives_its_port_back(capsys, model):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    refused(capsys, str(model), "--port", str(port), "--max-model-len", "65", "--threads", "1")
    with socket.create_server(("127.0.0.1", port)):
        pass


@pytest.mark.parametrize("room", [0, 20_000])
def test_serve_without_memory_for_one_sequence_says_how_much_there_is(capsys, model, monkeypatch, room: int):
    monkeypatch.setattr("anyformer.serve.engine.load.free", lambda device: room)
    line = refused(capsys, str(model), "--port", "0", "--threads", "1")
    assert "--max-model-len: one sequence of 64 tokens takes" in line
    assert "can be used on cpu; " in line
    if not room:
        assert "take a smaller model, or another --dtype" in line
        return
    advised = int(re.search(r"give --max-model-len (\d+) or less", line)[1])
    config = ServeConfig(model=str(model), max_model_len=advised, threads=1, device="cpu")
    assert load_engine(config).facts.max_model_len == advised
    with pytest.raises(InputError, match="one sequence of"):
        load_engine(dataclasses.replace(config, max_model_len=advised + 1))


@pytest.mark.parametrize("host", ["0.0.0.0", "", "::"])
def test_serve_for_everybody_needs_a_key(capsys, model, monkeypatch, host: str):
    monkeypatch.setenv("ANYFORMER_API_KEY", "")
    line = refused(capsys, str(model), "--port", "0", "--host", host)
    assert (
        "everybody who reaches this machine could use the server; give it API keys (--api-key-file, or $ANYFORMER_API_KEY)"
        in line
    )


def test_serve_with_a_key_file_that_holds_none_is_refused(capsys, model, tmp_path, monkeypatch):
    keys = tmp_path / "keys"
    assert "can't be read" in refused(capsys, str(model), "--api-key-file", str(keys))
    keys.write_text("\n  \n# one a line\n  # so\n")
    assert "holds no key; write one in each line" in refused(capsys, str(model), "--api-key-file", str(keys))
    keys.write_bytes(b"\xff\xfe")
    assert "can't be read" in refused(capsys, str(model), "--api-key-file", str(keys))
    keys.write_text("right")
    monkeypatch.setenv("ANYFORMER_API_KEY", "left")
    line = refused(capsys, str(model), "--api-key-file", str(keys))
    assert "there is a key in $ANYFORMER_API_KEY too" in line
    assert "right" not in line
    assert "left" not in line
    monkeypatch.setenv("ANYFORMER_API_KEY", "  ")
    assert "an API key is empty" in refused(capsys, str(model))


WRONG = {
    "--tensor-parallel-size 2": "--tensor-parallel-size 2: the engine runs a model on one device",
    "--port 65536": "--port 65536: a port is a number from 0",
    "--host no.such.name.invalid": "--host no.such.name.invalid: is no address",
    "--cors-origins *": "--cors-origins *: give whole origins",
    "--cors-origins example.org": "there is no wildcard",
    "--cors-origins https://example.org/": "give whole origins",
    "--default temperature": "'temperature' is not NAME=VALUE with one of temperature, top_p",
    "--default temprature=1": "did you mean 'temperature'?",
    "--default temperature=hot": '--default: temperature: expected a number from 0 to 100, got "hot"',
    "--default temperature=101": "--default: temperature: 101 is not a number from 0 to 100",
    "--default top_p=NaN": "--default: top_p: NaN is not a number above 0 and at most 1",
    "--default-chat-template-kwargs {": "'{' is no JSON",
    "--default-chat-template-kwargs [1]": "'[1]' is no object of texts, numbers",
    '--default-chat-template-kwargs {"a":[]}': "is no object of texts, numbers",
    "--default max_tokens=0": "--default: max_tokens: 0 is not a whole number from 1",
    "--default seed=1.5": "--default: seed: expected a whole number",
    "--port 0 --device tpu": "--device: 'tpu' is ",
    "--port 0 --device cuda:99": "--device: 'cuda:99' is not there",
    "--port 0 --max-model-len 65": "--max-model-len: 65 tokens, and this model has 64 positions; give at most that",
    '--port 0 --default-chat-template-kwargs {"a":1}': "--default-chat-template-kwargs: a: this model has no chat template",
    "--port 0 --chat-template no-such-file": "--chat-template: no-such-file: can't be read",
}
"""Options, and what the one line about them says."""


@pytest.mark.parametrize("options", WRONG)
def test_serve_refuses_options_that_can_not_be(capsys, model, options: str):
    assert WRONG[options] in refused(capsys, str(model), "--threads", "1", *options.split())


def test_serve_refuses_variables_that_the_chat_template_lacks(capsys, model, tmp_path):
    template = tmp_path / "chat.jinja"
    template.write_text("{% for message in messages %}{{ message.content }}{{ tone }}{% endfor %}")
    line = refused(
        capsys, str(model), "--port", "0", "--threads", "1", "--chat-template", str(template),
        "--default-chat-template-kwargs", '{"tone": "calm", "enable_thinking": false}',
    )  # fmt: skip
    assert "--default-chat-template-kwargs: enable_thinking: the chat template has no such variable" in line


@pytest.mark.parametrize(
    "option", ["--max-num-seqs", "--max-queue", "--grace-seconds", "--max-body-bytes", "--threads"]
)
@pytest.mark.parametrize("value", ["0", "-1", "many", "nan"])
def test_serve_refuses_numbers_out_of_bounds(capsys, model, option: str, value: str):
    ran = run(capsys, "serve", str(model), option, value)
    assert (ran.status, ran.out) == (2, "")
    assert f"argument {option}: " in ran.err
    assert ran.err.endswith("see anyformer serve --help\n")


def told(monkeypatch, *argv: str) -> ServeConfig:
    """The settings that a command line comes to."""
    found: list[ServeConfig] = []
    monkeypatch.setattr("anyformer.serve.server.serve", lambda config, ready: found.append(config) or 0)
    assert main(["serve", *argv]) == 0
    return found[0]


def test_serve_without_options_is_the_default_config(monkeypatch, model):
    assert told(monkeypatch, str(model)) == ServeConfig(model=str(model))


def test_serve_options_are_those_of_the_config(monkeypatch, model, tmp_path):
    keys = tmp_path / "keys"
    keys.write_bytes("\ufeff one \r\n\n# two\nthr\u00e9e\n".encode())
    line = (
        f"--host 0.0.0.0 --port 8080 --api-key-file {keys} --served-model-name a --served-model-name b --device cuda:1 "
        f"--dtype bfloat16 --quantize int8 --draft {model} --max-num-seqs 7 --max-model-len 50 --num-blocks 9 "
        "--kv-cache-dtype int8 --max-num-batched-tokens 100 --batch-invariant --no-share --pooling cls "
        '--chat-template t --default-chat-template-kwargs {"a":false} '
        "--default temperature=0.5 --default max_tokens=7 --cors-origins https://a.org "
        "--cors-origins http://b.org:8 --allowed-hosts c.org --any-model --slots --no-metrics --front-end-process "
        "--threads 3 --log json --ignore-keys x,y.z --max-body-bytes 1 --max-head-bytes 2 --head-seconds 3 "
        "--body-seconds 4.5 --max-connections 5 --max-connections-per-address 6 --max-queue 7 --request-seconds 8 "
        "--grace-seconds 9 --max-prompts 10 --max-n 11"
    )
    assert told(monkeypatch, str(model), *line.split()) == ServeConfig(
        model=str(model), host="0.0.0.0", port=8080, keys=("one", "thr\u00e9e"), served_model_name=("a", "b"), device="cuda:1",
        dtype="bfloat16", quantize="int8", draft=str(model), max_num_seqs=7, max_model_len=50, num_blocks=9,
        kv_cache_dtype="int8", max_num_batched_tokens=100, batch_invariant=True, enable_prefix_caching=False, pooling="cls",
        chat_template="t", chat_template_kwargs=(("a", False),), defaults=(("temperature", 0.5), ("max_tokens", 7)),
        cors_origins=("https://a.org", "http://b.org:8"), allowed_hosts=("c.org",), any_model=True, slots=True,
        metrics=False, front_end_process=True, threads=3, log="json", ignore_keys=("x", "y.z"),
        limits=Limits(
            body_bytes=1, head_bytes=2, head_seconds=3.0, body_seconds=4.5, connections=5, connections_per_address=6, queue=7,
            request_seconds=8.0, grace_seconds=9.0, prompts=10, n=11,
        ),
    )  # fmt: skip


def test_serve_takes_a_key_from_the_environment(monkeypatch, model):
    monkeypatch.setenv("ANYFORMER_API_KEY", " secret\r\n")
    assert told(monkeypatch, str(model)).keys == ("secret",)


class Started:
    """`anyformer serve` as a process, once it has said where it is."""

    def __init__(self, launch, *argv: str, **environment: str) -> None:
        self.process = launch(
            [sys.executable, "-m", "anyformer", "serve", *argv, "--port", "0", "--threads", "1"], text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        )  # fmt: skip
        self.line = self.process.stderr.readline()
        self.port = int(re.search(r" at http://127\.0\.0\.1:(\d+) ", self.line)[1])

    def ask(self, method: str, path: str, body: object = None, **headers: str) -> tuple[int, dict]:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)) as connection:
            kind = {} if body is None else {"Content-Type": "application/json"}
            connection.request(method, path, None if body is None else json.dumps(body), kind | headers)
            got = connection.getresponse()
            return got.status, json.loads(got.read())

    def stop(self) -> tuple[int, str, str]:
        """Exit status, and what it wrote since it said where it is."""
        self.process.send_signal(signal.SIGINT)
        out, err = self.process.communicate(timeout=600)
        return self.process.returncode, out, err


def test_serve_as_a_process_says_where_it_is_and_logs_no_text_and_no_key(launch, model):
    started = Started(launch, str(model), "--log", "json", ANYFORMER_API_KEY="opensesame")
    assert started.line.endswith(" (a page, and the OpenAI API under /v1); Ctrl-C ends it\n")
    assert started.ask("GET", "/v1/models")[0] == 401
    body = {"prompt": "the cat", "max_tokens": 3, "ignore_eos": True}
    status, data = started.ask("POST", "/v1/completions?key=opensesame", body, Authorization="Bearer opensesame")
    assert (status, data["usage"]["completion_tokens"]) == (200, 3)
    status, out, err = started.stop()
    assert (status, out) == (0, "")
    refusal, served = map(json.loads, err.splitlines())
    assert (refusal["status"], refusal["error"]) == (401, "invalid_api_key")
    assert (served["status"], served["path"], served["method"]) == (200, "/v1/completions", "POST")
    assert "opensesame" not in err
    assert "cat" not in err


def test_serve_of_an_encoder_says_that_it_serves_embeddings(launch, tmp_path):
    small_run(tmp_path, {"topology": "encoder"})
    started = Started(launch, str(tmp_path), "--log", "none")
    assert " (an encoder, which continues no text: it serves /v1/embeddings); Ctrl-C ends it\n" in started.line
    status, data = started.ask("POST", "/v1/embeddings", {"input": "the cat"})
    assert (status, len(data["data"])) == (200, 1)
    status, data = started.ask("POST", "/v1/completions", {"prompt": "the cat"})
    assert (status, data["error"]["type"]) == (501, "not_supported_error")
    assert started.stop() == (0, "", "")
