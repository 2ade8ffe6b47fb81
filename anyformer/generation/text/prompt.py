"""How a text becomes the ids that a model goes on from."""

from dataclasses import dataclass

from anyformer.data.tokenizer import Tokenizer, prompt_ids, source_ids
from anyformer.errors import InputError
from anyformer.specs.model import ModelSpec

BLANK = " "


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """What a model reads, and what of the text its first answer must repeat."""

    ids: tuple[int, ...]
    first: tuple[int, ...] | None = None
    """Ids among which the first new token is chosen; None: all."""
    repeated: int = 0
    """Characters of the prompt that the first new token says again."""


def read_prompt(spec: ModelSpec, tokenizer: Tokenizer, text: str | None) -> Prompt:
    """The prompt of a text; None lets the model begin by itself.

    Its ids are those of `anyformer.data.tokenizer`. For a run of ours the last blank of a prompt is taken back, and the
    first new token must begin with it: in what the model has learned from, a blank is seldom the end of a token, but the
    beginning of the next word.
    """
    ids_of = spec.ids
    if text is None:
        if spec.topology == "encoder-decoder":
            raise InputError("an encoder-decoder answers a text; give one")
        if ids_of.bos is None:
            raise InputError(
                "this model has no bos token to begin with (its spec has no ids.bos); give a text to continue"
            )
        return Prompt(ids=(ids_of.bos,))
    if spec.topology == "encoder-decoder":
        return Prompt(ids=tuple(source_ids(tokenizer, text)))
    # A published folder's text becomes exactly the ids that its files say.
    if not tokenizer.published and text.endswith(BLANK) and text != BLANK:
        blank = tokenizer.encode(BLANK)
        first = tokenizer.beginning_with(blank[0]) if len(blank) == 1 else ()
        if len(first) > 1:
            return Prompt(ids=prompt_ids(spec, tokenizer, text[:-1]), first=first, repeated=1)
    return Prompt(ids=prompt_ids(spec, tokenizer, text))
