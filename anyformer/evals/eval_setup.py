"""A setup: a model, held-out examples, and the objective that judges it on them, found from the folders that hold them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyformer.data.dataset import Examples
from anyformer.data.loader import BatchLoader
from anyformer.data.objectives import Objective
from anyformer.data.packing import Packing
from anyformer.data.shards import Index, open_examples, open_index
from anyformer.data.tokenizer import FILE as TOKENIZER
from anyformer.data.tokenizer import SOURCE, Tokenizer, tokenizer
from anyformer.errors import DataError, InputError, nearest
from anyformer.families.io import load
from anyformer.specs.model import ModelSpec
from anyformer.train.components import STAGE, restaged
from anyformer.train.config import ROWS, Config
from anyformer.train.resolve import specs_of

if TYPE_CHECKING:
    import torch

    from anyformer.model.model import Model

CONFIG = "config.toml"
"""What a run says about itself."""
LENGTH, BATCH = 1024, 16
"""Cells of a row at most, and rows of a batch, for a model that no run of ours left behind."""


@dataclass(frozen=True, kw_only=True)
class EvalSetup:
    """What is measured, and how."""

    model: Model
    objective: Objective
    examples: Examples
    """Those that are measured on."""
    learned: Examples | None
    """Those that the model, and what it is compared with, may learn from; None if the folder has none."""
    tokenizer: Tokenizer | None
    """None where the data are numbers."""
    data: Path
    part: str
    length: int
    batch: int
    rows: ROWS
    source_tokenizer: Tokenizer | None = None
    """Of the source, where it has a vocabulary of its own."""
    packing: Packing | None = None
    restart: bool = True
    seed: int = 0

    def feed(self, length: int | None = None) -> BatchLoader:
        """The examples in rows of this length, or of that of the run."""
        return BatchLoader(
            self.examples, self.objective, spec=self.model.spec, length=length or self.length, batch=self.batch,
            seed=self.seed, rows=self.rows, packing=self.packing, restart=self.restart,
        )  # fmt: skip


def open_setup(
    folder: str | Path,
    part: str,
    *,
    data: str | Path | None = None,
    device: str | torch.device | None = None,
    dtype: torch.dtype | None = None,
    ignore_keys: Sequence[str] = (),
) -> EvalSetup:
    """A model's folder and a part of its data (train, valid or test).

    A run of ours says in its config where its data are, which objective it learned by, and how rows are made. For any
    other folder give `data`; its objective is the one that fits the model and the columns.
    """
    folder = Path(folder)
    config = Config.from_file(folder / CONFIG) if (folder / CONFIG).is_file() else None
    place = _data(folder, config, data)
    index = open_index(place)
    if part not in index.parts:
        raise DataError(
            f"{place}: has no part {part!r}{nearest(part, index.parts)}; tokenize with --valid or --hold-out"
        )
    words = None if index.tokenizer_sha256 is None else index.tokenizer()
    sources = index.source_tokenizer()
    check_tokenizer(folder, place, words)
    check_tokenizer(folder, place, sources, SOURCE)
    examples = open_examples(place, part)
    model = load(folder, device, dtype, ignore_keys=ignore_keys)
    if (model.spec.source_vocab is None) != (sources is None) and "source" in examples.columns:
        has, lacks = ("data", "model") if sources is not None else ("model", "data")
        raise DataError(
            f"{place}: the source has a vocabulary of its own in the {has} and not in the {lacks}; give the data that "
            f"{folder} was trained on"
        )
    ways: dict[str, Any] = {}
    if config is None:
        found = objective_for(model.spec, examples, index, words)
        ways |= {"rows": "packed" if "packed" in found.ways else found.ways[0]}
        ways |= {"length": min(model.spec.context, LENGTH), "batch": BATCH}
    else:
        found, last = config.objective.ready(index, words), len(config.stages) - 1
        model = restaged(model, specs_of(model.spec, config.stages)[last])
        ways |= {"rows": config.data.rows, "packing": config.data.packing, "restart": config.data.restart}
        ways |= {"length": config.stages[last].length, "batch": config.stages[last].batch}
        # The draws of the run's own last look, so that its figures are these.
        ways |= {"seed": config.run.seed + STAGE * last}
    learned = config.data.train if config is not None else "train"
    return EvalSetup(
        model=model, objective=found, examples=examples, tokenizer=words, source_tokenizer=sources, data=place, part=part,
        learned=open_examples(place, learned) if learned in index.parts else None, **ways,
    )  # fmt: skip


def _data(folder: Path, config: Config | None, given: str | Path | None) -> Path:
    if given is not None:
        return Path(given)
    if config is None:
        raise InputError(f"{folder}: has no {CONFIG} that says where its data are; give the folder with --data DIR")
    place = Path(config.data.folder)
    if not place.is_dir():
        raise InputError(f"{folder}: its data are in {place}, which is not there; say where they are with --data DIR")
    return place


def check_tokenizer(folder: Path, data: Path, words: Tokenizer | None, name: str = TOKENIZER) -> None:
    """Refuse ids that another tokenizer made than that of the model: the figures would mean nothing."""
    if words is None or not (folder / name).is_file():
        return
    own = tokenizer(folder / name)
    if _without_template(own) != _without_template(words):
        raise DataError(
            f"{data}: its ids were made by another tokenizer ({words.vocab} tokens) than that of {folder} ({own.vocab} "
            f"tokens); tokenize again with --{'source-' if name == SOURCE else ''}tokenizer {folder / name}"
        )


def _without_template(made: Tokenizer) -> dict[str, Any]:
    """What makes ids. A run's tokenizer may also say what stands after a text, which is no part of the data."""
    return {name: value for name, value in json.loads(made.to_json()).items() if name != "post_processor"}


def objective_for(spec: ModelSpec, examples: Examples, index: Index, words: Tokenizer | None) -> Objective:
    """The objective that fits a spec and the columns of its data; of several the one that reads the most columns."""
    fitting: list[Objective] = []
    why: list[str] = []
    for kind in Objective.kinds():
        leaf = Objective.named(kind)
        if leaf is None:
            continue
        made = leaf().ready(index, words)
        wrong = made.problems(spec, examples)
        if not wrong:
            fitting.append(made)
        elif all(column in examples.columns for column in made.columns):
            why.append(f"{kind}: {wrong[0][0]}: {wrong[0][1]}")
    if not fitting:
        raise InputError("\n  ".join([f"{index.folder}: no objective goes with this model and these data:", *why]))
    return max(fitting, key=lambda objective: len(objective.columns))
