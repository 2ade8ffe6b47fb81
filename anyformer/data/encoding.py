"""Records to columns of numbers: texts are encoded in batches on all cores, while the batch before is written."""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate, chain, product
from typing import Any

import numpy as np

from anyformer.data.dataset import Names, Ragged
from anyformer.data.scan import STORED, Layout
from anyformer.data.sources import Record
from anyformer.data.tokenizer import Tokenizer, guarded
from anyformer.errors import DataError

BATCH = 2**22
"""Characters that are encoded at once: enough to keep all cores busy, and few enough to hold."""
AHEAD = 2
"""Batches that are encoded at the same time."""
CONTEXT = 256
"""Characters on both sides of a cut that decide whether a text can be encoded in pieces there."""
IGNORED = -100
"""The tag of a token that is not the first of its word: no loss is taken there."""


@dataclass(slots=True)
class Item:
    """A record on its way: what is encoded, and what of it is kept."""

    values: dict[str, Any]
    record: Record
    """The first of those that its text is of."""
    more: bool
    context: str = ""
    """The end of the text before a cut, encoded along and dropped again."""
    drop: int = 0
    """Tokens of the context."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """A batch of examples, or of pieces of examples that go on."""

    columns: dict[str, Ragged]
    bytes: Any
    """UTF-8 bytes of the text of each, int64."""
    more: Any
    """Whether the next one goes on with it, bool."""
    characters: int


class Encoder:
    """Turns records into columns."""

    def __init__(self, layout: Layout, made: Tokenizer | None, names: Names, source: Tokenizer | None = None) -> None:
        """`source` encodes the column of that name, where it has a tokenizer of its own."""
        self.layout = layout
        chosen = {role: source or made if role == "source" else made for role in layout.texts}
        self._made = {role: tokenizer for role, tokenizer in chosen.items() if tokenizer is not None}
        self._numbers = {role: {name: i for i, name in enumerate(known)} for role, known in names.items()}
        self._dtypes = layout.dtypes(most_ids(made, source))

    def encode(self, records: Iterable[Record]) -> Iterator[Encoded]:
        """Columns of the records, in order, a batch at a time."""
        waiting: deque[tuple[list[Item], Future[dict[str, list[Any]]]]] = deque()
        # The library lets go of the interpreter while it encodes, so arrays are made and written meanwhile. Two batches
        # are under way: no core waits for the last text of the other's.
        with ThreadPoolExecutor(AHEAD) as encoding:
            for batch in self._batches(self._joined(records)):
                waiting.append((batch, encoding.submit(self._encodings, batch)))
                if len(waiting) > AHEAD:
                    yield self._columns(*waiting.popleft())
            while waiting:
                yield self._columns(*waiting.popleft())

    def _joined(self, records: Iterable[Record]) -> Iterator[Item]:
        """Pieces of long texts, where tokens don't reach over the cut; otherwise pieces are joined again."""
        held: Item | None = None
        parts: list[str] = []
        for record in records:
            item = Item(self.layout.values(record), record, record.more)
            if held is not None:
                if held.more:
                    fits = self._fits(parts[-1], item.values["text"])
                    if fits is None:
                        parts.append(item.values["text"])
                        held.more = item.more
                        continue
                    item.context, item.drop = fits
                yield _with_text(held, parts)
            held, parts = item, [item.values.get("text", "")]
        if held is not None:
            yield _with_text(held, parts)

    def _fits(self, before: str, after: str) -> tuple[str, int] | None:
        """The end of the text before a cut and its tokens, if they are the same with the text after it; else None."""
        context = before[-CONTEXT:]
        context = context[context.find("\n", 0, -1) + 1 :]
        try:
            alone, both = (self._made["text"].encode(text) for text in (context, context + after[:CONTEXT]))
        except DataError:
            # Whoever encodes the whole text says which character of which line has no token.
            return None
        return (context, len(alone)) if both[: len(alone)] == alone else None

    def _batches(self, items: Iterable[Item]) -> Iterator[list[Item]]:
        batch, size = list[Item](), 0
        for item in items:
            batch.append(item)
            size += sum(len(item.values[role]) for role in self._made) + 1
            if size >= BATCH:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch

    def _encodings(self, batch: list[Item]) -> dict[str, list[Any]]:
        """The library's answers for the texts of a batch, by role."""
        found: dict[str, list[Any]] = {}
        try:
            with guarded("the texts can't be encoded"):
                for role, made in self._made.items():
                    # Offsets cost time, and only tags need them.
                    encode = made.literal.encode_batch if role == "words" else made.literal.encode_batch_fast
                    texts = [item.context + self.layout.text(item.values, role) for item in batch]
                    found[role] = encode(texts, add_special_tokens=False)
        except DataError as error:
            raise self._blame(batch, error) from error
        return found

    def _blame(self, batch: list[Item], error: DataError) -> DataError:
        for item, (role, made) in product(batch, self._made.items()):
            text = self.layout.text(item.values, role)
            for character in dict.fromkeys(text):
                try:
                    made.encode(character)
                except DataError:
                    where = item.record.after(text[: text.index(character)])
                    return DataError(
                        f"{where}: {character!r} (U+{ord(character):04X}) has no token in this tokenizer; give "
                        "it a token for unknown characters with --special '<unk>', or train it on texts that have it"
                    )
        return error

    def _columns(self, batch: list[Item], encodings: Future[dict[str, list[Any]]]) -> Encoded:
        answers, columns = encodings.result(), dict[str, Ragged]()
        sizes = np.zeros(len(batch), np.int64)
        characters = 0
        for role, kind in self.layout.kinds.items():
            values, column = [item.values[role] for item in batch], STORED.get(role, role)
            if kind in ("tokens", "words"):
                texts = [self.layout.text(item.values, role) for item in batch]
                sizes += [len(text.encode()) for text in texts]
                characters += sum(map(len, texts))
                lists = [one.ids[item.drop :] for one, item in zip(answers[role], batch, strict=True)]
            elif kind == "tags":
                lists = [
                    self._tags(item.values, one.offsets) for one, item in zip(answers["words"], batch, strict=True)
                ]
            elif kind == "class":
                # Of a text in pieces the last one brings the class along.
                numbers = self._numbers[role]
                lists = [[] if item.more else [numbers[item.values[role]]] for item in batch]
            else:
                lists = values
                characters += sum(map(len, values))
            bounds = np.cumsum([0, *map(len, lists)])
            flat = np.fromiter(chain.from_iterable(lists), self._dtypes[column], int(bounds[-1]))
            columns[column] = Ragged(flat, bounds)
        return Encoded(columns, sizes, np.array([item.more for item in batch], bool), characters)

    def _tags(self, values: Mapping[str, Any], offsets: list[tuple[int, int]]) -> list[int]:
        """The tag of each word on the first token that has a character of it, and nothing on all others."""
        words, numbers = values["words"], self._numbers["tags"]
        ends = [end - 1 for end in accumulate(len(word) + 1 for word in words)]
        tags = [IGNORED] * len(offsets)
        tagged = -1
        for token, (start, end) in enumerate(offsets):
            # A token may begin with the space before its word, and then begins in no word or at the end of the last.
            word = bisect_right(ends, start)
            if word < len(words) and word > tagged and ends[word] - len(words[word]) < end:
                tags[token], tagged = numbers[values["tags"][word]], word
        return tags


def _with_text(item: Item, parts: list[str]) -> Item:
    if len(parts) > 1:
        item.values["text"] = "".join(parts)
    return item


def most_ids(*made: Tokenizer | None) -> int:
    """Ids of the largest vocabulary; 0 if there is none."""
    return max((ids_of(one) for one in made if one is not None), default=0)


def ids_of(made: Tokenizer) -> int:
    """One more than the largest id: a vocabulary may have holes."""
    return max(made.vocab, 1 + max(made.inner.get_vocab(with_added_tokens=True).values(), default=0))
