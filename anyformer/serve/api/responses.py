"""POST /v1/responses: the same answers as /v1/chat/completions, in the form of the Responses API. Nothing is kept."""

import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any

from anyformer.serve.api import large
from anyformer.serve.api.chat import ChatAnswer, ChatCompletions
from anyformer.serve.api.context import Context, new_id
from anyformer.serve.errors import ApiError
from anyformer.serve.fields.chat import chat_table
from anyformer.serve.fields.responses import responses_table
from anyformer.serve.http.reply import EventStream, HttpRequest, Reply, Route
from anyformer.serve.http.sse import dumps
from anyformer.serve.text.logprobs import chat_logprobs
from anyformer.serve.tool_calls.formats import Call

PARAMS = {
    "messages": "input", "prompt": "input", "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
}  # fmt: skip
"""Fields of /v1/chat/completions, and what they are called here."""


class Responses:
    """The handler."""

    def __init__(self, context: Context) -> None:
        self.context, self.chat = context, ChatCompletions(context)
        self.table = chat_table(context.bounds)

    async def __call__(self, request: HttpRequest) -> Reply | EventStream:
        """Answer one request."""
        context, data = self.context, request.data
        model = context.check_model(data["model"])
        context.check_generates()
        try:
            asked = self.table.read(chat_body(data))
            answer = await self.chat.start(request, asked, model, new_id("resp").replace("-", "_"))
        except ApiError as error:
            error.param = PARAMS.get(error.param or "", error.param)
            raise
        made = Response(answer, data, model)
        if data["stream"]:
            return EventStream(answer.jobs.until_closed(made.events()))
        await answer.jobs.run()
        return large.answer(answer.jobs, made.body)


def chat_body(data: Mapping[str, Any]) -> dict[str, Any]:
    """The same request in the words of /v1/chat/completions."""
    names = ("temperature", "top_p", "seed", "parallel_tool_calls")
    body: dict[str, Any] = {name: data[name] for name in names} | {"messages": messages_of(data)}
    body["max_completion_tokens"] = data["max_output_tokens"]
    if data["top_logprobs"] is not None or data["include"]:
        body |= {"logprobs": True, "top_logprobs": data["top_logprobs"]}
    if data["reasoning"] is not None:
        body["reasoning_effort"] = data["reasoning"]["effort"]
    form = (data["text"] or {}).get("format")
    if form is not None and form["type"] == "json_schema":
        inner = {name: value for name, value in form.items() if name != "type" and value is not None}
        body["response_format"] = {"type": "json_schema", "json_schema": inner}
    elif form is not None:
        body["response_format"] = {"type": form["type"]}
    if data["tools"]:
        body["tools"] = [{"type": "function", "function": {k: v for k, v in tool.items() if k != "type" and v is not None}} for tool in data["tools"]]  # fmt: skip
    choice = data["tool_choice"]
    body["tool_choice"] = (
        {"type": "function", "function": {"name": choice["name"]}} if isinstance(choice, dict) else choice
    )
    return body


