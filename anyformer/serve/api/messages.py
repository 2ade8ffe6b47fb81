"""POST /v1/messages: the same answers as /v1/chat/completions, in the form of Anthropic's API."""

import itertools
import json
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from anyformer.serve.api.chat import ChatAnswer, ChatCompletions
from anyformer.serve.api.context import Context, new_id
from anyformer.serve.api.conversation import read_conversation
from anyformer.serve.errors import ApiError
from anyformer.serve.fields.chat import chat_table
from anyformer.serve.fields.messages import count_table, messages_table
from anyformer.serve.http.reply import EventStream, HttpRequest, Reply, Route
from anyformer.serve.http.sse import dumps
from anyformer.serve.tool_calls.formats import Call

PARAMS = {
    "enable_thinking": "thinking", "stop": "stop_sequences", "prompt": "messages", "max_completion_tokens": "max_tokens",
}  # fmt: skip
"""Fields of /v1/chat/completions, and what they are called here."""
ERROR = {"type": "error"}
"""What Anthropic's errors have beside the error object."""
CHOICES = {"auto": "auto", "any": "required", "none": "none"}


class Messages:
    """The handlers."""

    def __init__(self, context: Context) -> None:
        self.context, self.chat = context, ChatCompletions(context)
        self.table = chat_table(context.bounds)

    async def answer(self, request: HttpRequest) -> Reply | EventStream:
        """Answer a conversation."""
        context, data = self.context, request.data
        model = context.check_model(data["model"])
        context.check_generates()
        with renamed():
            asked = self.table.read(self._body(data))
            made = await self.chat.start(request, asked, model, new_id("msg").replace("-", "_"))
        message = Message(made, data, model)
        if data["stream"]:
            return EventStream(made.jobs.until_closed(message.events()))
        await made.jobs.run()
        return Reply(message.body())

    async def count(self, request: HttpRequest) -> Reply:
        """Count the tokens of a conversation."""
        self.context.check_model(request.data["model"])
        with renamed():
            found = await read_conversation(self.context, self.table.read(self._body(request.data)))
        return Reply({"input_tokens": len(found.ids)})

    def _body(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """The same request in the words of /v1/chat/completions."""
        body: dict[str, Any] = {
            name: data[name] for name in ("temperature", "top_p", "top_k", "max_tokens") if name in data
        }
        body |= {"messages": messages_of(data), "stop": data.get("stop_sequences")}
        if data["tools"]:
            body["tools"] = [
                {
                    "type": "function",
                    "function": {"name": tool["name"], "parameters": tool["input_schema"]}
                    | ({"description": tool["description"]} if tool["description"] else {}),
                }
                for tool in data["tools"]
            ]
        choice = data["tool_choice"]
        if choice is not None:
            named = {"type": "function", "function": {"name": choice.get("name")}}
            body["tool_choice"] = named if choice["type"] == "tool" else CHOICES[choice["type"]]
            body["parallel_tool_calls"] = not choice["disable_parallel_tool_use"]
        if data["thinking"] is not None:
            body["chat_template_kwargs"] = {"enable_thinking": data["thinking"]["type"] == "enabled"}
        return body


@contextmanager
def renamed() -> Iterator[None]:
    """Let errors name fields as they are called here."""
    try:
        yield
    except ApiError as error:
        error.param = PARAMS.get(error.param or "", error.param)
        raise


def messages_of(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The conversation as messages of /v1/chat/completions."""
    found: list[dict[str, Any]] = []
    if data["system"]:
        found.append({"role": "system", "content": _text(data["system"])})
    for message in data["messages"]:
        content = message["content"]
        if isinstance(content, str):
            found.append({"role": message["role"], "content": content})
            continue
        content = [block for block in content if block["type"] != "text" or block["text"]] or content
        # A result is a message of its own, and parts what stands before it from what comes after.
        for is_result, group in itertools.groupby(content, lambda block: block["type"] == "tool_result"):
            blocks = list(group)
            found += [_result(block) for block in blocks] if is_result else [_said(message["role"], blocks)]
    return found


def _said(role: str, blocks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What was said, thought and called in one go."""
    calls = [
        {"id": block["id"], "type": "function", "function": {"name": block["name"], "arguments": json.dumps(block["input"])}}
        for block in blocks
        if block["type"] == "tool_use"
    ]  # fmt: skip
    thought = "".join(block["thinking"] for block in blocks if block["type"] == "thinking")
    made: dict[str, Any] = {"role": role, "content": _text([block for block in blocks if block["type"] == "text"])}
    made |= {"tool_calls": calls} if calls else {}
    return made | ({"reasoning_content": thought} if thought else {})


def _result(block: Mapping[str, Any]) -> dict[str, Any]:
    """What a tool answered."""
    words = _text(block["content"] or "")
    return {"role": "tool", "tool_call_id": block["tool_use_id"], "content": f"Error: {words}" if block["is_error"] else words}  # fmt: skip


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(block["text"] for block in content)


class Message:
    """One answer: as a whole, or in events."""

    def __init__(self, answer: ChatAnswer, data: Mapping[str, Any], model: str) -> None:
        self.answer, self.data, self.model = answer, data, model

    def frame(self, content: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        """The message object."""
        return {
            "id": self.answer.jobs.name, "type": "message", "role": "assistant", "model": self.model, "content": content,
            "stop_reason": None, "stop_sequence": None, "usage": self.usage(),
        } | more  # fmt: skip

    def usage(self) -> dict[str, Any]:
        """Anthropic's numbers: what came from the cache is not counted among the tokens that were read."""
        usage = self.answer.jobs.usage()
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        return {
            "input_tokens": usage["prompt_tokens"] - cached, "cache_read_input_tokens": cached,
            "cache_creation_input_tokens": 0, "output_tokens": usage["completion_tokens"],
        }  # fmt: skip

    def stop(self, calls: list[Call]) -> dict[str, Any]:
        """Why it ended."""
        choice = self.answer.jobs.choices[0]
        met = choice.stop_reason if isinstance(choice.stop_reason, str) else None
        reason = "max_tokens" if choice.finish_reason == "length" else "stop_sequence" if met else "end_turn"
        return {"stop_reason": "tool_use" if calls else reason, "stop_sequence": None if calls else met}

    def body(self) -> dict[str, Any]:
        """The whole answer."""
        said, calls = self.answer.message(self.answer.jobs.choices[0])
        content = [{"type": "text", "text": said}] if said or not calls else []
        return self.frame([*content, *map(tool_use, calls)], **self.stop(calls))

    async def events(self) -> AsyncGenerator[bytes]:
        """The answer while it is made."""
        begun = False
        try:
            async for parts in self._events():
                begun = True
                yield parts.encode()
        except ApiError as error:
            if not begun:
                raise
            yield _event("error", error=error.body()["error"]).encode()

    async def _events(self) -> AsyncIterator[str]:
        answer, started, said = self.answer, False, False
        calls: list[Call] = []
        async for batch in answer.pieces():
            parts: list[str] = []
            if not started:
                started = True
                parts.append(_event("message_start", message=self.frame([])))
            for piece in batch:
                calls = piece.calls
                if not said and (piece.text or (piece.ended and not calls)):
                    said = True
                    parts.append(_event("content_block_start", index=0, content_block={"type": "text", "text": ""}))
                if piece.text:
                    delta = {"type": "text_delta", "text": piece.text}
                    parts.append(_event("content_block_delta", index=0, delta=delta))
            if parts:
                yield "".join(parts)
        parts = [_event("content_block_stop", index=0)] if said else []
        for i, call in enumerate(calls, start=int(said)):
            block = tool_use(call)
            parts.append(_event("content_block_start", index=i, content_block=block | {"input": {}}))
            parts.append(_event("content_block_delta", index=i, delta={"type": "input_json_delta", "partial_json": call.arguments}))  # fmt: skip
            parts.append(_event("content_block_stop", index=i))
        parts.append(_event("message_delta", delta=self.stop(calls), usage=self.usage()))
        parts.append(_event("message_stop"))
        yield "".join(parts)


def tool_use(call: Call) -> dict[str, Any]:
    """A call as a block of content."""
    try:
        given = json.loads(call.arguments)
    except ValueError:
        given = {}
    return {"type": "tool_use", "id": f"toolu_{secrets.token_hex(12)}", "name": call.name, "input": given if isinstance(given, dict) else {}}  # fmt: skip


def _event(kind: str, **more: Any) -> str:
    return f"event: {kind}\ndata: {dumps({'type': kind} | more)}\n\n"


def routes(context: Context) -> dict[tuple[str, str], Route]:
    """Where they are served."""
    messages, bounds = Messages(context), context.bounds
    return {
        ("POST", "/v1/messages"): Route(messages.answer, messages_table(bounds), error_frame=ERROR),
        ("POST", "/v1/messages/count_tokens"): Route(messages.count, count_table(bounds), error_frame=ERROR),
    }
