"""Chat templates: from a list of messages to the ids that a model was trained to answer.

A template is read from the model's own folder and from nowhere else. What a person writes can't speak for the program:
a special token that is spelled out in a message is text, while those that the template writes are tokens.
"""

import atexit
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from anyformer.data.tokenizer import Tokenizer, encoded, tokenizer
from anyformer.data.tokenizer_files import SETTINGS, special_tokens
from anyformer.errors import CapabilityError, CheckpointError, InputError
from anyformer.families.gguf.header import is_gguf, read_header
from anyformer.families.shards import read_json
from anyformer.files import inside
from anyformer.generation.confined import ConfinedProcess, Ended

PROGRAM = Path(__file__).with_name("render_worker.py")
PATIENCE = 2.0
"""Seconds after which a rendering is given up. Endless loops end much earlier, by their count of instructions."""


class Sandbox:
    """A child process that renders templates, which come with models of others, within limits of time, memory and steps."""

    def __init__(self) -> None:
        self._child = ConfinedProcess(PROGRAM)

    def render(self, template: str, names: Mapping[str, Any]) -> str:
        """The text of a template."""
        said = self._child.ask({"template": template, "names": dict(names)}, PATIENCE)
        if isinstance(said, Ended):
            why = f"took more than {PATIENCE:g} seconds" if said.late else "took more memory than it may"
            raise InputError(f"the chat template {why}, and was stopped; give the model's folder another one")
        if "missing" in said:
            raise CapabilityError(f"chat templates need the package {said['missing']}: pip install 'anyformer[chat]'")
        if "refused" in said:
            raise InputError(f"the chat template refuses these messages: {said['refused']}")
        if said.get("kind") == "OutOfFuel":
            raise InputError(
                "the chat template runs without end (it used up the instructions that a template may take), and was stopped"
            )
        if "failed" in said:
            raise InputError(f"the chat template can't be rendered: {said['failed']}")
        return said["text"]

    def close(self) -> None:
        """End the process, if there is one."""
        self._child.close()


SANDBOX = Sandbox()
"""The one that all templates share."""
atexit.register(SANDBOX.close)


FILE = "chat_template.jinja"
LARGEST = 2**20
"""Bytes of the longest template, and of a table of settings a few of them."""
MARKS = range(0xE000, 0xF8FF)
"""Characters for private use, one of which breaks the special tokens in messages."""

Message = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class ChatTemplate:
    """A template and the special tokens that it may name."""

    text: str
    tokens: Mapping[str, str] = field(default_factory=dict)

    def render(self, messages: Sequence[Message], *, answer: bool = True, **names: Any) -> str:
        """The chat as one text; with `answer` it ends where the model's answer begins."""
        chat = {"messages": check_messages(messages), "add_generation_prompt": answer}
        return SANDBOX.render(self.text, {**chat, **self.tokens, **names})

    def ids(
        self, tokenizer: Tokenizer, messages: Sequence[Message], *, continue_final_message: bool = False, **names: Any
    ) -> list[int]:
        """Ids of the rendered chat, or of the chat up to the end of its last message, which the model is to continue."""
        checked = check_messages(messages)
        spelled = [name for name in sorted(tokenizer.specials, key=len, reverse=True) if len(name) > 1]
        special = re.compile("|".join(map(re.escape, spelled)) or r"(?!)")
        # Tools and what else a person may give are no better than messages.
        given = _plain(names, "names")
        held = set(json.dumps([checked, given], ensure_ascii=False))
        mark = next(chr(code) for code in MARKS if chr(code) not in held)
        safe, others = _broken(checked, special, mark), _broken(given, special, mark)
        text = self._begun(safe, others) if continue_final_message else self.render(safe, **others)
        if mark not in text:
            return encoded(tokenizer.spelled, text, specials=False)
        # Someone has written a special token into a message: the template's own are told apart one by one.
        ids: list[int] = []
        start = 0
        for match in special.finditer(text):
            ids += tokenizer.encode(text[start : match.start()].replace(mark, ""))
            ids.append(tokenizer.specials[match[0]])
            start = match.end()
        return ids + tokenizer.encode(text[start:].replace(mark, ""))

    def _begun(self, messages: list[dict[str, Any]], names: Mapping[str, Any]) -> str:
        """The chat up to the end of its last message."""
        said = messages[-1]["content"]
        if not isinstance(said, str) or not said.strip():
            raise InputError(f"messages[{len(messages) - 1}]: has no text to be continued")
        # Templates may strip a message, so its end is marked by a word and not by its length.
        end = chr(MARKS.stop) * 3
        text = self.render([*messages[:-1], messages[-1] | {"content": said + end}], answer=False, **names)
        if end not in text:
            raise InputError("the chat template leaves the last message out, so it can't be continued")
        return text[: text.rindex(end)]


