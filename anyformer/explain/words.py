"""What nodes and leaves say about themselves: their docstrings, their settings and their files, as plain text."""

import re
import sys
from typing import Any

from anyformer.registry import OpenAxis
from anyformer.specs.axes import Leaf
from anyformer.specs.codec import default_of, fields_of, inline_of
from anyformer.specs.patterns import Pattern


def words_of(node: type[Any]) -> str:
    """What a class says about itself, on one line, without the name of its table."""
    return re.sub(r"^\[\w+\]: (.)", lambda m: m[1].upper(), " ".join((node.__doc__ or "").split()))


def leaf_words(leaf: type[Any]) -> str:
    """What a leaf is: the first paragraph of its file if the file is its own, with name and paper; else its class."""
    module = sys.modules[leaf.__module__]
    own = [c for c in vars(module).values() if isinstance(c, type) and c.__module__ == module.__name__]
    alone = [c for c in own if issubclass(c, OpenAxis) and c.kind]
    return " ".join((module.__doc__ or "").split("\n\n")[0].split()) if alone == [leaf] else words_of(leaf)


def file_of(leaf: type[Any]) -> str:
    """The file that a leaf is written in, as a path below what is on Python's path."""
    return leaf.__module__.replace(".", "/") + ".py"


def settings(node: Any, *leave: str) -> str:
    """The fields of a node that are not at their defaults, as `name value, ...`; fields in `leave` are left out."""
    shown: list[str] = []
    for name, (_, field) in fields_of(type(node)).items():
        value = getattr(node, name)
        if name not in leave and name != inline_of(type(node)) and value != default_of(field):
            shown.append(_setting(name.replace("_", " "), value))
    return ", ".join(shown)


def _setting(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return name if value else f"no {name}"
    if isinstance(value, tuple):
        return f"{len(value)} {name}"
    return f"{name} {text_of(value)}"


def text_of(value: Any) -> str:
    """A value of a field as a person would write it."""
    if isinstance(value, Pattern):
        return str(value)
    if isinstance(value, Leaf):
        return with_settings(value.called(), settings(value))
    return number(value) if isinstance(value, float) else str(value)


def number(value: float) -> str:
    """A number without needless digits: 10000, 0.02, 1e-06."""
    return f"{value:.10g}"


def with_settings(name: str, more: str) -> str:
    """A name and what is special about it."""
    return f"{name}: {more}" if more else name


def join(parts: list[str]) -> str:
    """`a, b and c`."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}" if parts else ""


def some(n: int, one: str, more: str = "") -> str:
    """`1 layer`, `32 layers`."""
    return f"{n:,} {one if n == 1 else more or one + 's'}"
