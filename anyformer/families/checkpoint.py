"""Published checkpoints: their tensors into a model of ours, and back to their names."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyformer.errors import CheckpointError, InputError, SpecError
from anyformer.families.config_values import without
from anyformer.families.family import Family, families, family_of
from anyformer.families.shards import CONFIG, CONFIG_BYTES, INDEX, SINGLE, Shards, headers_of, opened, read_json
from anyformer.families.statemap import Entry, StateMap, uncovered
from anyformer.files import replace_file
from anyformer.specs.model import ModelSpec

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from anyformer.model.model import Model

SHARD_BYTES = 5_000_000_000
"""A file is begun anew before it grows beyond this."""
WRITER = "written_by"
"""A note in the files that we write, by which we know them again."""
OURS = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors|model\.safetensors\.index\.json")
"""Files of an older checkpoint that a new one replaces."""
TYING = ("tie_word_embeddings", "share_encoder_decoder_embeddings")
"""Keys of configs that say whether tables are one."""


def described(folder: Path, ignore_keys: Sequence[str] = ()) -> tuple[type[Family], ModelSpec]:
    """The family and the spec of a published checkpoint, from its config.json."""
    file = folder / CONFIG
    config = read_json(file, CONFIG_BYTES)
    family = family_in(folder, ignore_keys)
    return family, family.spec_from(config, str(file), ignore_keys)


def family_in(folder: Path, ignore_keys: Sequence[str] = ()) -> type[Family]:
    """The family of a published checkpoint.

    Only one that names neither its class nor its type is recognised by its other keys and its tensors.
    """
    config = read_json(folder / CONFIG, CONFIG_BYTES)
    nameless = config.get("architectures") in (None, []) and config.get("model_type") is None
    return recognised(config, folder, ignore_keys) if nameless else family_of(config, str(folder / CONFIG))


def recognised(config: Mapping[str, Any], folder: Path, ignore_keys: Sequence[str] = ()) -> type[Family]:
    """The one family that a config and tensors without a name can belong to; the folder's name counts for nothing.

    Of several, all must mean the same model, or one only be as old as such files are. A refusal says what to write.
    """
    try:
        stored = {name: place.shape for held in headers_of(folder).values() for name, place in held.tensors.items()}
    except CheckpointError:
        stored = {}
    fitting: dict[type[Family], ModelSpec] = {}
    for family in sorted(families(), key=lambda family: family.second):
        read = family.parse(without(config, ignore_keys))
        if read.problems.found or (read.passed and not stored):
            continue
        try:
            spec = family.varied(read.changes)
            if stored:
                table = family.weights(spec)
                matched(table, table.entries(spec), stored, stored.__getitem__, folder, spec)
        except (SpecError, CheckpointError):
            continue
        fitting[family] = spec
    file, by = str(folder / CONFIG), "keys and tensors" if stored else "keys"
    if not fitting:
        return family_of(config, file)
    if len(early := {family: spec for family, spec in fitting.items() if family.before_types}) == 1:
        fitting = early
    first, spec = next(iter(fitting.items()))
    if any(spec != other for other in fitting.values()):
        names = sorted({family.model_type for family in fitting})
        raise SpecError(
            [
                f"model_type: is missing, and there are no architectures; its {by} fit {', '.join(names)}, which "
                f'compute different things: write the right one into the file, such as "model_type": "{names[0]}"'
            ],
            file,
        )
    warnings.warn(f"{file}: names no class and no model_type; by its {by} it is {first.model_type}", stacklevel=2)
    return first


def load_published(
    folder: Path, device: str | torch.device | None, dtype: torch.dtype | None, ignore_keys: Sequence[str] = ()
) -> Model:
    """A model from a directory with a config.json and safetensors."""
    import torch

    from anyformer.model.native_checkpoint import default_dtype, empty_model

    family, spec = described(folder, ignore_keys)
    place = torch.device(device or "cpu")
    with opened(folder) as shards:
        table = family.weights(spec)
        entries = table.entries(spec)
        placed = matched(table, entries, shards.files, shards.shape, folder, spec)
        first = shards.tensor(placed[entries[0].theirs]).dtype
        model = empty_model(spec, place, dtype or default_dtype(place, first))
        if place.type != "meta":
            fill(
                model,
                entries,
                lambda name: shards.tensor(placed[name]) if name in placed else None,
                str(folder),
                read_into=lambda name, tensor: shards.read_into(placed[name], tensor),
            )
            check_copies(family, table, entries, shards)
            check_computed(table, shards.files, shards.tensor, str(folder))
    model.family = family.kind
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
    from anyformer.model.native_checkpoint import check_shapes

    if missing := uncovered(spec, entries):
        raise CheckpointError(f"{where}: the family's table has no place for {', '.join(missing)}")
    wanted = {entry.theirs: entry.shape for entry in entries}
    placed = table.placed(stored, wanted)
    needed = {name: size for name, size in wanted.items() if name in placed or name not in table.zeros}
    check_shapes(where, needed, {name: shape(held) for name, held in placed.items()})
    return placed


def fill(
    model: Model,
    entries: Iterable[Entry],
    read: Callable[[str], Tensor | None],
    where: str,
    *,
    copy: bool = False,
    read_into: Callable[[str, Tensor], None] | None = None,
) -> None:
    """Put every tensor of a checkpoint where it belongs: as it is where it fits, unless copies are asked for.

    One that may be left out, and is, has zeros. `read_into` reads one past the view that `read` gives: the pages of a view
    that is copied would stay in memory beside the copy.
    """
    from anyformer.model.native_checkpoint import adopt, lies_alone

    parameters = dict(model.named_parameters())
    for entry in entries:
        theirs = read(entry.theirs)
        if theirs is None:
            for name in entry.ours:
                parameters[name].detach().zero_()
            continue
        if not theirs.is_floating_point():
            raise CheckpointError(f"{where}: {entry.theirs}: holds {theirs.dtype}; quantised weights can't be read")
        first = parameters[entry.ours[0]]
        if (
            read_into is not None
            and entry.op.keeps(entry.shapes)
            and theirs.dtype == first.dtype
            and not lies_alone(first)
        ):
            read_into(entry.theirs, first.detach())
            continue
        for name, part in zip(entry.ours, entry.op.split(theirs, entry.shapes), strict=True):
            place = entry.op.place(parameters[name])
            if place is parameters[name]:
                adopt(parameters[name], part, copy=copy)
            else:
                place.copy_(part)


def differing(
    table: StateMap, entries: list[Entry], stored: Iterable[str], read: Callable[[str], Tensor]
) -> dict[str, str]:
    """Stored copies of a tensor that are not equal to it -> the name under which it is stored itself."""
    import torch

    names, known = list(stored), {entry.theirs for entry in entries}
    placed = table.placed(names, known)
    found: dict[str, str] = {}
    for copy, name in table.doubles(names, known):
        if copy == placed[name]:
            continue
        first, second = read(placed[name]), read(copy)
        if first.shape != second.shape or not torch.equal(first, second.to(first)):
            found[copy] = placed[name]
    return found


def untying(
    family: type[Family], config: Mapping[str, Any], stored: Iterable[str], read: Callable[[str], Tensor]
) -> dict[str, bool]:
    """Changes of a config by which all differing copies are tensors of their own; empty if the family has none."""
    names = list(stored)
    for keys in (*((key,) for key in TYING), TYING):
        changes = {key: False for key in keys if key in family.keys}
        parsed = family.parse(dict(config) | changes)
        if not changes or parsed.problems.found:
            continue
        try:
            spec = family.varied(parsed.changes)
        except SpecError:
            continue
        table = family.weights(spec)
        if not differing(table, table.entries(spec), names, read):
            return changes
    return {}


def check_copies(family: type[Family], table: StateMap, entries: list[Entry], shards: Shards) -> None:
    """A tensor that is stored twice must be the same twice, or the model is not tied as its config says."""
    if not (found := differing(table, entries, shards.files, shards.tensor)):
        return
    pairs = ", ".join(f"{copy} differs from {name}" for copy, name in found.items())
    changes = untying(family, read_json(shards.folder / CONFIG, CONFIG_BYTES), shards.files, shards.tensor)
    keys = " and ".join(changes)
    advice = (
        f"if they are not, set {keys} to false there"
        if keys
        else f"a model of {family.architectures[0]} that has them apart can't be read"
    )
    raise CheckpointError(f"{shards.folder}: {pairs}, but {CONFIG} says that they are one; {advice}")


def check_computed(table: StateMap, stored: Iterable[str], read: Callable[[str], Tensor], where: str) -> None:
    """A table that is computed here and read from the file by the public class must be the one that is computed."""
    names = list(stored)
    for pattern, sines in table.computed.items():
        for name in names:
            if re.fullmatch(pattern, name) and (why := sines.differs(read(name))) is not None:
                raise CheckpointError(
                    f"{where}: {name}: {why}. The public class would read it, and here positions are computed, so the "
                    "model would be another one; if the table is damaged, take it out of the file"
                )


def check_exportable(model: Model) -> None:
    """Refuse a quantised model: no file of a published class holds our whole numbers."""
    from anyformer.parts.quantized import is_quantized

    if is_quantized(model):
        raise InputError(
            "model: it is quantised, and published classes have no files for that; export the model that it was made "
            "from, or the weights that its whole numbers stand for: save it, then anyformer convert SAVED OUT "
            "--dequantize --format hf"
        )


def published(model: Model, family: type[Family]) -> Iterator[tuple[str, Tensor]]:
    """Tensors of a model under the family's names."""
    check_exportable(model)
    parameters = dict(model.named_parameters())
    seen: set[tuple[str, ...]] = set()
    for entry in family.weights(model.spec).written(model.spec):
        tensor = entry.op.merge([parameters[name].detach() for name in entry.ours])
        # Files hold no two names of one memory.
        yield entry.theirs, tensor.clone() if entry.ours in seen else tensor
        seen.add(entry.ours)


