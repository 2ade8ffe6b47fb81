"""From the messages and tools of a request to the ids that the model reads."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from anyformer.serve.api.context import Context
from anyformer.serve.api.sampling import guided_params
from anyformer.serve.errors import bad_request
from anyformer.serve.tool_calls.formats import ToolFormat, tool_format

NEUTRAL = {"enable_thinking": False, "thinking": False, "reasoning_effort": "none"}
"""Variables of templates, and the values that ask for nothing where a template doesn't read them."""


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """What is asked of the model."""

    ids: list[int]
    guided: dict[str, Any]
    """Parameters that leave only some texts."""
    form: ToolFormat | None = None
    """How its calls of tools are written; None: it may call none."""
    shown: dict[int, str] = field(default_factory=dict)
    """Special tokens that are part of its text here."""
    messages: list[dict[str, Any]] = field(default_factory=list)
    names: dict[str, Any] = field(default_factory=dict)
    """What the chat template was given."""


async def read_conversation(context: Context, data: Mapping[str, Any]) -> Conversation:
    """Check and tokenise a conversation."""
    texts, template = context.texts, context.texts.need_template()
    # vLLM's two flags exclude each other; the first one's default is for those who don't continue.
    continues, generation = data["continue_final_message"], data["add_generation_prompt"]
    if continues and generation:
        raise bad_request("continue_final_message: not together with add_generation_prompt", "continue_final_message")
    generation = generation is not False
    messages = plain_messages(data["messages"], developer="developer" in template.text)
    usual = {name: value for name, value in context.config.chat_template_kwargs if name in template.text}
    names = usual | template_names(data, template.text)
    tools, form = _tools(data), None
    if tools:
        form = tool_format(template)
        if form is None:
            raise bad_request(
                "tools: the chat template of this model has no place for tools", "tools", "unsupported_value"
            )
        names["tools"] = [tool | {"function": _present(tool["function"])} for tool in tools]
    if continues:
        if messages[-1]["role"] != "assistant":
            raise bad_request(
                "continue_final_message: the last message is not the assistant's", "continue_final_message"
            )
        ids = await texts.chat(messages, continues=True, **names)
    else:
        ids = await texts.chat(messages, answer=generation, **names)
    guided, shown = guided_params(data), dict[int, str]()
    if form is not None and form.begin in texts.tokenizer.specials:
        shown = {texts.tokenizer.specials[form.begin]: form.begin}
    choice = data["tool_choice"]
    if form is not None and (choice == "required" or isinstance(choice, dict)):
        if guided:
            raise bad_request("tool_choice: a call is required, but response_format asks for another form; leave one out", "tool_choice")  # fmt: skip
        guided = form.guided(_chosen(tools, choice), next(iter(shown), None))
    elif not {"json_object", "json_schema"}.isdisjoint(guided.get("guided", ())):
        # All of the answer is the JSON that was asked for, whatever it looks like.
        form = None
    return Conversation(ids=ids, guided=guided, form=form, shown=shown, messages=messages, names=names)


def plain_messages(messages: Sequence[Mapping[str, Any]], *, developer: bool) -> list[dict[str, Any]]:
    """Messages as templates expect them: parts joined, arguments of calls as objects, and nothing that is absent."""
    found: list[dict[str, Any]] = []
    for i, message in enumerate(messages):
        if message.get("content") is None and not (message["role"] == "assistant" and message.get("tool_calls")):
            where = f"messages[{i}].content"
            raise bad_request(f"{where}: is missing; only an assistant's message with tool_calls may leave it out", where, "missing_required_parameter")  # fmt: skip
        made = {
            name: value
            for name, value in message.items()
            if value is not None and name not in ("annotations", "refusal")
        }
        if isinstance(made.get("content"), list):
            made["content"] = "\n".join(part["text"] for part in made["content"])
        # Templates that don't know a developer know a system.
        if made["role"] == "developer" and not developer:
            made["role"] = "system"
        if "tool_calls" in made:
            made["tool_calls"] = [_called(call) for call in made["tool_calls"]]
        found.append({"content": None} | made)
    return found


def _called(call: Mapping[str, Any]) -> dict[str, Any]:
    function = dict(call["function"])
    try:
        parsed = json.loads(function["arguments"])
    except ValueError:
        parsed = None
    if isinstance(parsed, dict):
        function["arguments"] = parsed
    return {name: value for name, value in call.items() if value is not None and name != "index"} | {
        "function": function
    }


def template_names(data: Mapping[str, Any], template: str) -> dict[str, Any]:
    """Variables that a request sets in the template; one that the template doesn't read is refused, if it asks for something."""
    given = dict(data["chat_template_kwargs"] or {})
    if data["reasoning_effort"] is not None:
        given["reasoning_effort"] = data["reasoning_effort"]
    names = {
        name: value
        for name, value in given.items()
        if value is not None and (name in template or value != NEUTRAL.get(name))
    }
    for name in names:
        if name not in template:
            raise bad_request(f"{name}: the chat template of this model has no such variable; leave it out", name, "unsupported_value")  # fmt: skip
    return names


def _present(fields: Mapping[str, Any]) -> dict[str, Any]:
    """What of some fields is there: a template would write null for the others."""
    return {name: value for name, value in fields.items() if value is not None}


def _tools(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Tools that may be called."""
    tools, choice = data["tools"] or [], data["tool_choice"]
    if not tools and choice not in (None, "none", "auto"):
        raise bad_request("tool_choice: there are no tools to choose from; give tools", "tool_choice")
    return [] if choice == "none" else tools


def _chosen(tools: Sequence[dict[str, Any]], choice: Any) -> list[dict[str, Any]]:
    if not isinstance(choice, dict):
        return list(tools)
    name = choice["function"]["name"]
    found = [tool for tool in tools if tool["function"]["name"] == name]
    if not found:
        known = ", ".join(tool["function"]["name"] for tool in tools)
        raise bad_request(f"tool_choice: {name!r} is none of the tools ({known})", "tool_choice")
    return found
