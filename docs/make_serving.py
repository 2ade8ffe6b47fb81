"""Write the tables of docs/serving.md from the tables that read requests, and from the limits and their options."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from pathlib import Path

import make_spec as spec

from anyformer.cli.serve import LIMITS, limit_option
from anyformer.serve.config import Limits
from anyformer.serve.fields.chat import chat_table
from anyformer.serve.fields.completions import completions_table
from anyformer.serve.fields.kinds import (
    Anything,
    Either,
    Field,
    Flag,
    Ignored,
    Items,
    Kind,
    LogitBias,
    Neutral,
    Number,
    OneOf,
    Record,
    Text,
    TokenIds,
    Whole,
)
from anyformer.serve.fields.messages import messages_table
from anyformer.serve.fields.responses import responses_table
from anyformer.serve.fields.sampling import Bounds
from anyformer.serve.fields.table import Table
from anyformer.serve.fields.tagged import Tagged

PAGE = Path(__file__).resolve().parent / "serving.md"
LIMIT = Limits()
BOUNDS = Bounds(limits=LIMIT, vocab=2**31, input_vocab=2**31, room=2**31, slots=LIMIT.n)
MANY = 10**6
"""Bounds beyond it are there to be safe, and tell a reader nothing."""
TABLES: dict[str, Table] = {
    "completions": completions_table(BOUNDS),
    "chat": chat_table(BOUNDS),
    "responses": responses_table(BOUNDS),
    "messages": messages_table(BOUNDS),
}


def words(kind: Kind) -> str:
    """What a field may be, in a few words."""
    match kind:
        case TokenIds():
            return "token ids" if kind.most > MANY else f"up to {kind.most:,} token ids"
        case Whole():
            low, high = bound(kind.low), bound(kind.high)
            return f"{low} to {high}" if low and high else f"{low} or more" if low else "a whole number"
        case Number():
            return f"{'above ' * kind.above}{kind.low:g} to {kind.high:g}"
        case Flag():
            return "true, false"
        case Text():
            return "text" if kind.most > MANY else f"text, up to {kind.most:,} characters"
        case OneOf():
            return ", ".join(f"`{each}`" for each in kind.options)
        case LogitBias():
            return f"{{id: {-kind.far:g} to {kind.far:g}}}, up to {kind.most:,}"
        case Items():
            return f"up to {kind.most:,} of: {words(kind.of)}"
        case Either():
            return "; ".join(map(words, kind.kinds))
        case Anything():
            return f"JSON, up to {kind.most // 1024:,} KiB"
        case Tagged():
            return f"by `{kind.key}`: {', '.join(f'`{tag}`' for tag in kind.records)}"
        case Record():
            return ", ".join(f"`{each.name}`" for each in kind.fields if served(each))
        case _:
            raise TypeError(f"{type(kind).__name__} has no words here")


def bound(value: int) -> str:
    """A bound that somebody chose; none: as far as numbers go."""
    return f"{value:,}" if abs(value) <= MANY else ""


def served(field: Field) -> bool:
    """Whether a field has an effect."""
    return not isinstance(field.kind, Neutral | Ignored)


def by_name(names: tuple[str, ...]) -> Iterator[tuple[list[str], Field]]:
    """The fields of some endpoints, each with those that have it alike; those of all come first."""
    found: dict[tuple[str, str, str], tuple[list[str], Field]] = {}
    for name in names:
        for field in TABLES[name].record.fields:
            found.setdefault((field.name, repr(field.kind), field.doc), ([], field))[0].append(name)
    yield from sorted(found.values(), key=lambda each: -len(each[0]))


def fields() -> str:
    """What /v1/completions and /v1/chat/completions read, as Markdown."""
    names = ("completions", "chat")
    rows = [
        (
            f"`{field.name}`", "" if where == list(names) else ", ".join(where), words(field.kind),
            "required" if field.required else "" if field.default is None else f"`{json.dumps(field.default)}`", field.doc,
        )
        for where, field in by_name(names) if served(field)
    ]  # fmt: skip
    return "\n".join([*spec.table_of(("field", "only in", "values", "default", "meaning"), rows), ""])


def refused() -> str:
    """Fields that are known but not served, and those that change nothing, as Markdown."""
    rows = [
        (f"`{field.name}`", ", ".join(where), field.kind.why, ", ".join(f"`{json.dumps(value)}`" for value in field.kind.values))
        for where, field in by_name(tuple(TABLES)) if isinstance(field.kind, Neutral)
    ]  # fmt: skip
    lines = spec.table_of(("field", "of", "why not", "taken beside null"), rows)
    quiet: dict[str, list[str]] = {}
    for name, table in TABLES.items():
        for field in table.record.fields:
            if isinstance(field.kind, Ignored):
                quiet.setdefault(field.name, []).append(name)
    listed = ", ".join(f"`{name}` ({', '.join(where)})" for name, where in sorted(quiet.items()))
    return "\n".join([*lines, "", *textwrap.wrap(f"Read, and without effect: {listed}.", 130), ""])


def limits() -> str:
    """The limits that have an option, as Markdown."""
    rows = [(f"`{limit_option(name)}`", number(getattr(LIMIT, name)), said) for name, (said, _) in LIMITS.items()]
    return "\n".join([*spec.table_of(("option", "default", "bounds"), rows), ""])


def number(value: float) -> str:
    """A number with commas, and no point that it does not need."""
    return f"{int(value):,}" if value == int(value) else f"{value:,}"


def marks(name: str) -> tuple[str, str]:
    """The lines between which a generated part of the page stands."""
    return f"<!-- {name}: begin (docs/make.py) -->\n", f"<!-- {name}: end -->\n"


def updated(page: str) -> str:
    """The page with its generated parts between their marks."""
    for name, made in (("fields", fields()), ("refused", refused()), ("limits", limits())):
        begin, end = marks(name)
        before, rest = page.split(begin)
        _, after = rest.split(end)
        page = f"{before}{begin}\n{made.rstrip()}\n\n{end}{after}"
    return page


def main() -> None:
    """Write the page."""
    PAGE.write_text(updated(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
