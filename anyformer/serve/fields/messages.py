"""The fields of POST /v1/messages and /v1/messages/count_tokens: Anthropic's API."""

from anyformer.serve.config import Limits
from anyformer.serve.fields.chat import NO_MEDIA
from anyformer.serve.fields.kinds import (
    Anything,
    Either,
    Field,
    Flag,
    Ignored,
    Items,
    Kind,
    Number,
    OneOf,
    Record,
    Text,
    Whole,
)
from anyformer.serve.fields.sampling import MODEL, Bounds
from anyformer.serve.fields.table import Table
from anyformer.serve.fields.tagged import Tagged

CACHE = Field("cache_control", Ignored(Anything(1024, "object")))


def _block(kind: str, *fields: Field) -> Record:
    return Record((Field("type", OneOf((kind,)), required=True), *fields, CACHE))


def content_kind(limits: Limits) -> Kind:
    """A text, or blocks of texts, calls and their results."""
    text = Text(limits.body_bytes)
    words = _block("text", Field("text", text, required=True), Field("citations", Ignored(Anything(limits.body_bytes))))
    media: dict[str, str] = {name: f"image input is not supported: {NO_MEDIA}" for name in ("image", "document")}
    parts = Tagged("type", {"text": words}, media)
    result = _block(
        "tool_result",
        Field("tool_use_id", Text(256, 1), required=True),
        Field("content", Either((text, Items(parts, limits.messages)))),
        Field("is_error", Flag()),
    )
    call = _block(
        "tool_use",
        Field("id", Text(256, 1), required=True),
        Field("name", Text(256, 1), required=True),
        Field("input", Anything(limits.body_bytes, "object"), required=True),
    )
    thought = _block(
        "thinking", Field("thinking", text, required=True), Field("signature", Ignored(Text(limits.body_bytes)))
    )
    blocks = Tagged("type", {"text": words, "tool_use": call, "tool_result": result, "thinking": thought}, media)
    return Either((text, Items(blocks, limits.messages, 1)))


def _fields(limits: Limits) -> tuple[Field, ...]:
    message = Record(
        (
            Field("role", OneOf(("user", "assistant")), required=True),
            Field("content", content_kind(limits), required=True),
        )
    )
    text = Text(limits.body_bytes)
    system = Either((text, Items(_block("text", Field("text", text, required=True)), limits.messages)))
    tool = Record(
        (
            Field("name", Text(256, 1), required=True),
            Field("description", text),
            Field("input_schema", Anything(limits.schema_bytes, "object"), "A JSON Schema.", required=True),
            Field("type", OneOf(("custom",))),
            CACHE,
        )
    )
    several = Field("disable_parallel_tool_use", Flag())
    choices = {
        kind: Record((Field("type", OneOf((kind,)), required=True), several)) for kind in ("auto", "any", "none")
    } | {"tool": Record((Field("type", OneOf(("tool",)), required=True), Field("name", Text(256, 1), required=True), several))}  # fmt: skip
    kind = Field("type", OneOf(("enabled", "disabled")), required=True)
    return (
        MODEL,
        Field("messages", Items(message, limits.messages, 1), "The conversation.", required=True),
        Field("system", system, "A system message before all others."),
        Field("tools", Items(tool, limits.tools), "Functions that the model may call."),
        Field("tool_choice", Tagged("type", choices), "Which of them."),
        Field(
            "thinking", Record((kind, Field("budget_tokens", Ignored(Whole(0, 2**31 - 1))))), "For the chat template."
        ),
    )


def messages_table(bounds: Bounds) -> Table:
    """Of the endpoint that answers."""
    limits = bounds.limits
    stop = Text(limits.stop_chars, 1)
    return Table(
        Record(
            (
                *_fields(limits),
                Field("max_tokens", Whole(1, 2**31 - 1), "New tokens at most.", required=True),
                Field("temperature", Number(0, 100), "0 takes the likeliest token."),
                Field("top_p", Number(0, 1, above=True), "Draw from the fewest tokens with this probability together."),
                Field("top_k", Whole(0, 2**31 - 1), "Draw from the k likeliest tokens; 0: all."),
                Field("stop_sequences", Items(stop, limits.stop), "The answer ends before any of these texts."),
                Field("stream", Flag(), "Send events while the answer is made.", False),
                Field("metadata", Ignored(Anything(16 * 1024, "object"))),
                Field("service_tier", Ignored(Text(64))),
            ),
            {"stop": "; did you mean 'stop_sequences'?"},
        ),
        "Answer a conversation, as Anthropic's API has it.",
    )


def count_table(bounds: Bounds) -> Table:
    """Of the endpoint that counts."""
    return Table(Record(_fields(bounds.limits)), "Count the tokens of a conversation.")