def messages_of(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The conversation as messages."""
    found: list[dict[str, Any]] = []
    if data["instructions"]:
        found.append({"role": "system", "content": data["instructions"]})
    if isinstance(data["input"], str):
        return [*found, {"role": "user", "content": data["input"]}]
    for item in data["input"]:
        if item["type"] == "function_call":
            call = {"id": item["call_id"], "type": "function", "function": {"name": item["name"], "arguments": item["arguments"]}}  # fmt: skip
            # Calls that were made at once are one message.
            if found and found[-1].get("tool_calls"):
                found[-1]["tool_calls"].append(call)
            else:
                found.append({"role": "assistant", "content": None, "tool_calls": [call]})
        elif item["type"] == "function_call_output":
            found.append({"role": "tool", "tool_call_id": item["call_id"], "content": item["output"]})
        else:
            content = item["content"]
            text = content if isinstance(content, str) else "\n".join(part["text"] for part in content)
            found.append({"role": item["role"], "content": text})
    return found


class Response:
    """One answer: as a whole, or in events."""

    def __init__(self, answer: ChatAnswer, data: Mapping[str, Any], model: str) -> None:
        self.answer, self.data, self.model = answer, data, model
        self.message_id = f"msg_{secrets.token_hex(12)}"
        self.created = int(time.time())
        self.number = 0

    def frame(self, status: str, output: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        """The response object."""
        data = self.data
        return {
            "id": self.answer.jobs.name, "object": "response", "created_at": self.created, "status": status,
            "error": None, "incomplete_details": None, "instructions": data["instructions"],
            "max_output_tokens": data["max_output_tokens"], "model": self.model, "output": output,
            "parallel_tool_calls": data["parallel_tool_calls"], "previous_response_id": None,
            "reasoning": {"effort": (data["reasoning"] or {}).get("effort"), "summary": None}, "store": False,
            "temperature": data["temperature"], "text": data["text"] or {"format": {"type": "text"}},
            "tool_choice": data["tool_choice"] or "auto", "tools": data["tools"] or [], "top_p": data["top_p"],
            "truncation": "disabled", "usage": None, "user": data["user"], "metadata": data["metadata"] or {},
        } | more  # fmt: skip

    def _message(self, text: str, status: str) -> dict[str, Any]:
        return {"id": self.message_id, "type": "message", "status": status, "role": "assistant", "content": [self._part(text)]}  # fmt: skip

    def _part(self, text: str, logprobs: Any = None) -> dict[str, Any]:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs or []}

    def end(self, said: str | None, calls: list[dict[str, Any]], logprobs: Any = None) -> dict[str, Any]:
        """The response object when all is there."""
        choice, usage = self.answer.jobs.choices[0], self.answer.jobs.usage()
        whole = choice.finish_reason != "length"
        status = "completed" if whole else "incomplete"
        output = list(calls)
        if said is not None and (said or not calls):
            message = self._message(said, status)
            message["content"] = [self._part(said, logprobs)]
            output.insert(0, message)
        counted = {
            "input_tokens": usage["prompt_tokens"], "input_tokens_details": usage["prompt_tokens_details"],
            "output_tokens": usage["completion_tokens"], "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage["total_tokens"],
        }  # fmt: skip
        why = None if whole else {"reason": "max_output_tokens"}
        return self.frame(status, output, usage=counted, incomplete_details=why)

    def body(self) -> dict[str, Any]:
        """The whole answer."""
        choice = self.answer.jobs.choices[0]
        said, calls = self.answer.message(choice)
        return self.end(said, [function_call(call) for call in calls], self._logprobs())

    def _logprobs(self) -> Any:
        if not self.answer.data["logprobs"]:
            return None
        return chat_logprobs(self.answer.jobs.choices[0].take_entries(), self.answer.context.texts.bytes_of)

    def event(self, kind: str, **more: Any) -> str:
        """One server-sent event."""
        made = {"type": f"response.{kind}", "sequence_number": self.number} | more
        self.number += 1
        return f"event: response.{kind}\ndata: {dumps(made)}\n\n"

    async def events(self) -> AsyncGenerator[bytes]:
        """The answer while it is made."""
        try:
            async for parts in self._events():
                yield parts.encode()
        except ApiError as error:
            if not self.number:
                raise
            why = {"code": error.code or error.type, "message": error.message}
            yield self.event("failed", response=self.frame("failed", [], error=why)).encode()

    async def _events(self) -> AsyncIterator[str]:
        answer, begun, text, logprobs = self.answer, False, "", list[Any]()
        choice = answer.jobs.choices[0]
        place = {"item_id": self.message_id, "output_index": 0, "content_index": 0}
        calls: list[Call] = []
        async for batch in answer.pieces():
            parts: list[str] = []
            if not self.number:
                for kind in ("created", "in_progress"):
                    parts.append(self.event(kind, response=self.frame("in_progress", [])))
            for piece in batch:
                calls = piece.calls
                if not begun and (piece.text or (piece.ended and not calls)):
                    begun = True
                    item = self._message("", "in_progress") | {"content": []}
                    parts.append(self.event("output_item.added", output_index=0, item=item))
                    parts.append(self.event("content_part.added", part=self._part(""), **place))
                if piece.text:
                    found = self._logprobs() or []
                    logprobs += found
                    text += piece.text
                    parts.append(self.event("output_text.delta", delta=piece.text, logprobs=found, **place))
            if parts:
                yield "".join(parts)
        yield "".join(self._last(text, begun, calls, logprobs, whole=choice.finish_reason != "length"))

    def _last(self, text: str, begun: bool, calls: list[Call], logprobs: list[Any], *, whole: bool) -> list[str]:
        place = {"item_id": self.message_id, "output_index": 0, "content_index": 0}
        status, parts = "completed" if whole else "incomplete", list[str]()
        if begun:
            part = self._part(text, logprobs)
            parts.append(self.event("output_text.done", text=text, logprobs=logprobs, **place))
            parts.append(self.event("content_part.done", part=part, **place))
            item = self._message(text, status) | {"content": [part]}
            parts.append(self.event("output_item.done", output_index=0, item=item))
        items = [function_call(call) for call in calls]
        for i, item in enumerate(items, start=int(begun)):
            at = {"item_id": item["id"], "output_index": i}
            parts.append(self.event("output_item.added", output_index=i, item=item | {"arguments": "", "status": "in_progress"}))  # fmt: skip
            parts.append(self.event("function_call_arguments.delta", delta=item["arguments"], **at))
            parts.append(
                self.event("function_call_arguments.done", arguments=item["arguments"], name=item["name"], **at)
            )
            parts.append(self.event("output_item.done", output_index=i, item=item))
        said = text if begun else None
        parts.append(self.event(status, response=self.end(said, items, logprobs)))
        return parts


def function_call(call: Call) -> dict[str, Any]:
    """A call as an item of the output."""
    return {
        "id": f"fc_{secrets.token_hex(12)}", "type": "function_call", "status": "completed", "name": call.name,
        "call_id": f"call_{secrets.token_hex(12)}", "arguments": call.arguments,
    }  # fmt: skip


def routes(context: Context) -> dict[tuple[str, str], Route]:
    """Where it is served."""
    route = Route(Responses(context), responses_table(context.bounds))
    return {("POST", path): route for path in ("/v1/responses", "/responses")}
