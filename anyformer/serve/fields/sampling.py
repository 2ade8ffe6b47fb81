"""Fields that every endpoint that generates has: how tokens are chosen, when an answer ends, and how it is sent."""

from dataclasses import dataclass

from anyformer.serve.config import Limits
from anyformer.serve.fields.kinds import (
    Anything,
    Either,
    Field,
    Flag,
    Ignored,
    Items,
    Kind,
    LogitBias,
    Neutral,
    Number,
    OneOf,
    Record,
    Text,
    Whole,
    token_ids,
)
from anyformer.serve.fields.tagged import Tagged

SEED = 2**63
MODEL = Field("model", Text(2**16), "The model's name; absent: the one that is served.")
TOKENS = Whole(0, 2**31 - 1)
SOME_TOKENS = Whole(1, 2**31 - 1)


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """What the bounds of fields depend on."""

    limits: Limits
    vocab: int
    input_vocab: int
    room: int
    """Tokens that a sequence may have."""
    slots: int
    """Sequences at once."""

    @property
    def answers(self) -> int:
        """The most answers to one prompt."""
        return min(self.limits.n, self.slots)


def sampling_fields(bounds: Bounds) -> tuple[Field, ...]:
    """OpenAI's, and vLLM's beside them."""
    limits = bounds.limits
    stop = Text(limits.stop_chars, 1)
    penalty = Number(-2, 2)
    return (
        Field("n", Whole(1, bounds.answers), "Answers to each prompt.", 1),
        Field("temperature", Number(0, 100), "0 takes the likeliest token."),
        Field("top_p", Number(0, 1, above=True), "Draw from the fewest tokens with this probability together."),
        Field("top_k", Whole(-1, 2**31 - 1), "Draw from the k likeliest tokens; 0 or -1: all."),
        Field("min_p", Number(0, 1), "Draw from tokens at least this many times as likely as the likeliest."),
        Field("typical_p", Number(0, 1, above=True), "Locally typical sampling."),
        Field("repetition_penalty", Number(0, 10, above=True), "Above 1 makes tokens that occurred less likely."),
        Field("presence_penalty", penalty, "Subtracted from tokens that were generated."),
        Field("frequency_penalty", penalty, "The same, as many times as they were generated."),
        Field("logit_bias", LogitBias(bounds.vocab, limits.logit_bias), "Added to the logits of some token ids."),
        Field("seed", Whole(-SEED, SEED - 1), "The same seed draws the same text."),
        Field("stop", Either((stop, Items(stop, limits.stop))), "The answer ends before any of these texts."),
        Field("stop_token_ids", token_ids(bounds.vocab, 64, 0), "Further ids that end an answer."),
        Field("min_tokens", TOKENS, "No answer ends before it has so many tokens.", 0),
        Field("ignore_eos", Flag(), "Go on after the end-of-text token.", False),
        Field("response_format", response_format(limits), "text, a JSON object, or JSON of a schema."),
        Field("structured_outputs", structured_outputs(limits), "Guided decoding, by vLLM's names."),
        Field("skip_special_tokens", Neutral((True,), "special tokens are no part of a text")),
        Field("return_token_ids", Flag(), "Also send the ids of tokens.", False),
        *stream_fields(),
        Field("user", Ignored(Text(256)), "Who asks."),
    )


def stream_fields() -> tuple[Field, ...]:
    """How an answer is sent."""
    options = Record(
        (
            Field("include_usage", Flag(), "A last event with the number of tokens.", False),
            Field("continuous_usage_stats", Flag(), "The numbers so far with every event.", False),
            Field("include_obfuscation", Neutral((False, True), "events are not padded")),
        )
    )
    return (
        Field("stream", Flag(), "Send the answer as server-sent events, while it is made.", False),
        Field("stream_options", options, "What a stream tells beside the text."),
    )


def response_format(limits: Limits) -> Kind:
    """OpenAI's response_format, and llama.cpp's schema inside of json_object."""
    schema = Anything(limits.schema_bytes)
    named = Record(
        (
            Field("name", Text(64), "Of the schema."),
            Field("description", Text(4096), "Of the schema."),
            Field("schema", schema, "A JSON Schema.", required=True),
            Field("strict", Flag(), "Always so here."),
        )
    )
    kind = Field("type", OneOf(("text", "json_object", "json_schema")), required=True)
    return Tagged(
        "type",
        {
            "text": Record((kind,)),
            "json_object": Record((kind, Field("schema", schema, "A JSON Schema."))),
            "json_schema": Record((kind, Field("json_schema", named), Field("schema", schema, "A JSON Schema."))),
        },
    )


def structured_outputs(limits: Limits) -> Record:
    """The structured_outputs of vLLM: one of these."""
    choice = Items(Text(1000, 1), 1024, 1)
    return Record(
        (
            Field("json", Anything(limits.schema_bytes), "A JSON Schema."),
            Field("regex", Text(limits.schema_bytes, 1), "A regular expression."),
            Field("choice", choice, "Texts of which the answer is one."),
            Field("grammar", Text(limits.schema_bytes, 1), "A grammar, as Lark or GBNF writes it."),
            Field("json_object", Flag(), "Any JSON object."),
        )
    )


RENAMED = {
    "max_new_tokens": "; did you mean 'max_tokens'?",
    "best_n": "; did you mean 'best_of'?",
    "guided_json": "; write structured_outputs: {json: ...}",
    "guided_regex": "; write structured_outputs: {regex: ...}",
    "guided_choice": "; write structured_outputs: {choice: [...]}",
    "guided_grammar": "; write structured_outputs: {grammar: ...}",
    "repeat_penalty": "; did you mean 'repetition_penalty'?",
}
"""Names from elsewhere."""