def family_for(
    spec: ModelSpec, kind: str | None = None, read_from: str | None = None
) -> tuple[type[Family], dict[str, Any]]:
    """The family whose files can hold a spec, and its config.json: the given one, or the first that can.

    A model's own family, `read_from`, is asked first; if its files can't say the spec any more, a warning says so.
    """
    found: list[tuple[type[Family], SpecError]] = []
    for family in sorted(families(), key=lambda family: (family.kind != read_from, family.second)):
        if kind not in (None, family.kind):
            continue
        try:
            config = family.hf_from(spec)
        except SpecError as error:
            found.append((family, error))
            continue
        if not uncovered(spec, family.weights(spec).entries(spec)):
            if kind is None and read_from not in (None, family.kind):
                _say_other(read_from, family, found)
            return family, config
    if not found:
        known = ", ".join(family.kind for family in families())
        raise InputError(f"family: {kind!r} is unknown (known: {known})")
    # A class of another topology has one problem only, and is further away than any number of others.
    nearest, error = min(found, key=lambda pair: (pair[1].problems[0].startswith("topology"), len(pair[1].problems)))
    raise SpecError(error.problems, f"for a published class; the nearest is {nearest.architectures[0]}") from error


def _say_other(kind: str, chosen: type[Family], found: list[tuple[type[Family], SpecError]]) -> None:
    """Warn that a model is written as another class than the one it was read from."""
    own = [(family, error) for family, error in found if family.kind == kind]
    if own:
        family, error = own[0]
        why = f"{family.architectures[0]}, whose files can't say it any more ({'; '.join(error.problems)})"
    else:
        why = f"a model of the family {kind!r}, which is not known here"
    warnings.warn(f"model: was read from {why}; it is written as {chosen.architectures[0]}", stacklevel=4)


def save_published(
    model: Model, path: str | Path, *, family: str | None = None, shard_bytes: int = SHARD_BYTES
) -> None:
    """Write a model the way a published class saves its own: config.json and safetensors, in one file or many.

    `family` is the kind of a family; unless given, the one that the model was read from, or else the first that can
    hold the spec.
    """
    from anyformer.model.native_checkpoint import SPEC, write_tensors

    check_exportable(model)
    folder = Path(path)
    chosen, config = family_for(model.spec, family, model.family)
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
        total = sum(entry.size for entry in chosen.weights(model.spec).written(model.spec)) * dtype.itemsize
        index = {"metadata": {"total_size": total}, "weight_map": placed}
        write_json(folder / INDEX, index)
        names.append(INDEX)
    write_json(folder / CONFIG, config)
    for old in folder.iterdir():
        if OURS.fullmatch(old.name) and old.name not in names:
            old.unlink()


def was_written_here(folder: Path) -> bool:
    """Whether a model's folder comes from us, in our own format or in that of a published class."""
    from anyformer.model.native_checkpoint import SPEC

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
    for entry in family.weights(spec).written(spec):
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
