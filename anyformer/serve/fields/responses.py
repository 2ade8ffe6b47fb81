"""The fields of POST /v1/responses."""

from anyformer.serve.config import Limits
from anyformer.serve.fields.chat import NO_MEDIA, ROLES
from anyformer.serve.fields.kinds import (
    Anything,
    Either,
    Field,
    Flag,
    Ignored,
    Items,
    Kind,
    Neutral,
    Number,
    OneOf,
    Record,
    Text,
    Whole,
)
from anyformer.serve.fields.sampling import MODEL, SOME_TOKENS, Bounds
from anyformer.serve.fields.table import Table
from anyformer.serve.fields.tagged import Tagged

KEPT = "answers are not kept; send the whole conversation as input"


def input_kind(limits: Limits) -> Kind:
    """A text, or what was said and called so far."""
    text = Text(limits.body_bytes)
    parts = ("input_text", "output_text", "text")
    part = Tagged(
        "type",
        {
            name: Record(
                (
                    Field("type", OneOf((name,)), required=True),
                    Field("text", text, required=True),
                    Field("annotations", Ignored(Anything(limits.body_bytes))),
                    Field("logprobs", Ignored(Anything(limits.body_bytes))),
                )
            )
            for name in parts
        },
        dict.fromkeys(("input_image", "input_audio", "input_file"), NO_MEDIA),
    )
    content = Either((text, Items(part, limits.messages, 1)))
    own = (Field("id", Ignored(Text(256))), Field("status", Ignored(Text(64))))
    message = Record(
        (
            Field("type", OneOf(("message",)), default="message"),
            Field("role", OneOf(ROLES), required=True),
            Field("content", content, required=True),
            *own,
        )
    )
    call = Record(
        (
            Field("type", OneOf(("function_call",)), required=True),
            Field("call_id", Text(256, 1), required=True),
            Field("name", Text(256, 1), required=True),
            Field("arguments", text, required=True),
            *own,
        )
    )
    output = Record(
        (
            Field("type", OneOf(("function_call_output",)), required=True),
            Field("call_id", Text(256, 1), required=True),
            Field("output", text, required=True),
            *own,
        )
    )
    records = {"message": message, "function_call": call, "function_call_output": output}
    items = Tagged("type", records, {"item_reference": KEPT}, default="message")
    return Either((text, Items(items, limits.messages, 1)))


def responses_table(bounds: Bounds) -> Table:
    """All of them."""
    limits = bounds.limits
    kind = Field("type", OneOf(("function",)), required=True)
    tool = Tagged(
        "type",
        {
            "function": Record(
                (
                    kind,
                    Field("name", Text(256, 1), required=True),
                    Field("description", Text(limits.body_bytes)),
                    Field("parameters", Anything(limits.schema_bytes, "object"), "A JSON Schema."),
                    Field("strict", Flag()),
                )
            )
        },
        dict.fromkeys(
            ("web_search", "file_search", "code_interpreter", "computer_use_preview", "mcp", "image_generation"),
            "only functions can be called",
        ),
    )
    named = Record((kind, Field("name", Text(256, 1), required=True)))
    form = Tagged(
        "type",
        {
            "text": Record((Field("type", OneOf(("text",)), required=True),)),
            "json_object": Record((Field("type", OneOf(("json_object",)), required=True),)),
            "json_schema": Record(
                (
                    Field("type", OneOf(("json_schema",)), required=True),
                    Field("name", Text(64)),
                    Field("description", Text(4096)),
                    Field("schema", Anything(limits.schema_bytes), "A JSON Schema.", required=True),
                    Field("strict", Flag()),
                )
            ),
        },
    )
    text = Record((Field("format", form, "text, a JSON object, or JSON of a schema."), Field("verbosity", Neutral(("medium",), "the model has no such setting"))))  # fmt: skip
    return Table(
        Record(
            (
                MODEL,
                Field("input", input_kind(limits), "A text, or a list of messages and calls.", required=True),
                Field("instructions", Text(limits.body_bytes), "A system message before all others."),
                Field("max_output_tokens", SOME_TOKENS, "New tokens at most."),
                Field("temperature", Number(0, 100), "0 takes the likeliest token."),
                Field("top_p", Number(0, 1, above=True), "Draw from the fewest tokens with this probability together."),
                Field("top_logprobs", Whole(0, limits.top_logprobs), "Log-probabilities of so many tokens at each."),
                Field("seed", Whole(-(2**63), 2**63 - 1), "The same seed draws the same text."),
                Field("stream", Flag(), "Send events while the answer is made.", False),
                Field("stream_options", Ignored(Anything(1024, "object"))),
                Field("text", text, "The form of the answer."),
                Field("tools", Items(tool, limits.tools), "Functions that the model may call."),
                Field("tool_choice", Either((OneOf(("none", "auto", "required")), named)), "Which of them."),
                Field("parallel_tool_calls", Flag(), "Whether it may call several at once.", True),
                Field(
                    "reasoning",
                    Record(
                        (
                            Field("effort", OneOf(("none", "minimal", "low", "medium", "high"))),
                            Field("summary", Neutral((), "there is none")),
                        )
                    ),
                    "For the chat template.",
                ),
                Field("store", Neutral((False,), KEPT)),
                Field("previous_response_id", Neutral((), KEPT)),
                Field("conversation", Neutral((), KEPT)),
                Field("background", Neutral((False,), KEPT)),
                Field(
                    "include",
                    Items(OneOf(("message.output_text.logprobs",)), 16),
                    "Log-probabilities of the answer's tokens.",
                ),
                Field("truncation", Neutral(("disabled",), "a conversation is not cut")),
                Field("prompt", Neutral((), "there are no stored prompts")),
                Field("max_tool_calls", Neutral((), "the server calls no tools")),
                Field("metadata", Ignored(Anything(16 * 1024, "object"))),
                Field("service_tier", Ignored(Text(64))),
                Field("prompt_cache_key", Ignored(Text(256))),
                Field("safety_identifier", Ignored(Text(256))),
                Field("user", Ignored(Text(256))),
            ),
            {"messages": "; did you mean 'input'?", "max_tokens": "; did you mean 'max_output_tokens'?"},
        ),
        "Answer a conversation, as the Responses API has it.",
    )
