"""The fields of POST /v1/chat/completions."""

from anyformer.serve.config import Limits
from anyformer.serve.fields.kinds import (
    Anything,
    Either,
    Field,
    Flag,
    Ignored,
    Items,
    Kind,
    Neutral,
    OneOf,
    Record,
    Text,
    Whole,
)
from anyformer.serve.fields.sampling import MODEL, RENAMED, SOME_TOKENS, Bounds, sampling_fields
from anyformer.serve.fields.table import Table
from anyformer.serve.fields.tagged import Tagged

ROLES = ("system", "developer", "user", "assistant", "tool")
NO_MEDIA = "this server reads text only; it opens no URL and no file"


def content_kind(limits: Limits) -> Kind:
    """A text, or parts that are texts."""
    text = Text(limits.body_bytes)
    kind = Field("type", OneOf(("text",)), required=True)
    part = Tagged(
        "type",
        {"text": Record((kind, Field("text", text, required=True)))},
        {
            name: NO_MEDIA
            for name in ("image_url", "input_image", "input_audio", "audio_url", "video_url", "file", "input_file")
        },
    )
    return Either((text, Items(part, limits.messages, 1)))


def message_kind(limits: Limits) -> Record:
    """One message."""
    function = Record(
        (Field("name", Text(256, 1), required=True), Field("arguments", Text(limits.body_bytes), required=True))
    )
    call = Record(
        (
            Field("id", Text(256)),
            Field("type", OneOf(("function",)), default="function"),
            Field("function", function, required=True),
            Field("index", Whole(0, 2**31 - 1)),
        )
    )
    return Record(
        (
            Field("role", OneOf(ROLES), "Who speaks.", required=True),
            Field("content", content_kind(limits), "What is said."),
            Field("name", Text(256)),
            Field("tool_calls", Items(call, limits.tools), "Calls that the assistant made."),
            Field("tool_call_id", Text(256), "Which call a tool answers."),
            Field("reasoning_content", Text(limits.body_bytes), "What was thought before the content."),
            Field("refusal", Text(limits.body_bytes)),
            Field("annotations", Ignored(Anything(limits.body_bytes))),
            Field("audio", Neutral((), NO_MEDIA)),
            Field("function_call", Neutral((), "use tool_calls")),
        )
    )


def tool_kinds(limits: Limits) -> tuple[Kind, Kind]:
    """Tools, and which of them is to be called."""
    function = Record(
        (
            Field("name", Text(256, 1), required=True),
            Field("description", Text(limits.body_bytes)),
            Field("parameters", Anything(limits.schema_bytes, "object"), "A JSON Schema."),
            Field("strict", Flag(), "Always so where a call is required."),
        )
    )
    tool = Tagged(
        "type",
        {"function": Record((Field("type", OneOf(("function",)), required=True), Field("function", function, required=True)))},
    )  # fmt: skip
    named = Record(
        (
            Field("type", OneOf(("function",)), required=True),
            Field("function", Record((Field("name", Text(256, 1), required=True),)), required=True),
        )
    )
    return Items(tool, limits.tools), Either((OneOf(("none", "auto", "required")), named))


def template_kwargs() -> Record:
    """What a request may tell the chat template: little, as a template is a program."""
    scalar = Either((Flag(), Text(64), Whole(0, 2**31 - 1)))
    return Record((Field("enable_thinking", Flag()), Field("reasoning_effort", scalar), Field("thinking", Flag())))


def chat_table(bounds: Bounds) -> Table:
    """All of them."""
    limits = bounds.limits
    tools, choice = tool_kinds(limits)
    return Table(
        Record(
            (
                MODEL,
                Field("messages", Items(message_kind(limits), limits.messages, 1), "The conversation.", required=True),
                Field(
                    "max_completion_tokens", SOME_TOKENS, "New tokens at most; absent: as many as there is room for."
                ),
                Field("max_tokens", SOME_TOKENS, "The older name of max_completion_tokens."),
                Field("logprobs", Flag(), "Log-probabilities of the tokens of the answer.", False),
                Field("top_logprobs", Whole(0, limits.top_logprobs), "And of so many of the likeliest at each."),
                Field("tools", tools, "Functions that the model may call."),
                Field("tool_choice", choice, "none, auto, required, or one function."),
                Field("parallel_tool_calls", Flag(), "Whether it may call several at once.", True),
                Field("add_generation_prompt", Flag(), "End the prompt where the assistant's answer begins (true)."),
                Field("continue_final_message", Flag(), "Let the model go on with the last message.", False),
                Field("chat_template_kwargs", template_kwargs(), "Variables of the chat template."),
                Field(
                    "reasoning_effort", OneOf(("none", "minimal", "low", "medium", "high")), "For the chat template."
                ),
                Field("store", Neutral((False,), "answers are not kept")),
                Field("metadata", Ignored(Anything(16 * 1024, "object"))),
                Field("service_tier", Ignored(Text(64))),
                Field("prompt_cache_key", Ignored(Text(256))),
                Field("safety_identifier", Ignored(Text(256))),
                Field("verbosity", Neutral(("medium",), "the model has no such setting")),
                Field("modalities", Neutral((["text"],), "this server writes text only")),
                Field("audio", Neutral((), "this server writes text only")),
                Field("prediction", Neutral((), "answers are not predicted")),
                Field("web_search_options", Neutral((), "this server opens no URL")),
                Field("functions", Neutral((), "use tools")),
                Field("function_call", Neutral((), "use tool_choice")),
                Field(
                    "chat_template", Neutral((), "a template is a program; the operator sets it with --chat-template")
                ),
                *sampling_fields(bounds),
            ),
            RENAMED | {"prompt": "; use /v1/completions"},
        ),
        "Answer a conversation.",
    )
