"""The page about a prompt: one HTML file that needs no network, with its data, style and script inside."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from importlib.resources import files
from pathlib import Path
from string import Template

from anyformer.errors import InputError
from anyformer.explain.prompt import PromptTrace
from anyformer.files import replace_file

ENDINGS = (".html", ".htm")
FOLDER = files("anyformer.explain") / "web"


def page(trace: PromptTrace) -> str:
    """The text of the file. Nothing in it but our own script runs, whatever the tokens say."""
    style, script = _part("page.css"), _part("page.js")
    return Template(_part("page.html")).substitute(
        title=html.escape(f"{trace.name}: a prompt, explained"),
        name=html.escape(trace.name),
        policy=f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}",
        style=style,
        script=script,
        data=safe(json.dumps(trace.data(), allow_nan=False, separators=(",", ":"))),
    )


def safe(data: str) -> str:
    """JSON that can't end the element it stands in: no tag, no comment and no entity begins in it."""
    return data.replace("&", r"\u0026").replace("<", r"\u003c").replace(">", r"\u003e")


def save(trace: PromptTrace, path: str | Path) -> None:
    """Write the page into a file."""
    place = Path(path)
    if place.suffix.lower() not in ENDINGS:
        raise InputError(f"--html: {str(path)!r} does not end in .html; write e.g. {place.stem or 'explain'}.html")
    if not place.parent.is_dir():
        raise InputError(f"--html: {str(path)!r}: there is no folder {str(place.parent)!r}; make it first")
    text = page(trace)
    replace_file(place, lambda beside: beside.write_text(text, encoding="utf-8", newline="\n"))


def _part(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    """What a content security policy calls an inline element."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
