"""`anyformer chat`: talk with a model, one line at a time.

anyformer chat path/to/model
anyformer chat path/to/model --system "Answer in one sentence." --temperature 0.6
anyformer chat runs/quickstart --plain
echo "What is a Transformer?" | anyformer chat path/to/model --seed 1
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from anyformer.cli.generate import add_sampling, sampling
from anyformer.cli.model import FOLDER, check_folder, working
from anyformer.cli.parser import Command, add_ignore_keys, flag, option
from anyformer.cli.terminal import errors, say
from anyformer.errors import AnyformerError, InputError, file_fault, nearest

if TYPE_CHECKING:
    from anyformer.generation.chat.conversation import Chat

PROMPT = "> "
HELP = """\
/reset          forget what was said
/system TEXT    set the system's message, and forget what was said; without a text: no such message
/save FILE      write the conversation as JSON
/help           this
/quit           leave (so does Ctrl-D); Ctrl-C stops an answer
"""


def _arguments(parser: argparse.ArgumentParser) -> None:
    option(parser, "model", FOLDER, "MODEL")
    option(parser, "--system", "what the model is told before the conversation", "TEXT")
    words = "a transcript of 'User: ...' and 'Assistant: ...', for a base model without a chat template"
    flag(parser, "--plain", words)
    add_ignore_keys(parser)
    add_sampling(parser, new=512)


def _run(given: argparse.Namespace) -> int:
    """Read lines and answer them until there are no more."""
    if given.system is not None and not given.system.strip():
        raise InputError("--system: is empty; give a text, or leave it out")
    folder = check_folder(given.model)
    with working(f"reading {given.model}"):
        from anyformer.generation.chat.conversation import BASE, Chat
        from anyformer.generation.chat.template import read_template
        from anyformer.generation.pipelines.source import open_source

        if read_template(folder) is None and not given.plain:
            raise InputError(
                f"{given.model}: {BASE}. Continue texts with anyformer generate, or try a plain transcript with --plain"
            )
        source = open_source(folder, None, device=None, dtype=None, labels=None, ignore_keys=given.ignore_keys)
        session = Session(Chat(source, system=given.system, plain=given.plain), given)
    if session.interactive:
        errors().print(f"{given.model}: /help for commands, Ctrl-D to leave", style="dim", markup=False)
    while (line := session.read()) is not None and line.split()[:1] != ["/quit"]:
        session.handle(line)
    return 0


class Session:
    """A conversation at a terminal, or with lines from a pipe."""

    def __init__(self, chat: Chat, given: argparse.Namespace) -> None:
        self.chat, self.given = chat, given
        self.interactive = sys.stdin.isatty() and sys.stdout.isatty()
        self.answered = 0
        self.commands: dict[str, Callable[[str], object]] = {
            "/reset": self._reset, "/system": self._system, "/save": self._save,
            "/help": lambda _: sys.stderr.write(HELP), "/quit": lambda _: None,
        }  # fmt: skip
        if self.interactive:
            # Arrow keys and earlier lines, where the system offers them.
            with contextlib.suppress(ImportError):
                import readline  # noqa: F401

    def read(self) -> str | None:
        """The next line; None: there is no more."""
        while True:
            try:
                if self.interactive:
                    return input(PROMPT)
                line = sys.stdin.readline()
                return line.rstrip("\r\n") if line else None
            except EOFError:
                if self.interactive:
                    say("\n")
                return None
            except KeyboardInterrupt:
                if not self.interactive:
                    raise
                # What was typed is thrown away; the conversation goes on.
                say("\n")
                self._notify("Ctrl-D or /quit leaves")

    def handle(self, line: str) -> None:
        """Answer one line, or do what it commands."""
        name, _, rest = line.strip().partition(" ")
        if name.startswith("/"):
            unknown = f"{name!r} is no command{nearest(name, self.commands)}"
            self.commands.get(name, lambda _: self._notify(unknown))(rest.strip())
        elif name:
            try:
                self._answer(line)
            except AnyformerError as error:
                # In a pipe nobody is there to try again.
                if not self.interactive:
                    raise
                self._notify(str(error))

    def _answer(self, line: str) -> None:
        began = time.perf_counter()
        options = sampling(self.given)
        if "seed" in options:
            # The same seed for each answer would make like questions draw alike.
            options["seed"] += self.answered
        self.answered += 1
        pieces = self.chat.say(line, max_new_tokens=self.given.max_new_tokens, **options)
        if self.chat.forgotten:
            turns = "turn" if self.chat.forgotten == 1 else f"{self.chat.forgotten} turns"
            self._notify(f"the conversation is longer than the model can read: forgot the oldest {turns}")
        try:
            for piece in pieces:
                say(piece)
            say("\n")
        except KeyboardInterrupt:
            say("\n")
            if not self.interactive:
                raise
            self._notify("stopped")
            return
        finally:
            getattr(pieces, "close", lambda: None)()
        if self.interactive:
            seconds = time.perf_counter() - began
            self._notify(f"{self.chat.count} tokens, {self.chat.count / seconds:.1f} tokens/s")

    def _reset(self, _: str) -> None:
        self.chat.reset()
        self._notify("forgot what was said")

    def _system(self, text: str) -> None:
        self.chat.system = text or None
        self.chat.reset()
        self._notify("set the system's message" if text else "there is no system's message now")

    def _save(self, name: str) -> None:
        if not name:
            return self._notify("/save: give the name of a file, e.g. /save chat.json")
        said = f"wrote {len(self.chat.messages)} messages into {name}"
        try:
            # Nothing that is there is overwritten.
            with Path(name).expanduser().open("x", encoding="utf-8") as file:
                file.write(json.dumps(self.chat.messages, indent=2, ensure_ascii=False) + "\n")
        except FileExistsError:
            said = f"/save: {name} is there already; give another name"
        except OSError as error:
            said = f"/save: {file_fault(error, name)}"
        return self._notify(said)

    def _notify(self, text: str) -> None:
        """A word of ours, apart from what the model says."""
        sys.stdout.flush()
        if self.interactive:
            errors().print(text, style="dim", markup=False)
        else:
            sys.stderr.write(f"anyformer: {text}\n")


COMMAND = Command("chat", "talk with a model that was trained to answer", __doc__, _arguments, _run)
