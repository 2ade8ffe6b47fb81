"""The fields of llama.cpp's own POST /completion."""

from dataclasses import dataclass
from typing import Any

from anyformer.serve.fields.kinds import (
    SHOWN,
    Anything,
    Either,
    Field,
    Flag,
    Ignored,
    Items,
    Kind,
    Neutral,
    Number,
    Record,
    Text,
    Whole,
    Wrong,
    shown,
)
from anyformer.serve.fields.prompts import PromptsKind
from anyformer.serve.fields.sampling import MODEL, SEED, Bounds
from anyformer.serve.fields.table import Table

MOST = 2**31 - 1
ALL = -1
"""As many tokens as there is room for; and a seed that nobody knows."""
OFF: dict[str, Any] = {
    "dynatemp_range": 0.0, "top_n_sigma": -1.0, "xtc_probability": 0.0, "dry_multiplier": 0.0, "mirostat": 0,
    "adaptive_target": -1.0, "min_keep": 0, "n_indent": 0, "lora": [],
}  # fmt: skip
"""Settings of llama.cpp that this server does not have, and the value with which each changes nothing."""
IDLE = {
    "dynatemp_exponent": 1.0, "xtc_threshold": 0.1, "dry_base": 1.75, "dry_allowed_length": 2, "dry_penalty_last_n": -1,
    "mirostat_tau": 5.0, "mirostat_eta": 0.1, "adaptive_decay": 0.9, "n_keep": 0, "n_discard": 0,
}  # fmt: skip
"""Settings of those, which mean nothing while they are off; and what is kept of a text that outgrows its room, as none does."""


@dataclass(frozen=True)
class NativeBias(Kind):
    """[[id or text, bias], ...] or {id or text: bias}; false instead of a bias: never."""

    vocab: int
    most: int
    chars: int
    far: float = 100.0

    def read(self, value: Any, where: str) -> list[tuple[int | str, float | None]]:
        """Pairs; None instead of a bias: never."""
        if isinstance(value, dict):
            pairs: list[Any] = [[int(key) if _is_id(key) else key, bias] for key, bias in value.items()]
        elif isinstance(value, list):
            pairs = value
        else:
            raise self.refuse(value, where)
        if len(pairs) > self.most:
            raise Wrong(where, f"{len(pairs):,} entries; at most {self.most:,} are allowed")
        return [self._pair(pair, f"{where}[{i}]") for i, pair in enumerate(pairs)]

    def _pair(self, pair: Any, where: str) -> tuple[int | str, float | None]:
        if not isinstance(pair, list) or len(pair) != 2:
            raise Wrong(where, f"expected [id or text, bias], got {shown(pair)}", "invalid_type")
        token, bias = pair
        if isinstance(token, str):
            Text(self.chars, 1).read(token, where)
        elif type(token) is not int or not 0 <= token < self.vocab:
            raise Wrong(where, f"{shown(token)} is not a token id from 0 to {self.vocab - 1:,}, and no text")
        return token, None if bias is False else Number(-self.far, self.far).read(bias, where)

    def schema(self) -> dict[str, Any]:
        bias = {"anyOf": [{"type": "number", "minimum": -self.far, "maximum": self.far}, {"const": False}]}
        token = {"anyOf": [{"type": "integer", "minimum": 0, "maximum": self.vocab - 1}, {"type": "string", "minLength": 1, "maxLength": self.chars}]}  # fmt: skip
        pair = {"type": "array", "prefixItems": [token, bias], "minItems": 2, "maxItems": 2}
        return {
            "anyOf": [
                {"type": "object", "additionalProperties": bias, "maxProperties": self.most},
                {"type": "array", "items": pair, "maxItems": self.most},
            ]
        }

    def words(self) -> str:
        return f"a list of [id or text, bias] with biases from {-self.far:g} to {self.far:g}, or false for never"


def _is_id(key: str) -> bool:
    return key.isascii() and key.isdecimal() and len(key) < SHOWN


