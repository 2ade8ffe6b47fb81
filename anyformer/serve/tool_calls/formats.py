"""Formats of tool calls. Which one a model writes is read off its own chat template."""

import abc
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from anyformer.generation.chat.template import ChatTemplate

Tool = Mapping[str, Any]


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


def read_call(value: Any) -> Call | None:
    """A call, if JSON is one."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    arguments = next((value[key] for key in ("arguments", "parameters") if key in value), {})
    return Call(value["name"], arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False))


def read_json(text: str) -> Any:
    """JSON, or None."""
    try:
        return json.loads(text)
    except ValueError:
        return None


class ToolFormat(abc.ABC):
    """One way to write calls."""

    begin: str
    """With what calls begin; text before it is what the model says."""

    @abc.abstractmethod
    def read(self, text: str) -> list[Call]:
        """The calls in what stands from `begin` on; none: it is text like any other."""

    @abc.abstractmethod
    def guided(self, tools: Sequence[Tool], token: int | None) -> dict[str, Any]:
        """What leaves the model nothing but one call of one of these tools. `token`: the id of `begin`, if it is a token."""


def _lark(begin: str, schema: Mapping[str, Any], end: str = "") -> dict[str, Any]:
    """A grammar: a JSON value between two texts."""
    parts = [begin, "value", json.dumps(end) if end else ""]
    return {"guided": {"grammar": f"start: {' '.join(filter(None, parts))}\nvalue: %json {json.dumps(schema)}\n"}}


@dataclass(frozen=True)
class Tagged(ToolFormat):
    """<tool_call>{"name": ..., "arguments": ...}</tool_call>, one for each call (Hermes, Qwen)."""

    begin: str = "<tool_call>"
    end: str = "</tool_call>"

    def read(self, text: str) -> list[Call]:
        found: list[Call] = []
        for part in text.split(self.begin)[1:]:
            call = read_call(read_json(part.split(self.end)[0].strip()))
            if call is None:
                return []
            found.append(call)
        return found

    def guided(self, tools: Sequence[Tool], token: int | None) -> dict[str, Any]:
        return _lark(json.dumps(self.begin + "\n"), schema_of(tools), "\n" + self.end)


@dataclass(frozen=True)
class Listed(ToolFormat):
    """[TOOL_CALLS][{"name": ..., "arguments": ...}, ...] (Mistral)."""

    begin: str = "[TOOL_CALLS]"

    def read(self, text: str) -> list[Call]:
        value = read_json(text.removeprefix(self.begin).strip())
        found = [read_call(each) for each in value] if isinstance(value, list) else [None]
        return [each for each in found if each is not None] if None not in found else []

    def guided(self, tools: Sequence[Tool], token: int | None) -> dict[str, Any]:
        schema = {"type": "array", "items": schema_of(tools), "minItems": 1, "maxItems": 1}
        return _lark(json.dumps(self.begin) if token is None else f"<[{token}]>", schema)


@dataclass(frozen=True)
class Bare(ToolFormat):
    """{"name": ..., "parameters": ...} and nothing else (Llama 3, and models without marks of their own)."""

    begin: str = "{"
    key: str = "parameters"
    marks: re.Pattern[str] = field(default_factory=lambda: re.compile(r"^\s*(<\|python_tag\|>)?\s*"))

    def read(self, text: str) -> list[Call]:
        body = self.marks.sub("", text).strip()
        # Several are told apart by semicolons, or come as a list.
        value = read_json(body)
        values = value if isinstance(value, list) else [read_json(part) for part in body.split(";")] if value is None else [value]  # fmt: skip
        found = [read_call(each) for each in values]
        return [each for each in found if each is not None] if None not in found else []

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
