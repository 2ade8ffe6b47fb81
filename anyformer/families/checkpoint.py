"""Published checkpoints: their tensors into a model of ours, and back to their names."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyformer.errors import CheckpointError, InputError, SpecError
from anyformer.families.family import Family, families, family_of
from anyformer.families.shards import CONFIG, CONFIG_BYTES, INDEX, SINGLE, Shards, headers_of, opened, read_json
from anyformer.families.statemap import Entry, StateMap, uncovered
from anyformer.files import replace_file
from anyformer.specs.model import ModelSpec

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from anyformer.model.models import Model

SHARD_BYTES = 5_000_000_000
"""A file is begun anew before it grows beyond this."""
WRITER = "written_by"
"""A note in the files that we write, by which we know them again."""
OURS = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors|model\.safetensors\.index\.json")
"""Files of an older checkpoint that a new one replaces."""


def described(folder: Path) -> tuple[type[Family], ModelSpec]:
    """The family and the spec of a published checkpoint, from its config.json alone."""
    file = folder / CONFIG
    config = read_json(file, CONFIG_BYTES)
    family = family_of(config, str(file))
    return family, family.spec_from(config, str(file))


def load_published(folder: Path, device: str | torch.device | None, dtype: torch.dtype | None) -> Model:
    """A model from a directory with a config.json and safetensors."""
    import torch

    from anyformer.model.store import default_dtype, empty_model

    family, spec = described(folder)
    place = torch.device(device or "cpu")
    with opened(folder) as shards:
        table = family.weights(spec)
        entries = table.entries(spec)
        placed = matched(table, entries, shards.files, shards.shape, folder, spec)
        first = shards.tensor(placed[entries[0].theirs]).dtype
        model = empty_model(spec, place, dtype or default_dtype(place, first))
        if place.type != "meta":
            fill(model, entries, lambda name: shards.tensor(placed[name]) if name in placed else None, str(folder))
            check_copies(table, entries, shards)
    return model


def matched(
    table: StateMap,
    entries: list[Entry],
    stored: Iterable[str],
    shape: Callable[[str], tuple[int, ...]],
    where: Path,
    spec: ModelSpec,
) -> dict[str, str]:
    """Name in the table -> stored name. Every tensor that is missing, left over or of another shape is named."""
    from anyformer.model.store import check_shapes

    if missing := uncovered(spec, entries):
        raise CheckpointError(f"{where}: the family's table has no place for {', '.join(missing)}")
    wanted = {entry.theirs: entry.shape for entry in entries}
    placed = table.placed(stored, wanted)
    needed = {name: size for name, size in wanted.items() if name in placed or name not in table.zeros}
    check_shapes(where, needed, {name: shape(held) for name, held in placed.items()})
    return placed


def fill(
    model: Model, entries: Iterable[Entry], read: Callable[[str], Tensor | None], where: str, *, copy: bool = False
) -> None:
    """Put every tensor of a checkpoint where it belongs: as it is where it fits, unless copies are asked for.

    One that may be left out, and is, has zeros.
    """
    from anyformer.model.store import adopt

    parameters = dict(model.named_parameters())
    for entry in entries:
        theirs = read(entry.theirs)
        if theirs is None:
            for name in entry.ours:
                parameters[name].detach().zero_()
            continue
        if not theirs.is_floating_point():
            raise CheckpointError(f"{where}: {entry.theirs}: holds {theirs.dtype}; quantised weights can't be read")
        for name, part in zip(entry.ours, entry.op.split(theirs, entry.shapes), strict=True):
            place = entry.op.place(parameters[name])
            if place is parameters[name]:
                adopt(parameters[name], part, copy=copy)
            else:
                place.copy_(part)


def check_copies(table: StateMap, entries: list[Entry], shards: Shards) -> None:
    """A tensor that is stored twice must be the same twice, or the model is not tied as its config says."""
    import torch

    known = {entry.theirs for entry in entries}
    placed = table.placed(shards.files, known)
    for copy, name in table.doubles(shards.files, known):
        if copy != placed[name] and not torch.equal(shards.tensor(copy), shards.tensor(placed[name])):
            raise CheckpointError(
                f"{shards.folder}: {copy} differs from {placed[name]}, but {CONFIG} says that they are one; "
                "if they are not, set tie_word_embeddings to false there"
            )


def check_exportable(model: Model) -> None:
    """Refuse a quantised model: no file of a published class holds our whole numbers."""
    from anyformer.parts.quantised import is_quantised

    if is_quantised(model):
        raise InputError(
            "model: it is quantised, and published classes have no files for that; export the model that it was made "
            "from, or the weights that its whole numbers stand for: save it, then anyformer convert SAVED OUT "
            "--dequantize --format hf"
        )


def published(model: Model, family: type[Family]) -> Iterator[tuple[str, Tensor]]:
    """Tensors of a model under the family's names."""
    check_exportable(model)
    parameters = dict(model.named_parameters())
    for entry in family.weights(model.spec).entries(model.spec):
        yield entry.theirs, entry.op.merge([parameters[name].detach() for name in entry.ours])


