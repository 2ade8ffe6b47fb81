"""Texts as rows of ids: checked, cut if asked, put together by length, and given back in their order."""

import functools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import tokenizers
import torch

from anyformer.data.tokenizer import Tokenizer
from anyformer.errors import InputError
from anyformer.generation.params.generation_request import context_length
from anyformer.generation.pipelines.source import Source
from anyformer.model.eval_mode import eval_mode
from anyformer.model.model import Model
from anyformer.specs.embed_head import Classifier

BATCH = 8
"""Rows at once, unless told otherwise."""


class Row(NamedTuple):
    """One text, or a pair of them."""

    ids: list[int]
    types: list[int]
    """0 for the first text of a pair, 1 for the second."""
    encoding: tokenizers.Encoding
    text: str
    pair: str | None


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


def read_rows(
    source: Source,
    inputs: Sequence[Any],
    *,
    truncation: bool,
    spelled: bool = False,
    most: int | None = None,
    reader: Tokenizer | None = None,
) -> list[Row]:
    """Ids of each text, or pair of texts, with what the tokenizer's template puts around it.

    `spelled`: a special token that is spelled out in a text, such as [MASK], is that token. `most`: tokens that are left
    of a text that is cut, if not as many as the model reads. `reader` is the tokenizer, unless it is the source's.
    """
    own, model = reader or source.reader, source.model
    inner = own.spelled if spelled else own.inner
    size, hard = context_length(model, model.decoder if model.spec.topology == "decoder" else model.encoder)
    size = size if most is None else min(size, most)
    rows: list[Row] = []
    for i, given in enumerate(inputs):
        text, pair = given, None
        if isinstance(given, Mapping):
            if "text" not in given or set(given) - {"text", "text_pair"}:
                raise InputError(f'input {i}: expected {{"text": ..., "text_pair": ...}}, got {sorted(given)}')
            text, pair = given["text"], given.get("text_pair")
        encoding = inner.encode(check_text(text, i), None if pair is None else check_text(pair, i))
        ids, types = encoding.ids, encoding.type_ids
        if len(ids) > size and truncation:
            if pair is not None:
                raise InputError(f"input {i}: a pair of {len(ids)} tokens can't be cut; shorten one of its texts")
            # The special tokens that the template puts after the text stay there.
            closing = next((n for n, special in enumerate(reversed(encoding.special_tokens_mask)) if not special), 0)
            keep, end = size - closing, len(ids) - closing
            ids, types = ids[:keep] + ids[end:], types[:keep] + types[end:]
        elif len(ids) > size and hard:
            raise InputError(
                f"input {i}: has {len(ids)} tokens, and this model has {size} positions; shorten it, or cut it with "
                "truncation=True"
            )
        elif len(ids) > size:
            warnings.warn(
                f"input {i}: has {len(ids)} tokens, more than the {size} that this model is made for; truncation=True "
                "cuts it",
                stacklevel=4,
            )
        if not ids:
            raise InputError(f"input {i}: has no tokens")
        rows.append(Row(ids, types, encoding, text, pair))
    return rows


def batches(lengths: Sequence[int], size: int) -> Iterator[list[int]]:
    """Which inputs run together: of like length, the longest first, so that what is too much shows at once."""
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    for start in range(0, len(order), size):
        yield order[start : start + size]


def padded(rows: Sequence[Sequence[int]], fill: int, *, left: bool = False) -> tuple[list[list[int]], list[list[int]]]:
    """Rows of one length, and which of their tokens are real."""
    longest = max(map(len, rows))

    def filled(row: Sequence[int], fill: int) -> list[int]:
        blank = [fill] * (longest - len(row))
        return [*blank, *row] if left else [*row, *blank]

    return [filled(row, fill) for row in rows], [filled([1] * len(row), 0) for row in rows]


class Reader:
    """What the tasks share that read texts: rows of ids, passes over batches of them, and answers in order."""

    spelled = False
    """Whether special tokens may be spelled out in a text."""
    most: int | None = None
    """Tokens that are left of a text that is cut; None: as many as the model reads."""

    def __init__(self, source: Source, model: Model | None = None) -> None:
        self.source, self.model = source, model or source.model

    def check(self, i: int, row: Row) -> None:
        """Refuse input `i` if this task can't answer it."""

    def marks(self, row: Row) -> list[int]:
        """Which tokens of a row see all others, and are seen by all, in a model that asks (Longformer)."""
        return [0] * len(row.ids)

    def limit(self) -> int:
        """Tokens that a row may have."""
        spec = self.model.spec
        stack = self.model.decoder if spec.topology == "decoder" else self.model.encoder
        return context_length(self.model, stack)[0]

    @functools.cached_property
    def _cutter(self) -> tokenizers.Tokenizer:
        """A tokenizer of its own, whose settings may change."""
        return tokenizers.Tokenizer.from_str(self.source.reader.inner.to_str())

    def cut(self, text: str, pair: str | None, *, length: int, stride: int = 0, strategy: str) -> list[Row]:
        """A text or a pair as rows of at most `length` tokens, which have `stride` tokens of what is cut in common."""
        try:
            self._cutter.enable_truncation(length, stride=stride, strategy=strategy)
            whole = self._cutter.encode(text, pair)
        except BaseException as error:  # The library has no other way to say that nothing is left.
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            raise InputError(f"rows of {length} tokens, {stride} of them in common, are too short: {error}") from error
        return [Row(part.ids, part.type_ids, part, text, pair) for part in (whole, *whole.overflowing)]

    def read(
        self, inputs: Any, answer: Callable[[Any, int, Row], Any], *, batch_size: int | None, truncation: bool
    ) -> Any:
        """What `answer(output, b, row)` makes of row b of each pass: of a text alone, or of each text of a list."""
        given, alone = listed(inputs)
        rows = read_rows(self.source, given, truncation=truncation, spelled=self.spelled, most=self.most)
        for i, row in enumerate(rows):
            self.check(i, row)
        found = self.run(rows, answer, batch_size=batch_size)
        return found[0] if alone else found

    def run(self, rows: Sequence[Row], answer: Callable[[Any, int, Row], Any], *, batch_size: int | None) -> list[Any]:
        """What `answer(output, b, row)` makes of each row."""
        found: list[Any] = [None] * len(rows)
        spec, to_device = self.model.spec, self.source.to_device
        with torch.inference_mode(), eval_mode(self.model):
            for batch in batches([len(row.ids) for row in rows], check_size(batch_size)):
                ids, mask = padded([rows[i].ids for i in batch], spec.input_pad or 0)
                more: dict[str, Any] = {}
                if spec.embed.token_types > 0 or spec.head.kind == "pair":
                    more["token_types"] = to_device(padded([rows[i].types for i in batch], 0)[0])
                if spec.topology != "decoder" and self.model.encoder.reads_marks:
                    more["global_mask"] = to_device(padded([self.marks(rows[i]) for i in batch], 0)[0])
                # A head that classifies is asked about the source, which the decoder reads once more.
                if spec.topology == "encoder-decoder" and not isinstance(spec.head, Classifier):
                    more["decoder_input_ids"] = to_device([[spec.ids.start or 0]] * len(batch))
                out = self.model(to_device(ids), attention_mask=to_device(mask), **more)
                for b, i in enumerate(batch):
                    found[i] = answer(out, b, rows[i])
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
