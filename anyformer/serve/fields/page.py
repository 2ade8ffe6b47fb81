"""The fields of what only the page asks for."""

from anyformer.serve.fields.chat import message_kind
from anyformer.serve.fields.kinds import Field, Items, Record, Text, token_ids
from anyformer.serve.fields.sampling import MODEL, Bounds
from anyformer.serve.fields.table import Table


def look_table(bounds: Bounds) -> Table:
    """Of POST /api/look: one of prompt, ids and messages."""
    limits = bounds.limits
    ids = token_ids(bounds.input_vocab, limits.look_tokens)
    return Table(
        Record(
            (
                MODEL,
                Field("prompt", Text(limits.body_bytes, 1), "A text."),
                Field("ids", ids, "Token ids."),
                Field("messages", Items(message_kind(limits), limits.messages, 1), "A conversation."),
            )
        ),
        "What happens inside of the model while it reads a text: attention, and what each layer would say next.",
    )
