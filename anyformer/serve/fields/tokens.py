"""The fields of the endpoints that turn texts into tokens and back."""

from anyformer.serve.fields.chat import message_kind, template_kwargs, tool_kinds
from anyformer.serve.fields.kinds import Field, Flag, Items, Record, Text, token_ids
from anyformer.serve.fields.sampling import MODEL, Bounds
from anyformer.serve.fields.table import Table


def tokenize_table(bounds: Bounds) -> Table:
    """Of POST /tokenize: llama.cpp's `content`, vLLM's `prompt`, or `messages`."""
    limits = bounds.limits
    text = Text(limits.body_bytes)
    return Table(
        Record(
            (
                MODEL,
                Field("content", text, "A text; unless add_special says so, no special token is put around it."),
                Field("prompt", text, "A text as /v1/completions reads it, with the special tokens around it."),
                Field("messages", Items(message_kind(limits), limits.messages, 1), "A conversation."),
                Field("add_special", Flag(), "Whether the tokenizer's special tokens are put around the text."),
                Field("add_special_tokens", Flag(), "The same by vLLM's name."),
                Field("with_pieces", Flag(), "Also say what each token stands for.", False),
                Field("parse_special", Flag(), "Whether special tokens that the text spells out are tokens."),
                Field("add_generation_prompt", Flag(), "End messages where the assistant's answer begins (true)."),
                Field("continue_final_message", Flag(), "End messages inside of the last one.", False),
                Field("chat_template_kwargs", template_kwargs(), "Variables of the chat template."),
                Field("tools", tool_kinds(limits)[0], "Functions that the chat template may list."),
            ),
            {"text": "; did you mean 'content'?", "input": "; did you mean 'content'?"},
        ),
        "The tokens of a text.",
    )


def detokenize_table(bounds: Bounds) -> Table:
    """Of POST /detokenize."""
    ids = token_ids(bounds.input_vocab, bounds.limits.body_bytes, 0)
    return Table(Record((MODEL, Field("tokens", ids, "Token ids.", required=True))), "The text of tokens.")
