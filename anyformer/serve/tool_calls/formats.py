"""Formats of tool calls. Which one a model writes is read off its own chat template."""

import abc
import json
import re
import string
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from anyformer.generation.chat.template import ChatTemplate
from anyformer.generation.guided.compile_worker import SPACE

Tool = Mapping[str, Any]
DECODER = json.JSONDecoder()
BEFORE, BETWEEN = string.whitespace + "[", string.whitespace + "],;"
"""What stands before the calls of a row, and between and after them."""
OPENINGS = tuple(
    f'{begin}{{"{key}"' for begin in ("", "[") for key in ("name", "type", "id", "arguments", "parameters")
)
"""First signs of a call without marks, less its blanks."""
OPENED = 128
"""Signs, with blanks, by which it is known whether a text opens like that."""


@dataclass(frozen=True)
class Call:
    """A call of a tool."""

    name: str
    arguments: str
    """JSON."""


def schema_of(tools: Sequence[Tool], key: str = "arguments") -> dict[str, Any]:
    """A JSON Schema of one call of any of these tools."""
    calls = [
        {
            "type": "object",
            "properties": {
                "name": {"const": tool["function"]["name"]},
                key: tool["function"].get("parameters") or {"type": "object"},
            },
            "required": ["name", key],
            "additionalProperties": False,
        }
        for tool in tools
    ]
    return calls[0] if len(calls) == 1 else {"anyOf": calls}


def read_call(value: Any, names: Container[str]) -> Call | None:
    """A call, if JSON is one of a tool with one of these names."""
    name = value.get("name") if isinstance(value, dict) else None
    if not isinstance(name, str) or name not in names:
        return None
    arguments = next((value[key] for key in ("arguments", "parameters") if key in value), {})
    return Call(name, arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False))


def read_at(text: str, at: int, names: Container[str]) -> tuple[Call | None, int]:
    """The call whose JSON begins at a place, and where it ends."""
    try:
        value, end = DECODER.raw_decode(text, at)
    except (ValueError, RecursionError):
        return None, at
    return read_call(value, names), end


def skip(text: str, at: int, signs: str = string.whitespace) -> int:
    """The next place at which none of these signs stands."""
    while at < len(text) and text[at] in signs:
        at += 1
    return at


def read_row(text: str, at: int, names: Container[str]) -> tuple[list[Call], str]:
    """Calls one after the other, as a list or not, and what stands behind the last one."""
    found: list[Call] = []
    start = skip(text, at, BEFORE)
    while (read := read_at(text, start, names))[0] is not None:
        found.append(read[0])
        start = skip(text, read[1], BETWEEN)
    return found, text[start:]


class ToolFormat(abc.ABC):
    """One way to write calls."""

    begin: str
    """With what calls begin."""

    def held_from(self, text: str, said: bool) -> int:
        """From where on a text that is still coming may be a call. `said`: whether the model has said something before."""
        at = text.find(self.begin)
        if at >= 0:
            return at
        sizes = range(min(len(text), len(self.begin) - 1), 0, -1)
        return len(text) - next((size for size in sizes if text.endswith(self.begin[:size])), 0)

    @abc.abstractmethod
    def read(self, text: str, names: Container[str]) -> tuple[str, list[Call]]:
        """What is said and what is called in a whole text, by the names of the tools. Without a call, all of it is said."""

    @abc.abstractmethod
    def guided(self, tools: Sequence[Tool], token: int | None) -> dict[str, Any]:
        """What leaves the model nothing but one call of one of these tools. `token`: the id of `begin`, if it is a token."""


def _lark(begin: str, schema: Mapping[str, Any], end: str = "") -> dict[str, Any]:
    """A grammar: a JSON value between two texts."""
    parts = [begin, "value", json.dumps(end) if end else ""]
    bounded = json.dumps({**schema, "x-guidance": {"whitespace_pattern": SPACE}})
    return {"guided": {"grammar": f"start: {' '.join(filter(None, parts))}\nvalue: %json {bounded}\n"}}


@dataclass(frozen=True)
class Tagged(ToolFormat):
    """<tool_call>{"name": ..., "arguments": ...}</tool_call>, one for each call (Hermes, Qwen)."""

    begin: str = "<tool_call>"
    end: str = "</tool_call>"

    def read(self, text: str, names: Container[str]) -> tuple[str, list[Call]]:
        found: list[Call] = []
        said: list[str] = []
        done = at = 0
        while (start := text.find(self.begin, at)) >= 0:
            at = start + len(self.begin)
            call, end = read_at(text, skip(text, at), names)
            end = skip(text, end)
            closed = text.startswith(self.end, end)
            # The last mark may be what ended the answer, and some models forget it between two calls.
            if call is not None and (closed or end == len(text) or text.startswith(self.begin, end)):
                found.append(call)
                said.append(text[done:start])
                done = at = end + (len(self.end) if closed else 0)
        if not found:
            return text, []
        # Blanks around calls are nobody's words.
        return "".join(part for part in [*said, text[done:]] if part.strip()), found

    def guided(self, tools: Sequence[Tool], token: int | None) -> dict[str, Any]:
        return _lark(json.dumps(self.begin + "\n"), schema_of(tools), "\n" + self.end)


@dataclass(frozen=True)
class Listed(ToolFormat):
    """[TOOL_CALLS][{"name": ..., "arguments": ...}, ...] (Mistral)."""

    begin: str = "[TOOL_CALLS]"

    def read(self, text: str, names: Container[str]) -> tuple[str, list[Call]]:
        before, mark, after = text.partition(self.begin)
        found, rest = read_row(after, 0, names) if mark else ([], "")
        return ((before if before.strip() else "") + rest, found) if found else (text, [])

    def guided(self, tools: Sequence[Tool], token: int | None) -> dict[str, Any]:
        schema = {"type": "array", "items": schema_of(tools), "minItems": 1, "maxItems": 1}
        return _lark(json.dumps(self.begin) if token is None else f"<[{token}]>", schema)


@dataclass(frozen=True)
class Bare(ToolFormat):
    """{"name": ..., "parameters": ...} and nothing else (Llama 3, and models without marks of their own)."""

    begin: str = "<|python_tag|>"
    """It may be left out."""
    key: str = "parameters"

    def held_from(self, text: str, said: bool) -> int:
        # A call is all that is said, so its very first signs tell whether it may be one.
        begun = "".join(text.lstrip()[:OPENED].split()).removeprefix(self.begin)
        starts = (self.begin, *OPENINGS)
        return len(text) if said or not any(each.startswith(begun) or begun.startswith(each) for each in starts) else 0

    def read(self, text: str, names: Container[str]) -> tuple[str, list[Call]]:
        at = skip(text, 0)
        found, rest = read_row(text, at + len(self.begin) if text.startswith(self.begin, at) else at, names)
        # Behind a call there is nothing, or one that was cut; a call among other words is an example.
        return (rest, found) if found and (not rest or rest.startswith("{")) else (text, [])

    def guided(self, tools: Sequence[Tool], token: int | None) -> dict[str, Any]:
        return {"guided": {"json_schema": schema_of(tools, self.key)}}


def tool_format(template: ChatTemplate) -> ToolFormat | None:
    """The format that a template teaches; None: it has no place for tools."""
    text = template.text
    if not re.search(r"\btools\b", text):
        return None
    for known in (Tagged(), Listed()):
        if known.begin in text:
            return known
    return Bare(key="parameters" if '"parameters"' in text or "python_tag" in text else "arguments")
