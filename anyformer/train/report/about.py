"""What the report of a run says about it besides its numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyformer.specs.number_format import data
from anyformer.train.components import Components
from anyformer.train.dry_run import stretches
from anyformer.train.report import About
from anyformer.train.run_state import versions

SHORT = 16
"""Characters of a fingerprint that are shown."""


def about_of(setup: Components, *, summary: str = "", peak: float | None = None, picture: bool = False) -> About:
    """Gather it from a run that is ready. `summary` and `peak` are for who knows them."""
    config, found = setup.config, stretches(setup)
    return About(
        name=setup.folder.resolve().name, total=config.steps, params=setup.spec.count().params, stretches=found,
        summary=summary, spec=setup.spec.to_toml(), config=config.to_toml(), peak=peak, picture=picture,
        facts={"Data": _data(setup), "Machine": _words(setup.machine() | versions())},
    )  # fmt: skip


def _data(setup: Components) -> dict[str, str]:
    config, index = setup.config, setup.index
    part = index.parts[config.data.train]
    told = {
        "folder": config.data.folder,
        "examples to learn from": f"{part.examples:,}",
        "text": data(part.bytes) if part.bytes else "",
        "vocabulary": f"{index.vocab:,} tokens" if index.vocab else "",
        "vocabulary of the source": f"{index.source_vocab:,} tokens" if index.source_vocab else "",
        "objective": setup.objective.kind,
        "rows": config.data.rows + (f", packed by {config.data.packing.kind}" if config.data.rows == "packed" else ""),
    }
    for i, each in enumerate(stretches(setup)):
        stage = f" (stage {i + 1})" if len(config.stages) > 1 else ""
        told[f"epochs{stage}"] = f"{each.epochs:.2f} of {each.rows:,} rows"
        told[f"padding{stage}"] = f"{each.waste:.2%} of all cells"
    told[f"fingerprint of {config.data.train}"] = setup.examples.fingerprint[:SHORT]
    if setup.valid is not None:
        told[f"fingerprint of {config.data.valid}"] = setup.held_out.fingerprint[:SHORT]
    told["tokenizer"] = (index.tokenizer_sha256 or "")[:SHORT]
    told["tokenizer of the source"] = (index.source_sha256 or "")[:SHORT]
    return {name: value for name, value in told.items() if value}


def _words(table: Mapping[str, Any]) -> dict[str, str]:
    return {
        name: ("yes" if value else "no") if isinstance(value, bool) else str(value) for name, value in table.items()
    }
