"""Server-sent events, framed by hand: of a token's event all but its text is the same, and is written once."""

import json
from functools import partial
from json.encoder import encode_basestring_ascii

DONE = b"data: [DONE]\n\n"
"""The last event of OpenAI's streams."""

quoted = encode_basestring_ascii
"""A text as JSON, in ASCII: no line break of any kind can end an event early."""
dumps = partial(json.dumps, allow_nan=False, separators=(",", ":"))
"""Compact JSON."""


def event(data: object) -> str:
    """One event."""
    return f"data: {dumps(data)}\n\n"
