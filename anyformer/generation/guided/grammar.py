"""What an answer must look like, as a user describes it: a kind of grammar and its source."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from anyformer.errors import InputError, nearest

SOURCE_BYTES = 2**16
"""Bytes of the longest source, unless told otherwise."""
GBNF = re.compile(r"^\s*[\w-]+\s*::=", re.MULTILINE)
"""A rule as llama.cpp's grammars write it."""
NAMES = ("json_object", "json_schema", "regex", "grammar")
"""The keys of a description."""
EXAMPLE = (
    'give a dict with one of {"json_object": True}, {"json_schema": {...}}, {"regex": "..."} or {"grammar": "..."}'
)

Kind = Literal["json_object", "json_schema", "regex", "lark", "gbnf"]


@dataclass(frozen=True)
class Grammar:
    """A kind of grammar and its source, as plain as it can be: two that are equal allow the same texts."""

    kind: Kind
    source: str = ""


def read_grammar(given: Any, *, source_bytes: int = SOURCE_BYTES) -> Grammar:
    """The grammar of a description: a dict with one of json_object, json_schema, regex and grammar (Lark or GBNF)."""
    if isinstance(given, Grammar):
        return _fitting(given, source_bytes)
    if not isinstance(given, Mapping) or len(given) != 1:
        what = f"{len(given)} keys" if isinstance(given, Mapping) else type(given).__name__
        raise InputError(f"guided: expected exactly one grammar, got {what}; {EXAMPLE}")
    ((name, value),) = given.items()
    if name == "json_object":
        if value is not True:
            raise InputError(f"guided: json_object: expected True, got {type(value).__name__}; {EXAMPLE}")
        return Grammar("json_object")
    if name == "json_schema":
        return _fitting(Grammar("json_schema", _schema(value)), source_bytes)
    if name not in NAMES:
        raise InputError(f"guided: {name!r} is no kind of grammar{nearest(str(name), NAMES)}")
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"guided: {name}: expected a text that is not blank, got {type(value).__name__}")
    if name == "regex":
        if (len(value) - len(value.rstrip("\\"))) % 2:
            raise InputError("guided: regex: ends with a backslash, which escapes nothing")
        return _fitting(Grammar("regex", value), source_bytes)
    return _fitting(Grammar("gbnf" if GBNF.search(value) else "lark", value), source_bytes)


def _fitting(grammar: Grammar, most: int) -> Grammar:
    """The grammar, if its source is a text that is not too long."""
    try:
        size = len(grammar.source.encode())
    except UnicodeEncodeError as error:
        raise InputError(
            f"guided: {grammar.kind}: character {error.start} is half of a UTF-16 pair, which no text has"
        ) from error
    if size > most:
        raise InputError(
            f"guided: {grammar.kind}: is {size:,} bytes long, and at most {most:,} are read; make it shorter"
        )
    return grammar


def _schema(value: Any) -> str:
    """A schema as JSON, whether it came as JSON or as plain data."""
    try:
        schema = json.loads(value, parse_constant=_no_number) if isinstance(value, str) else value
        if not isinstance(schema, Mapping | bool):
            raise InputError(f"guided: json_schema: a schema is an object, true or false, got {type(schema).__name__}")
        return json.dumps(schema if isinstance(schema, bool) else dict(schema), allow_nan=False)
    except RecursionError:
        raise InputError("guided: json_schema: is nested too deeply") from None
    except InputError:
        raise
    except (TypeError, ValueError) as error:
        raise InputError(f"guided: json_schema: is no JSON: {error}") from error


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")
