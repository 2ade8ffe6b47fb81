"""POST /v1/chat/completions: answer a conversation."""

import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

from anyformer.serve.api import large
from anyformer.serve.api.choices import Choice, Job, Jobs
from anyformer.serve.api.context import Context, new_id
from anyformer.serve.api.conversation import read_conversation
from anyformer.serve.api.sampling import engine_params, new_tokens
from anyformer.serve.errors import bad_request
from anyformer.serve.fields.chat import chat_table
from anyformer.serve.http.reply import EventStream, HttpRequest, Reply, Route
from anyformer.serve.http.sse import DONE, dumps, quoted
from anyformer.serve.http.sse import event as framed
from anyformer.serve.text.logprobs import chat_logprobs
from anyformer.serve.tool_calls.formats import Call, ToolFormat
from anyformer.serve.tool_calls.reader import ToolCallReader


class ChatCompletions:
    """The handler."""

    def __init__(self, context: Context) -> None:
        self.context = context

    async def __call__(self, request: HttpRequest) -> Reply | EventStream:
        """Answer one request."""
        context, data = self.context, request.data
        model = context.check_model(data["model"])
        context.check_generates()
        if data["top_logprobs"] and not data["logprobs"]:
            raise bad_request("top_logprobs: only with logprobs: true", "top_logprobs")
        answer = await self.start(request, data, model, new_id("chatcmpl"))
        if data["stream"]:
            return EventStream(answer.jobs.until_closed(answer.events()))
        await answer.jobs.run()
        return large.answer(answer.jobs, answer.body)

    async def start(self, request: HttpRequest, data: Mapping[str, Any], model: str, name: str) -> "ChatAnswer":
        """Read the conversation, and ask the engine."""
        context = self.context
        found = await read_conversation(context, data)
        asked = data["max_tokens"] if data["max_completion_tokens"] is None else data["max_completion_tokens"]
        fields = ("messages", "max_tokens" if data["max_completion_tokens"] is None else "max_completion_tokens")
        tokens = new_tokens(context, len(found.ids), asked, context.defaults.get("max_tokens"), fields=fields)
        logprobs = (data["top_logprobs"] or 0) if data["logprobs"] else None
        sampling = engine_params(data, context, max_tokens=tokens, logprobs=logprobs, guided=found.guided)
        job = Job(context, found.ids, sampling, shown=found.shown)
        return ChatAnswer(context, Jobs(context, request, name, [job]), data, model, found.form)


@dataclass(frozen=True, slots=True)
class Piece:
    """What one step added to a choice."""

    choice: Choice
    text: str
    """What is said."""
    calls: list[Call]
    """Known with the last piece only."""
    ended: bool