def native_table(bounds: Bounds) -> Table:
    """All of them."""
    limits = bounds.limits
    stop, penalty, never = Text(limits.stop_chars, 1), Number(-2, 2), "this server has no such sampler"
    return Table(
        Record(
            (
                MODEL,
                Field("prompt", PromptsKind(bounds.input_vocab, limits.prompts, limits.body_bytes), "What the model continues.", required=True),
                Field("n_predict", Whole(ALL, MOST), "New tokens at most; -1: as many as there is room for."),
                Field("temperature", Number(0, 100), "0 takes the likeliest token."),
                Field("top_k", Whole(-1, MOST), "Draw from the k likeliest tokens; 0 or -1: all."),
                Field("top_p", Number(0, 1, above=True), "Draw from the fewest tokens with this probability together."),
                Field("min_p", Number(0, 1), "Draw from tokens at least this many times as likely as the likeliest."),
                Field("typical_p", Number(0, 1, above=True), "Locally typical sampling."),
                Field("repeat_penalty", Number(0, 10, above=True), "Above 1 makes tokens that occurred less likely."),
                Field("repeat_last_n", Whole(ALL, MOST), "-1: the whole text counts for penalties, as always here; another number only without them."),
                Field("presence_penalty", penalty, "Subtracted from tokens that were generated."),
                Field("frequency_penalty", penalty, "The same, as many times as they were generated."),
                Field("logit_bias", NativeBias(bounds.vocab, limits.logit_bias, limits.stop_chars), "Added to the logits of ids, or of the tokens of texts; false: never."),
                Field("seed", Whole(-SEED, SEED - 1), "The same seed draws the same text; -1: another one each time."),
                Field("stop", Either((stop, Items(stop, limits.stop))), "The answer ends before any of these texts."),
                Field("ignore_eos", Flag(), "Never end with the end-of-text token.", False),
                Field("n_probs", Whole(0, limits.top_logprobs), "Probabilities of each token, and of so many of the likeliest.", 0),
                Field("post_sampling_probs", Flag(), "Those that tokens are drawn with, not the model's own.", False),
                Field("stream", Flag(), "Send the answer as server-sent events, while it is made.", False),
                Field("return_tokens", Flag(), "Also send the ids of tokens.", False),
                Field("response_fields", Items(Text(256, 1), 64), "Only these fields of the answer; a/b is b inside of a."),
                Field("json_schema", Anything(limits.schema_bytes), "The answer is JSON of this schema."),
                Field("grammar", Text(limits.schema_bytes), "The answer follows this grammar (GBNF)."),
                Field("timings_per_token", Flag(), "Times with every event of a stream.", False),
                Field("return_progress", Flag(), "Events of a stream while the prompt is read.", False),
                Field("t_max_predict_ms", Whole(ALL, MOST), "End at a line's end after so many milliseconds of generation; 0 or -1: never.", 0),
                Field("cache_prompt", Ignored(Flag())),
                Field("id_slot", Ignored(Whole(-1, MOST))),
                *(Field(name, Neutral(_alike(value), never)) for name, value in OFF.items()),
                *(Field(name, Ignored(Number(-1e9, 1e9))) for name in IDLE),
                Field("dry_sequence_breakers", Ignored(Items(Text(256), 64))),
                Field("image_data", Neutral(([],), "this server reads text only")),
            ),
            {
                "max_tokens": "; did you mean 'n_predict'?",
                "repetition_penalty": "; did you mean 'repeat_penalty'?",
                "logprobs": "; did you mean 'n_probs'?",
                "samplers": "; the order of samplers is fixed here",
                "messages": "; use /v1/chat/completions",
            },
        ),
        "Continue a text, as llama.cpp's server does.",
    )  # fmt: skip


def _alike(value: Any) -> tuple[Any, ...]:
    """A number that changes nothing, whole or not."""
    return (value, int(value)) if isinstance(value, float) else (value, float(value)) if value == 0 else (value,)
