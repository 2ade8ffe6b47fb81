"""Write the reference tables of docs/training.md from the dataclasses of the config.

A field's meaning is the string literal under it; MEANINGS has those of the few that leave it to the reader.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import make_spec as spec

from anyformer.data.objectives import Objective
from anyformer.data.packing import Packing
from anyformer.explain.words import words_of
from anyformer.optim.schedule import Schedule
from anyformer.registry import OpenAxis
from anyformer.train.config import Compute, DataPart, GuardPart, Many, ModelPart, RunPart, Stage
from anyformer.train.optim_config import Decay, Optim, OptimKind

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
    return f"<!-- {name}: begin (docs/make.py) -->\n", f"<!-- {name}: end -->\n"


def said(node: type[Any]) -> str:
    """What a class says about itself, without the name of its table."""
    words = re.sub(r"^.*\]: ", "", words_of(node))
    return words[:1].upper() + words[1:]


def reference() -> str:
    """Every key of a config as Markdown."""
    used: set[str] = set()
    lines: list[str] = []
    for path, title, nodes in SECTIONS:
        lines += [f"### {title}", ""]
        for node in nodes:
            if not said(node).startswith("Base of"):
                lines += [textwrap.fill(said(node), 118), ""]
            if issubclass(node, OpenAxis):
                lines += spec.axis_section(node, path, used, MEANINGS, "key")
                continue
            rows = list(spec.rows_of(node, path, used, MEANINGS))
            lines += [*spec.table_of(("key", "type", "default", "meaning"), rows), ""]
    spec.check_needed(MEANINGS, used)
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


def main() -> None:
    """Write the page."""
    PAGE.write_text(updated(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