def read_template(folder: Path) -> ChatTemplate | None:
    """The template in a model's folder or GGUF file, or None if it has none: a base model."""
    if is_gguf(folder):
        given = read_header(folder).metadata.get("tokenizer.chat_template")
        return None if given is None else _template(given, tokenizer(folder).named, folder)
    settings = read_json(folder / SETTINGS, 8 * LARGEST) if (folder / SETTINGS).is_file() else {}
    own = folder / FILE
    if own.is_file():
        inside(own, folder)
        if own.stat().st_size > LARGEST:
            raise CheckpointError(f"{own}: is {own.stat().st_size:,} bytes long; at most {LARGEST:,} are read")
        try:
            text: Any = own.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise CheckpointError(f"{own}: can't be read: {error}") from error
    else:
        text = settings.get("chat_template")
    if isinstance(text, list):
        # Several templates by name; the usual one is called so.
        named = {each.get("name"): each.get("template") for each in text if isinstance(each, dict)}
        text = named.get("default")
        if text is None:
            raise CheckpointError(f"{folder / SETTINGS}: chat_template: none of {sorted(map(str, named))} is 'default'")
    return None if text is None else _template(text, special_tokens(settings), folder)


def _template(text: Any, tokens: Mapping[str, str], place: Path) -> ChatTemplate:
    if not isinstance(text, str) or not text.strip() or len(text) > LARGEST:
        raise CheckpointError(f"{place}: its chat_template is not a text of at most {LARGEST:,} characters")
    return ChatTemplate(text=text, tokens=tokens)


def check_messages(messages: Any) -> list[dict[str, Any]]:
    """Messages as plain tables, or an error that says which one is wrong."""
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes) or not messages:
        raise InputError('messages: expected a list such as [{"role": "user", "content": "Hello"}]')
    found: list[dict[str, Any]] = []
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str) or "content" not in message:
            raise InputError(f"messages[{i}]: expected a table with a role and a content, got {message!r}")
        if not isinstance(message["content"], str | list | None):
            raise InputError(f"messages[{i}]: content: expected a text, got {type(message['content']).__name__}")
        found.append(_plain(message, f"messages[{i}]"))
    return found


def is_chat(given: Any) -> bool:
    """Whether something looks like a list of messages."""
    return (
        isinstance(given, list | tuple) and bool(given) and all(isinstance(m, Mapping) and "role" in m for m in given)
    )


def _plain(value: Any, where: str) -> Any:
    """Only texts, numbers, lists and tables reach a template."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {str(name): _plain(each, f"{where}.{name}") for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each, f"{where}[{i}]") for i, each in enumerate(value)]
    raise InputError(f"{where}: expected text, a number, a list or a table, got {type(value).__name__}")


def _broken(value: Any, special: re.Pattern[str], mark: str) -> Any:
    """The same with a mark inside of every special token that is spelled out."""
    if isinstance(value, str):
        # After each character, so that nothing that overlaps with it is left either.
        return special.sub(lambda match: "".join(character + mark for character in match[0]), value)
    if isinstance(value, dict):
        return {_broken(name, special, mark): _broken(each, special, mark) for name, each in value.items()}
    return [_broken(each, special, mark) for each in value] if isinstance(value, list) else value
