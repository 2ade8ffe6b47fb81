"""The fields of POST /v1/completions."""

from anyformer.serve.fields.kinds import Either, Field, Flag, Items, Neutral, Record, Text, Whole, token_ids
from anyformer.serve.fields.sampling import MODEL, RENAMED, TOKENS, Bounds, sampling_fields
from anyformer.serve.fields.table import Table


def prompt_kind(bounds: Bounds, most: int) -> Either:
    """A text, several of them, ids, or several lists of ids."""
    text, ids = Text(bounds.limits.body_bytes), token_ids(bounds.input_vocab, bounds.limits.body_bytes)
    return Either((text, Items(text, most, 1), ids, Items(ids, most, 1)))


def completions_table(bounds: Bounds) -> Table:
    """All of them."""
    top = Whole(0, bounds.limits.top_logprobs)
    return Table(
        Record(
            (
                MODEL,
                Field("prompt", prompt_kind(bounds, bounds.limits.prompts), "What the model continues.", required=True),
                Field("max_tokens", TOKENS, "New tokens at most (16); 0 with echo only scores the prompt."),
                Field(
                    "best_of", Whole(1, bounds.answers), "So many answers are sampled, and the n likeliest are sent."
                ),
                Field("echo", Flag(), "Send the prompt before the answer.", False),
                Field("logprobs", top, "Log-probabilities of the tokens, and of so many of the likeliest at each."),
                Field("prompt_logprobs", top, "The same for the prompt, as vLLM sends it."),
                Field("suffix", Neutral(("",), "this server has no fill-in-the-middle")),
                Field(
                    "add_special_tokens", Flag(), "Whether a text is begun with bos where the tokenizer says so.", True
                ),
                *sampling_fields(bounds),
            ),
            RENAMED | {"top_logprobs": "; did you mean 'logprobs'?", "messages": "; use /v1/chat/completions"},
        ),
        "Continue a text, or score it (echo with logprobs).",
    )