def family_for(spec: ModelSpec, kind: str | None = None) -> tuple[type[Family], dict[str, Any]]:
    """The family whose files can hold a spec, the given one or the first that can, and its config.json."""
    found: list[tuple[type[Family], SpecError]] = []
    for family in sorted(families(), key=lambda family: family.second):
        if kind not in (None, family.kind):
            continue
        try:
            config = family.hf_from(spec)
        except SpecError as error:
            found.append((family, error))
            continue
        if not uncovered(spec, family.weights(spec).entries(spec)):
            return family, config
    if not found:
        known = ", ".join(family.kind for family in families())
        raise InputError(f"family: {kind!r} is unknown (known: {known})")
    # A class of another topology has one problem only, and is further away than any number of others.
    nearest, error = min(found, key=lambda pair: (pair[1].problems[0].startswith("topology"), len(pair[1].problems)))
    raise SpecError(error.problems, f"for a published class; the nearest is {nearest.architectures[0]}") from error


def save_published(
    model: Model, path: str | Path, *, family: str | None = None, shard_bytes: int = SHARD_BYTES
) -> None:
    """Write a model the way a published class saves its own: config.json and safetensors, in one file or many.

    `family` is the kind of a family; unless given, the first that can hold the spec.
    """
    from anyformer.model.store import SPEC, write_tensors

    check_exportable(model)
    folder = Path(path)
    chosen, config = family_for(model.spec, family)
    if any(p.is_meta for p in model.parameters()):
        raise InputError("model: it is on the meta device and has no weights to save")
    if (folder / SPEC).is_file():
        raise InputError(f"{folder}: holds a model in our own format ({SPEC}); give another directory")
    folder.mkdir(parents=True, exist_ok=True)
    dtype = next(model.parameters()).dtype
    config |= {"dtype": str(dtype).removeprefix("torch.")}
    groups = grouped(chosen, model.spec, dtype.itemsize, shard_bytes)
    names = (
        [SINGLE]
        if len(groups) == 1
        else [f"model-{i:05}-of-{len(groups):05}.safetensors" for i in range(1, len(groups) + 1)]
    )
    made = published(model, chosen)
    for name, group in zip(names, groups, strict=True):
        tensors = {theirs: tensor.cpu().contiguous() for theirs, tensor in (next(made) for _ in group)}
        write_tensors(folder / name, tensors, {"format": "pt", WRITER: "anyformer"})
    if len(groups) > 1:
        placed = {theirs: name for name, group in zip(names, groups, strict=True) for theirs in group}
        total = sum(entry.size for entry in chosen.weights(model.spec).entries(model.spec)) * dtype.itemsize
        index = {"metadata": {"total_size": total}, "weight_map": placed}
        write_json(folder / INDEX, index)
        names.append(INDEX)
    write_json(folder / CONFIG, config)
    for old in folder.iterdir():
        if OURS.fullmatch(old.name) and old.name not in names:
            old.unlink()


def was_written_here(folder: Path) -> bool:
    """Whether a model's folder comes from us, in our own format or in that of a published class."""
    from anyformer.model.store import SPEC

    if (folder / SPEC).is_file():
        return True
    try:
        headers = headers_of(folder)
    except CheckpointError:
        return False
    return all(header.metadata.get(WRITER) == "anyformer" for header in headers.values())


def grouped(family: type[Family], spec: ModelSpec, itemsize: int, most: int) -> list[list[str]]:
    """Names of tensors for each file, in order; no file beyond `most` bytes unless one tensor is."""
    groups: list[list[str]] = [[]]
    room = most
    for entry in family.weights(spec).entries(spec):
        size = entry.size * itemsize
        if groups[-1] and size > room:
            groups.append([])
            room = most
        groups[-1].append(entry.theirs)
        room -= size
    return groups


def write_json(file: Path, table: Mapping[str, Any]) -> None:
    """Write a table, for people to read."""
    text = json.dumps(table, indent=2, sort_keys=True, allow_nan=False) + "\n"
    replace_file(file, lambda place: place.write_text(text, encoding="utf-8"))
