"""The fields of /v1/embeddings and of llama.cpp's own /embedding and /embeddings."""

from anyformer.serve.fields.kinds import Field, Ignored, OneOf, Record, Text, Whole
from anyformer.serve.fields.prompts import PromptsKind
from anyformer.serve.fields.sampling import MODEL, Bounds
from anyformer.serve.fields.table import Table

FORMATS = OneOf(("float", "base64"))


def input_kind(bounds: Bounds) -> PromptsKind:
    """Texts or token ids."""
    return PromptsKind(bounds.input_vocab, bounds.limits.embeddings, bounds.limits.body_bytes)


def embeddings_table(bounds: Bounds, width: int) -> Table:
    """Of POST /v1/embeddings."""
    return Table(
        Record(
            (
                MODEL,
                Field("input", input_kind(bounds), "Texts or token ids.", required=True),
                Field("encoding_format", FORMATS, "float, or base64: 32-bit floats, little-endian.", "float"),
                Field("dimensions", Whole(1, width), "So many numbers of each vector, scaled to length 1 again."),
                Field("user", Ignored(Text(256)), "Who asks."),
            )
        ),
        "A vector for each text.",
    )


def native_embeddings_table(bounds: Bounds) -> Table:
    """Of POST /embedding and /embeddings."""
    kind = input_kind(bounds)
    return Table(
        Record(
            (
                MODEL,
                Field("input", kind, "Texts or token ids."),
                Field("content", kind, "The same by its older name."),
                Field("encoding_format", FORMATS, "float, or base64: 32-bit floats, little-endian.", "float"),
            )
        ),
        "Vectors of each text: one, or with --pooling none one for each token.",
    )
