"""Prompts as llama.cpp takes them: texts, token ids, both in one list, or several of those."""

from dataclasses import dataclass
from typing import Any

from anyformer.serve.fields.kinds import Kind, Text, Wrong, shown

TEXT, MEDIA = "prompt_string", "multimodal_data"

Prompt = str | list[int | str]
"""A text, or ids with texts between them."""


@dataclass(frozen=True)
class Prompts:
    """What a request asks about."""

    each: list[Prompt]
    many: bool
    """Whether the answer is a list, even of one."""


@dataclass(frozen=True)
class PromptsKind(Kind):
    """One prompt or several."""

    vocab: int
    most: int
    """Prompts at most."""
    chars: int
    """Characters of a text, and items of a list, at most."""

    def read(self, value: Any, where: str) -> Prompts:
        if not isinstance(value, list):
            return Prompts([self._one(value, where)], many=False)
        if not value:
            raise Wrong(where, "is an empty list; give a prompt")
        # A list of texts has a prompt in each; one with an id in it is a single prompt.
        if any(type(one) in (int, float, bool) for one in value):
            return Prompts([self._one(value, where)], many=False)
        if len(value) > self.most:
            raise Wrong(where, f"a list of {len(value):,} prompts; at most {self.most:,} are allowed")
        return Prompts([self._one(one, f"{where}[{i}]") for i, one in enumerate(value)], many=True)

    def _one(self, value: Any, where: str) -> Prompt:
        if isinstance(value, dict):
            return self._object(value, where)
        if not isinstance(value, list):
            if not isinstance(value, str):
                raise self.refuse(value, where)
            return Text(self.chars).read(value, where)
        if not 1 <= len(value) <= self.chars:
            raise Wrong(where, f"a list of {len(value):,}; 1 to {self.chars:,} allowed")
        for i, one in enumerate(value):
            if not isinstance(one, str) and (type(one) is not int or not 0 <= one < self.vocab):
                raise Wrong(
                    f"{where}[{i}]", f"{shown(one)} is not a token id from 0 to {self.vocab - 1:,}, and no text"
                )
        return value

    def _object(self, value: dict[str, Any], where: str) -> str:
        if value.get(MEDIA):
            raise Wrong(f"{where}.{MEDIA}", "is not supported here: this server reads text only", "unsupported_value")
        for name in value:
            if name not in (TEXT, MEDIA):
                raise Wrong(
                    f"{where}.{name[:60]}", f"is no part of a prompt; give {{{TEXT}: ...}}", "unknown_parameter"
                )
        return Text(self.chars).read(value.get(TEXT), f"{where}.{TEXT}")

    def schema(self) -> dict[str, Any]:
        text = {"type": "string", "maxLength": self.chars}
        token = {"type": "integer", "minimum": 0, "maximum": self.vocab - 1}
        mixed = {"type": "array", "items": {"anyOf": [token, text]}, "minItems": 1, "maxItems": self.chars}
        table = {"type": "object", "properties": {TEXT: text}, "required": [TEXT], "additionalProperties": False}
        one = [text, mixed, table]
        return {"anyOf": [*one, {"type": "array", "items": {"anyOf": one}, "minItems": 1, "maxItems": self.most}]}

    def words(self) -> str:
        return f"a text, a list of token ids (and texts), {{{TEXT}: ...}}, or a list of at most {self.most:,} of those"
