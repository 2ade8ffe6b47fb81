"""Read the fenced blocks of a page, and run its python in order.

A python block that is followed by a text block must print exactly that text; one that is not must print nothing.
"""

import contextlib
import importlib.util
import io
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


class Fence(NamedTuple):
    """One fenced block: its language, its text, and the line on which the text begins."""

    language: str
    text: str
    line: int


def read(name: str) -> str:
    """A page of the repository."""
    return (ROOT / name).read_text(encoding="utf-8")


def maker(name: str) -> ModuleType:
    """docs/make_NAME.py, which is a script beside others and no part of the package."""
    place = importlib.util.spec_from_file_location(f"make_{name}", ROOT / "docs" / f"make_{name}.py")
    module = importlib.util.module_from_spec(place)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "docs"))
        sys.modules[place.name] = module
        place.loader.exec_module(module)
    return module


UPDATE = "run: python docs/make.py"


def fences(page: str) -> list[Fence]:
    """Every fenced block of a page, in order."""
    return [Fence(m["language"], m["text"], page.count("\n", 0, m.start()) + 2) for m in FENCE.finditer(page)]


def run(page: str, name: str) -> dict[str, Any]:
    """Run every python block in one namespace, and compare what each prints with the page."""
    found = fences(page)
    space: dict[str, Any] = {"__name__": "page"}
    for i, fence in enumerate(found):
        if fence.language != "python":
            continue
        printed = io.StringIO()
        # The blank lines give errors the line numbers of the page.
        code = compile("\n" * (fence.line - 1) + fence.text, name, "exec")
        with contextlib.redirect_stdout(printed):
            exec(code, space)
        after = found[i + 1] if i + 1 < len(found) else None
        shown = after.text if after is not None and after.language == "text" else ""
        where = f"{name}, line {fence.line}"
        assert printed.getvalue() == shown, f"{where}: the page shows\n{shown}but it prints\n{printed.getvalue()}"
    return space
