"""Texts as rows of ids: checked, cut if asked, put together by length, and given back in their order."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tokenizers
import torch
from torch import Tensor

from anyformer.errors import InputError
from anyformer.generation.pipelines.source import Source
from anyformer.model.eval_mode import eval_mode
from anyformer.model.model import Model

BATCH = 8
"""Rows at once, unless told otherwise."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One text."""

    ids: list[int]
    types: list[int]
    """0 for the first text of a pair, 1 for the second."""
    encoding: tokenizers.Encoding
    text: str


def listed(inputs: Any, what: str = "a text") -> tuple[list[Any], bool]:
    """Inputs as a list, and whether one alone was given."""
    if isinstance(inputs, str | Mapping):
        return [inputs], True
    if not isinstance(inputs, Sequence) or isinstance(inputs, bytes):
        raise InputError(f"expected {what} or a list of them, got {type(inputs).__name__}")
    return list(inputs), False


def check_text(text: Any, i: int) -> str:
    """A text with something in it."""
    if not isinstance(text, str):
        raise InputError(f"input {i}: expected a text, got {type(text).__name__}")
    if not text.strip():
        raise InputError(f"input {i}: is empty; give a text")
    return text


def read_rows(source: Source, inputs: Sequence[Any], *, truncation: bool, spelled: bool = False) -> list[Row]:
    """Ids of each text, or pair of texts, with what the tokenizer's template puts around it.

    `spelled`: a special token that is spelled out in a text, such as [MASK], is that token.
    """
    inner = source.reader.spelled if spelled else source.reader.inner
    rows: list[Row] = []
    for i, given in enumerate(inputs):
        text, pair = given, None
        if isinstance(given, Mapping):
            strange = sorted(set(given) - {"text", "text_pair"})
            if strange or "text" not in given:
                raise InputError(f'input {i}: expected {{"text": ..., "text_pair": ...}}, got {sorted(given)}')
            text, pair = given["text"], given.get("text_pair")
        check_text(text, i)
        if pair is not None:
            check_text(pair, i)
        encoding = inner.encode(text, pair)
        rows.append(_row(source, encoding, text, i, truncation=truncation, pair=pair is not None))
    return rows


def _row(source: Source, encoding: tokenizers.Encoding, text: str, i: int, *, truncation: bool, pair: bool) -> Row:
    ids, types = list(encoding.ids), list(encoding.type_ids)
    size, hard = limit_of(source.model)
    if len(ids) > size and truncation:
        if pair:
            raise InputError(f"input {i}: a pair of {len(ids)} tokens can't be cut; shorten one of its texts")
        # What the template puts after the text stays there.
        closing = _closing(encoding.special_tokens_mask)
        keep = size - closing
        end = len(ids) - closing
        ids, types = ids[:keep] + ids[end:], types[:keep] + types[end:]
    elif len(ids) > size and hard:
        raise InputError(
            f"input {i}: has {len(ids)} tokens, and this model has {size} positions; shorten it, or cut it with "
            "truncation=True"
        )
    elif len(ids) > size:
        warnings.warn(
            f"input {i}: has {len(ids)} tokens, more than the {size} that this model is made for; truncation=True cuts it",
            stacklevel=5,
        )
    if not ids:
        raise InputError(f"input {i}: has no tokens")
    return Row(ids=ids, types=types, encoding=encoding, text=text)


def _closing(special: Sequence[int]) -> int:
    """Special tokens at the end."""
    count = 0
    while count < len(special) and special[-1 - count]:
        count += 1
    return count if count < len(special) else 0


def limit_of(model: Model) -> tuple[int, bool]:
    """Tokens that the stack which reads texts is made for, and whether it has no more positions than that."""
    stack: Any = model.decoder if model.spec.topology == "decoder" else model.encoder
    return (stack.limit, True) if stack.limit is not None else (model.spec.context, False)


def batches(lengths: Sequence[int], size: int) -> Iterator[list[int]]:
    """Which inputs run together: of like length, the longest first, so that what is too much shows at once."""
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    for start in range(0, len(order), size):
        yield order[start : start + size]


def padded(rows: Sequence[Sequence[int]], fill: int, *, left: bool = False) -> tuple[list[list[int]], list[list[int]]]:
    """Rows of one length, and which of their tokens are real."""
    longest = max(map(len, rows))
    ids: list[list[int]] = []
    mask: list[list[int]] = []
    for row in rows:
        blank = longest - len(row)
        ids.append([fill] * blank + [*row] if left else [*row] + [fill] * blank)
        mask.append([0] * blank + [1] * len(row) if left else [1] * len(row) + [0] * blank)
    return ids, mask


def read_all(
    source: Source, rows: Sequence[Row], size: int, answer: Callable[[Any, Tensor, list[Row]], Sequence[Any]],
    model: Model | None = None,
) -> list[Any]:  # fmt: skip
    """Run the model over all rows, and hand each batch's output, mask and rows to `answer`; its answers in order."""
    found: list[Any] = [None] * len(rows)
    model = model or source.model
    spec = model.spec
    typed = spec.embed.token_types > 0 or spec.head.kind == "pair"
    two = spec.topology == "encoder-decoder"
    with torch.inference_mode(), eval_mode(model):
        for batch in batches([len(row.ids) for row in rows], size):
            chosen = [rows[i] for i in batch]
            ids, mask = padded([row.ids for row in chosen], spec.input_pad or 0)
            more: dict[str, Any] = {}
            if typed:
                more["token_types"] = source.to_device(padded([row.types for row in chosen], 0)[0])
            if two:
                more["decoder_input_ids"] = source.to_device([[spec.ids.start or 0]] * len(chosen))
            mask_BT = source.to_device(mask)
            out = model(source.to_device(ids), attention_mask=mask_BT, **more)
            for i, each in zip(batch, answer(out, mask_BT, chosen), strict=True):
                found[i] = each
    return found


def check_size(batch_size: Any) -> int:
    """Rows at once."""
    if batch_size is None:
        return BATCH
    if type(batch_size) is not int or batch_size < 1:
        raise InputError(f"batch_size: expected a whole number of at least 1, got {batch_size!r}")
    return batch_size


def check_count(name: str, value: Any) -> int | None:
    """How many of the likeliest; None: all."""
    if value is not None and (type(value) is not int or value < 1):
        raise InputError(f"{name}: expected a whole number of at least 1, or None for all, got {value!r}")
    return value