class ChatAnswer:
    """One answer: as a whole, or in events."""

    def __init__(
        self, context: Context, jobs: Jobs, data: Mapping[str, Any], model: str, form: ToolFormat | None
    ) -> None:
        self.context, self.jobs, self.data, self.form = context, jobs, data, form
        self.with_ids = data["return_token_ids"]
        self.head = {
            "id": jobs.name,
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": context.fingerprint,
        }
        names = {tool["function"]["name"] for tool in data["tools"] or ()}
        self._readers = {} if form is None else {each.index: ToolCallReader(form, names) for each in jobs.choices}

    def body(self) -> dict[str, Any]:
        """The whole answer."""
        choices = [self._choice(choice) for choice in self.jobs.choices]
        return self.head | {"object": "chat.completion", "choices": choices, "usage": self.jobs.usage()}

    def message(self, choice: Choice) -> tuple[str | None, list[Call]]:
        """What was said, and what was called."""
        piece = self._piece(choice, choice.text, ended=True)
        return (piece.text or None) if piece.calls else piece.text, piece.calls

    def _piece(self, choice: Choice, new: str, *, ended: bool) -> Piece:
        reader = self._readers.get(choice.index)
        if reader is None:
            return Piece(choice, new, [], ended)
        said = reader.push(new) + (reader.end() if ended else "")
        return Piece(choice, said, reader.calls if self.data["parallel_tool_calls"] else reader.calls[:1], ended)

    async def pieces(self) -> AsyncIterator[list[Piece]]:
        """What is said and called while the answer is made, all that came since the last time."""
        async for batch in self.jobs.outputs():
            yield [
                self._piece(choice, new, ended=output.finish_reason is not None)
                for job, output in batch
                for choice, new in job.apply(output)
            ]

    def _choice(self, choice: Choice) -> dict[str, Any]:
        said, calls = self.message(choice)
        message: dict[str, Any] = {"role": "assistant", "content": said, "refusal": None}
        if calls:
            message["tool_calls"] = [tool_call(call) for call in calls]
        made: dict[str, Any] = {"index": choice.index, "message": message, "logprobs": self._logprobs(choice)}
        made |= {"finish_reason": "tool_calls" if calls else choice.finish_reason, "stop_reason": choice.stop_reason}
        if self.with_ids:
            made |= {"token_ids": choice.ids}
        return made

    def _logprobs(self, choice: Choice) -> dict[str, Any] | None:
        if not self.data["logprobs"]:
            return None
        found = chat_logprobs(choice.take_entries(), self.context.texts.bytes_of, ids=self.with_ids)
        return {"content": found, "refusal": None}

    def _ids(self, choice: Choice) -> dict[str, Any]:
        return {"token_ids": choice.take_ids()} if self.with_ids else {}

    async def events(self) -> AsyncGenerator[bytes]:
        """The answer while it is made."""
        options = self.data["stream_options"] or {}
        counts, ends = options.get("continuous_usage_stats"), options.get("include_usage")
        plain = not (self.data["logprobs"] or self.with_ids or counts)
        head = self.head | {"object": "chat.completion.chunk"}
        begin = dumps(head)[:-1]
        tail = '},"logprobs":null,"finish_reason":null}]' + (',"usage":null}\n\n' if ends else "}\n\n")
        heads = {
            c.index: f'data: {begin},"choices":[{{"index":{c.index},"delta":{{"content":' for c in self.jobs.choices
        }
        begun: set[int] = set()

        def event(choice: Choice, delta: dict[str, Any], **more: Any) -> str:
            made = {"index": choice.index, "delta": delta, "logprobs": None, "finish_reason": None} | more
            usage = {"usage": self.jobs.usage()} if counts else {"usage": None} if ends else {}
            return framed(head | {"choices": [made]} | usage)

        async for batch in self.pieces():
            parts: list[str] = []
            for piece in batch:
                choice, calls = piece.choice, piece.calls
                if choice.index not in begun:
                    # With the first token, so that nobody takes the head for it.
                    begun.add(choice.index)
                    parts.append(event(choice, {"role": "assistant", "content": None}))
                if plain and piece.text:
                    parts.append(f"{heads[choice.index]}{quoted(piece.text)}{tail}")
                elif piece.text:
                    more = {"logprobs": self._logprobs(choice)} | self._ids(choice)
                    parts.append(event(choice, {"content": piece.text}, **more))
                parts += [event(choice, {"tool_calls": [tool_call(call, i)]}) for i, call in enumerate(calls)]
                if piece.ended:
                    reason = "tool_calls" if calls else choice.finish_reason
                    found = self._logprobs(choice)
                    left = {"logprobs": found if found and found["content"] else None} | self._ids(choice)
                    parts.append(event(choice, {}, finish_reason=reason, stop_reason=choice.stop_reason, **left))
            if parts:
                yield "".join(parts).encode()
        if ends:
            yield framed(head | {"choices": [], "usage": self.jobs.usage()}).encode()
        yield DONE


def tool_call(call: Call, index: int | None = None) -> dict[str, Any]:
    """OpenAI's object for a call; in a stream with its number."""
    made = {"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": {"name": call.name, "arguments": call.arguments}}  # fmt: skip
    return made if index is None else {"index": index} | made


def routes(context: Context) -> dict[tuple[str, str], Route]:
    """Where it is served."""
    route = Route(ChatCompletions(context), chat_table(context.bounds))
    return {("POST", path): route for path in ("/v1/chat/completions", "/chat/completions")}
