"""`anyformer chat`: lines in, answers out, commands, and how it ends."""

import io
import json
import os
import pty
import select
import signal
import sys
import time
from pathlib import Path

import pytest

import anyformer as af
from tests.cli.command import run
from tests.cli.small_run import small_run

ROOT = Path(af.__file__).parents[1]
TEMPLATE = "{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("chat")
    small_run(folder, {"context": 20_000})
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def talk(capsys, monkeypatch, text: str, *argv: str):
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    return run(capsys, "chat", *argv)


def test_chat_answers_each_line_of_a_pipe(model, capsys, monkeypatch):
    ran = talk(capsys, monkeypatch, "the cat\n\nthe dog\n", str(model), "--greedy", "--max-new-tokens", "5")
    assert (ran.status, ran.err) == (0, "")
    pipe = af.pipeline("text-generation", model)
    chat = [{"role": "user", "content": "the cat"}]
    first = pipe(chat, max_new_tokens=5)[0]["generated_text"]
    second = pipe([*first, {"role": "user", "content": "the dog"}], max_new_tokens=5)[0]["generated_text"]
    assert ran.out == f"{first[-1]['content']}\n{second[-1]['content']}\n"


def test_chat_draws_the_same_for_a_seed_and_otherwise_for_each_answer(model, capsys, monkeypatch):
    argv = (str(model), "--seed", "3", "--temperature", "2", "--max-new-tokens", "8")
    first = talk(capsys, monkeypatch, "the\n/reset\nthe\n", *argv)
    assert first.out == talk(capsys, monkeypatch, "the\n/reset\nthe\n", *argv).out
    whole = len(first.out) // 2
    assert first.out[:whole] != first.out[whole:]


def test_chat_commands_do_what_they_say(model, capsys, monkeypatch, tmp_path):
    place = tmp_path / "talk.json"
    lines = ["/system be brief", "the", f"/save {place}", f"/save {place}", "/save", f"/save {tmp_path}/no/a.json",
             "/help", "/rest", "/reset", "/system", "/quit", "never read"]  # fmt: skip
    ran = talk(capsys, monkeypatch, "\n".join(lines), str(model), "--greedy", "--max-new-tokens", "4")
    assert ran.status == 0
    said = json.loads(place.read_text(encoding="utf-8"))
    assert [m["role"] for m in said] == ["system", "user", "assistant"]
    assert ran.out == said[-1]["content"] + "\n"
    for line in (
        "set the system's message", f"wrote 3 messages into {place}", f"/save: {place} is there already",
        "/save: give the name of a file", "No such file or directory", "/quit           leave",
        "'/rest' is no command; did you mean '/reset'?", "forgot what was said", "there is no system's message now",
    ):  # fmt: skip
        assert line in ran.err


def test_chat_of_a_base_model_says_what_to_do_and_is_plain_if_asked(tmp_path, capsys, monkeypatch):
    small_run(tmp_path)
    ran = talk(capsys, monkeypatch, "the\n", str(tmp_path))
    assert ran.status == 2
    assert "has no chat template" in ran.err
    assert "try a plain transcript with --plain" in ran.err
    ran = talk(capsys, monkeypatch, "the\n", str(tmp_path), "--plain", "--greedy", "--max-new-tokens", "4")
    assert (ran.status, ran.err) == (0, "")
    assert ran.out.strip()


def test_chat_that_grows_too_long_tells_what_it_forgot(tmp_path, capsys, monkeypatch):
    small_run(tmp_path, {"context": 60})
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    ran = talk(capsys, monkeypatch, "the cat\n" * 4, str(tmp_path), "--greedy", "--max-new-tokens", "9")
    assert ran.status == 0
    assert "longer than the model can read: forgot the oldest 2 turns\n" in ran.err


@pytest.mark.parametrize(
    ("argv", "text", "message"),
    [
        ([], "", "the following arguments are required: MODEL"),
        (["nowhere"], "", "nowhere: there is no such folder"),
        (["MODEL", "--system", " "], "", "--system: is empty"),
        (["MODEL", "--temprature", "1"], "", "did you mean '--temperature'?"),
        (["MODEL", "--greedy", "--temperature", "1"], "", "not allowed with"),
        (["MODEL"], "zebra " * 20_000, "say it in fewer words"),
    ],
)
def test_chat_of_bad_input_says_what_is_wrong(model, capsys, monkeypatch, argv, text, message):
    ran = talk(capsys, monkeypatch, text, *(str(model) if each == "MODEL" else each for each in argv))
    assert ran.status == 2
    assert message in ran.err


def test_chat_with_a_template_that_never_ends_fails_and_says_so(tmp_path, capsys, monkeypatch):
    small_run(tmp_path)
    loop = "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}"
    (tmp_path / "chat_template.jinja").write_text(loop)
    ran = talk(capsys, monkeypatch, "the\n", str(tmp_path))
    assert ran.status == 2
    assert "the chat template runs without end" in ran.err


class Screen:
    """A terminal with a program on it."""

    def __init__(self, launch, *argv: str) -> None:
        self.handle, other = pty.openpty()
        environment = os.environ | {"PYTHONPATH": str(ROOT), "TERM": "dumb", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "anyformer", "chat", *argv]
        self.process = launch(
            command, stdin=other, stdout=other, stderr=other, env=environment, start_new_session=True, cwd=ROOT
        )
        os.close(other)
        self.seen = ""

    def until(self, text: str) -> str:
        """Wait for a text; all that was shown up to it."""
        end = time.monotonic() + 600
        while text not in self.seen:
            left = end - time.monotonic()
            assert left > 0, f"{text!r} did not come: {self.seen[-500:]!r}"
            if select.select([self.handle], [], [], left)[0]:
                self.seen += os.read(self.handle, 65536).decode(errors="replace")
        before, _, self.seen = self.seen.partition(text)
        return before

    def interrupt(self, text: str) -> None:
        """Ctrl-C, until a text comes: one that arrives just before the terminal is read is seen only at the next key."""
        for _ in range(12):
            self.process.send_signal(signal.SIGINT)
            end = time.monotonic() + 5
            while text not in self.seen and (left := end - time.monotonic()) > 0:
                if select.select([self.handle], [], [], left)[0]:
                    self.seen += os.read(self.handle, 65536).decode(errors="replace")
            if text in self.seen:
                break
        self.until(text)

    def type(self, text: str) -> None:
        os.write(self.handle, text.encode())

    def close(self) -> int:
        try:
            return self.process.wait(600)
        finally:
            os.close(self.handle)


def test_chat_on_a_terminal_survives_control_c_and_ends_with_control_d(launch, model):
    screen = Screen(launch, str(model), "--seed", "1", "--max-new-tokens", "15000")
    screen.until("/help for commands")
    screen.until("> ")
    screen.type("the cat\n")
    screen.until("the cat")
    # An answer is on its way once something stands in the line after the question.
    while len(screen.seen.strip()) < 5:
        screen.seen += os.read(screen.handle, 4096).decode(errors="replace")
    screen.process.send_signal(signal.SIGINT)
    screen.until("stopped")
    screen.until("> ")
    screen.interrupt("Ctrl-D or /quit leaves")
    screen.until("> ")
    screen.type("\x04")
    assert screen.close() == 0
