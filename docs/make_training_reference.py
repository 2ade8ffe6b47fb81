"""Write the reference tables of docs/training.md from the dataclasses of the config: `python docs/make_training_reference.py`.

A field's meaning is the string literal under it; MEANINGS has those of the few that leave it to the reader.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import make_spec_reference as spec

from anyformer.data.objectives import Objective
from anyformer.data.packing import Packing
from anyformer.explain.words import words_of
from anyformer.registry import OpenAxis
from anyformer.specs.codec import fields_of, inline_of
from anyformer.train.config import Compute, DataPart, GuardPart, Many, ModelPart, RunPart, Stage
from anyformer.train.rates import Decay, Optim, OptimKind
from anyformer.train.schedule import Schedule

PAGE = Path(__file__).resolve().parent / "training.md"

SECTIONS: tuple[tuple[str, str, tuple[type[Any], ...]], ...] = (
    ("model", "[model]", (ModelPart,)),
    ("data", "[data]", (DataPart,)),
    ("data.packing", "data.packing", (Packing,)),
    ("objective", "[objective]", (Objective,)),
    ("optim", "[optim]", (Optim, OptimKind)),
    ("optim.decay", "[optim.decay]", (Decay,)),
    ("schedule", "[schedule]", (Schedule,)),
    ("stages", "[[stages]]", (Stage,)),
    ("compute", "[compute]", (Compute,)),
    ("guard", "[guard]", (GuardPart,)),
    ("many", "[many]", (Many,)),
    ("run", "[run]", (RunPart,)),
)

MEANINGS = {
    "DataPart.packing": "Which documents share a packed row.",
    "Stage.steps": "How many there are.",
    "RunPart.seed": "Of the first weights, the order of rows, and all that is drawn.",
    "RunPart.sample_tokens": "Tokens of a sample.",
    "Optim.leaf": "What moves the matrices inside the blocks; all else is moved by AdamW.",
    "Optim.eps": "Keeps AdamW from dividing by zero.",
    "Optim.decay": "Weight decay by group.",
    "Muon.momentum": "How much of its running mean of gradients it keeps in a step.",
    "Decay.matrices": "Of matrices inside the blocks.",
    "Decay.tables": "Of embeddings, and of a head that is tied to them.",
    "Decay.head": "Of an untied head.",
    "Decay.vectors": "Of gains, biases and the rest.",
    "Span.reserved": "How many sentinels there are where none are named.",
    "*.floor": "The factor never goes below this.",
    "*.long": "What happens to an example that is longer than a row: it is cut, left out, or an error.",
}
"""Meanings of fields that have no docstring. A docstring always wins, and an entry that nothing needs is an error."""


def marks(name: str) -> tuple[str, str]:
    """The lines between which a generated part of the page stands."""
    return f"<!-- {name}: begin (docs/make_training_reference.py) -->\n", f"<!-- {name}: end -->\n"


def meaning(node: type[Any], name: str, used: set[str]) -> str:
    """What a field means; raises if nobody says it."""
    text = spec.field_docs(node).get(name)
    if text is not None:
        return text
    owners = [owner.__name__ for owner in node.__mro__ if name in getattr(owner, "__annotations__", {})]
    for key in (*(f"{owner}.{name}" for owner in owners), f"*.{name}"):
        if key in MEANINGS:
            used.add(key)
            return MEANINGS[key]
    raise LookupError(f"{node.__name__}.{name} has no docstring: write one under the field")


def rows_of(node: type[Any], path: str, used: set[str]) -> Iterator[tuple[str, str, str, str]]:
    """Path, type, default and meaning of each field of a node."""
    for name, (hint, field) in fields_of(node).items():
        shown = "kind" if name == inline_of(node) else name
        yield f"`{path}.{shown}`", spec.type_words(hint), spec.default_words(field), meaning(node, name, used)


def said(node: type[Any]) -> str:
    """What a class says about itself, without the name of its table."""
    words = re.sub(r"^.*\]: ", "", words_of(node))
    return words[:1].upper() + words[1:]


def axis_section(axis: type[Any], path: str, used: set[str]) -> Iterator[str]:
    """The kinds of an axis, then the fields of each."""
    leaves = spec.kinds_of(axis)
    if not said(axis).startswith("Base of"):
        yield from (textwrap.fill(said(axis), 118), "")
    yield from spec.table_of(("kind", "what it is"), [(f"`{leaf.kind}`", spec.leaf_words(leaf)) for leaf in leaves])
    yield ""
    rows: dict[tuple[str, ...], list[str]] = {}
    for leaf in leaves:
        for row in rows_of(leaf, path, used):
            rows.setdefault(row, []).append(f"`{leaf.kind}`")
    if rows:
        lines = [(row[0], ", ".join(kinds), *row[1:]) for row, kinds in rows.items()]
        yield from spec.table_of(("key", "kinds", "type", "default", "meaning"), lines)
        yield ""


def reference() -> str:
    """Every key of a config as Markdown."""
    used: set[str] = set()
    lines: list[str] = []
    for path, title, nodes in SECTIONS:
        lines += [f"### {title}", ""]
        for node in nodes:
            if issubclass(node, OpenAxis):
                lines += axis_section(node, path, used)
                continue
            lines += [textwrap.fill(said(node), 118), ""]
            lines += [*spec.table_of(("key", "type", "default", "meaning"), list(rows_of(node, path, used))), ""]
    if unneeded := sorted(MEANINGS.keys() - used):
        raise LookupError(f"MEANINGS has entries that no field needs; remove {', '.join(unneeded)}")
    return "\n".join(lines)


def objectives() -> str:
    """What each objective needs, as Markdown."""
    rows = [
        (
            f"`{leaf.kind}`", ", ".join(f"`{name}`" for name in leaf.columns), " or ".join(leaf.topologies),
            " or ".join(f"`{name}`" for name in leaf.heads), ", ".join(leaf.ways),
        )
        for leaf in spec.kinds_of(Objective)
    ]  # fmt: skip
    return "\n".join([*spec.table_of(("kind", "columns", "topology", "head.kind", "data.rows"), rows), ""])


def updated(page: str) -> str:
    """The page with its generated parts between their marks."""
    for name, made in (("objectives", objectives()), ("reference", reference())):
        begin, end = marks(name)
        before, rest = page.split(begin)
        _, after = rest.split(end)
        page = f"{before}{begin}\n{made.rstrip()}\n\n{end}{after}"
    return page


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
