"""Which examples are learned from and which are held out, as a rule that needs no list."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, Literal

from anyformer.data.columns import Layout
from anyformer.data.sources.format import Record

Way = Literal["last", "drawn"]


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """The last characters of one text, the last documents of several, or examples drawn by a hash of what they hold."""

    share: Fraction
    way: Way
    layout: Layout
    key: str | None = None
    """The role whose value is hashed, so that equal values are on one side; unless given, the whole example."""
    cut: int | None = None
    """The character at which one long text is cut."""
    first: int | None = None
    """The first document that is held out."""

    def choose(self, records: Iterable[Record], *, held: bool) -> Iterator[Record]:
        """The records of one side."""
        if self.cut is not None:
            yield from (_after if held else _before)(records, self.layout.fields["text"], self.cut)
            return
        number, begins, inside = -1, True, False
        for record in records:
            if begins:
                number += 1
                inside = number >= self.first if self.first is not None else self._drawn(record)
            begins = not record.more
            if inside == held:
                yield record

    def _drawn(self, record: Record) -> bool:
        values: Any = self.layout.values(record)
        told = values if self.key is None else values[self.key]
        digest = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).digest()
        return int.from_bytes(digest[:8], "big") < self._below

    @cached_property
    def _below(self) -> int:
        return int(self.share * 2**64)


def find_held_out(
    records: Callable[[], Iterable[Record]],
    layout: Layout,
    share: Fraction,
    way: Way,
    key: str | None,
    *,
    documents: int,
    characters: int,
) -> HeldOut:
    """The rule for so many documents of so many characters in all."""
    if way == "drawn":
        return HeldOut(share=share, way=way, layout=layout, key=key)
    if documents == 1 and "text" in layout.fields:
        return HeldOut(share=share, way=way, layout=layout, cut=int(characters * (1 - share)))
    # From the end, documents are held out until they are the share; the first one is always learned from. Series of
    # numbers have no characters: each counts as much as any other.
    first, number, seen, total = 1, 0, 0, characters or documents
    for record in records():
        seen += sum(map(len, layout.texts(layout.values(record)))) if characters else 1
        if not record.more:
            if number and total - seen < share * total:
                first = number
                break
            number += 1
    return HeldOut(share=share, way=way, layout=layout, first=first)


def _before(records: Iterable[Record], field: str, cut: int) -> Iterator[Record]:
    seen = 0
    for record in records:
        text = record.fields[field]
        if seen + len(text) >= cut:
            if cut > seen:
                yield replace(record, fields={**record.fields, field: text[: cut - seen]}, more=False)
            return
        seen += len(text)
        yield record


def _after(records: Iterable[Record], field: str, cut: int) -> Iterator[Record]:
    seen = 0
    for record in records:
        text = record.fields[field]
        if seen + len(text) > cut:
            first = max(cut - seen, 0)
            yield replace(record, fields={**record.fields, field: text[first:]}, where=record.after(text[:first]))
        seen += len(text)
