"""From a config and its data to the architecture that is trained: a base, its changes, and the data's vocabulary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from anyformer.errors import InputError, SpecError
from anyformer.families.folder import spec_of
from anyformer.families.zoo import named
from anyformer.specs.model import ModelSpec
from anyformer.specs.paths import Table, as_table, nest
from anyformer.specs.weights import weights
from anyformer.train.config import ModelPart, Stage

UNKNOWN = 2**20
"""A vocabulary that no special token is beyond."""
NO_IDS: Table = {"ids.pad": None, "ids.bos": None, "ids.eos": [], "ids.start": None}


def resolved(part: ModelPart, *, vocab: int | None, ids: Mapping[str, int]) -> ModelSpec:
    """The spec of a run. `vocab` and `ids` are the tokenizer's; what the config says itself goes first.

    Where there are no data yet (None), the vocabulary that the config leaves to them is taken for a large one.
    """
    known, vocab = vocab is not None, UNKNOWN if vocab is None else vocab
    base, changes = part.base or part.weights, part.spec.written()
    fresh = not part.weights and not Path(base).is_dir()
    if base:
        found = _base(base)
        # Fresh weights know no tokens yet, so a published model's vocabulary and ids need not be kept.
        own = {"vocab": vocab} | NO_IDS if fresh and found.vocab and vocab and "vocab" not in changes else {}
        spec = found.vary(own | changes) if own or changes else found
    else:
        table = nest(changes)
        if vocab and as_table(table.get("embed", "tokens")).get("kind", "tokens") == "tokens":
            table.setdefault("vocab", vocab)
        spec = ModelSpec.from_data(table, "[model.spec]")
    if spec.ids == type(spec.ids)() and ids:
        spec = spec.vary({"ids": _ids(spec, ids)})
    if known and vocab and spec.vocab < vocab:
        raise SpecError(
            [
                f"vocab: {spec.vocab} is less than the {vocab} tokens of the data's tokenizer; leave it out of "
                "[model.spec], or tokenize with the model's own tokenizer"
            ],
            "[model]",
        )
    return spec


def specs_of(spec: ModelSpec, stages: Sequence[Stage]) -> list[ModelSpec]:
    """The architecture of each stage, or all that is wrong with them in one SpecError."""
    wrong: list[str] = []
    found: list[ModelSpec] = []
    shapes = {name: weight.shape for name, weight in weights(spec).items()}
    for i, stage in enumerate(stages):
        try:
            changed = spec.vary(stage.spec.written()) if stage.spec.items else spec
        except SpecError as error:
            wrong += [f"stages[{i}].spec.{problem}" for problem in error.problems]
            continue
        have = {name: weight.shape for name, weight in weights(changed).items()}
        differ = sorted(name for name in shapes.keys() | have.keys() if shapes.get(name) != have.get(name))
        if differ:
            wrong.append(f"stages[{i}].spec: changes the shape of {', '.join(differ[:3])}; a stage keeps all weights")
        if stage.length > changed.context:
            wrong.append(f"stages[{i}].length: {stage.length} is more than the context, {changed.context}")
        found.append(changed)
    if wrong:
        raise SpecError(wrong, "the stages of a run")
    return found


def _base(name: str) -> ModelSpec:
    place = Path(name)
    if place.suffix == ".toml":
        return ModelSpec.from_file(place)
    if place.is_dir():
        return spec_of(place)
    if place.exists():
        raise InputError(f"model.base: {name} is a file; give a preset's name, a .toml, or a folder with a model")
    return named(name)


def _ids(spec: ModelSpec, ids: Mapping[str, int]) -> Table:
    """The tokenizer's special tokens as a spec says them; a decoder that reads an encoder is started with pad or bos."""
    found: dict[str, Any] = {name: ids[name] for name in ("pad", "bos") if name in ids}
    if "eos" in ids:
        found["eos"] = [ids["eos"]]
    start = next((ids[name] for name in ("start", "bos", "pad", "eos") if name in ids), None)
    if spec.topology == "encoder-decoder" and start is not None:
        found["start"] = start
    return found
