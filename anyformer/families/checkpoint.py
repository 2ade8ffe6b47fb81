"""Published checkpoints: their tensors into a model of ours, and back to their names."""

from __future__ import annotations

import contextlib
import json
import math
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from anyformer.errors import CheckpointError, InputError, SpecError
from anyformer.families.config_values import without
from anyformer.families.family import Family, families
from anyformer.families.lookup import family_of
from anyformer.families.quantization import quantization_of
from anyformer.families.shards import (
    CONFIG,
    CONFIG_BYTES,
    INDEX,
    SENTENCE,
    SINGLE,
    Shards,
    headers_of,
    opened,
    read_json,
)
from anyformer.families.statemap import Entry, StateMap, uncovered
from anyformer.families.tensor_ops import JOINED
from anyformer.files import replace_file
from anyformer.specs.model import ModelSpec
from anyformer.specs.parameters import weights

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from anyformer.model.model import Model
    from anyformer.parts.quantized import Numbers

SHARD_BYTES = 5_000_000_000
"""A file is begun anew before it grows beyond this."""
WRITER = "written_by"
"""A note in the files that we write, by which we know them again."""
OURS = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors|model\.safetensors\.index\.json")
"""Files of an older checkpoint that a new one replaces."""
TYING = ("tie_word_embeddings", "share_encoder_decoder_embeddings")
"""Keys of configs that say whether tables are one."""


def described(folder: Path, ignore_keys: Sequence[str] = ()) -> tuple[type[Family], ModelSpec]:
    """The family and the spec of a published checkpoint, from its config.json.

    Folders of sentence-transformers hold a body, though the config of many still names the class that it was taken from.
    """
    config, family = read_json(folder / CONFIG, CONFIG_BYTES), family_in(folder, ignore_keys)
    if family.bodies and any((folder / name).is_file() for name in SENTENCE):
        config |= {"architectures": [family.bodies[0]]}
    if family.tower is not None:
        config = family.tower.settled(config, shapes_in(folder))
    return family, family.spec_from(config, str(folder / CONFIG), ignore_keys)


def family_in(folder: Path, ignore_keys: Sequence[str] = ()) -> type[Family]:
    """The family of a published checkpoint.

    Only one that names neither its class nor its type is recognised by its other keys and its tensors.
    """
    config = read_json(folder / CONFIG, CONFIG_BYTES)
    nameless = config.get("architectures") in (None, []) and config.get("model_type") is None
    return recognised(config, folder, ignore_keys) if nameless else family_of(config, str(folder / CONFIG))


def shapes_in(folder: Path) -> dict[str, tuple[int, ...]]:
    """Stored names and shapes of a checkpoint; none where it can't be read."""
    try:
        return {name: place.shape for held in headers_of(folder).values() for name, place in held.tensors.items()}
    except CheckpointError:
        return {}


def shapes_of(stored: Mapping[str, Tensor]) -> Mapping[str, tuple[int, ...]]:
    """The shapes of tensors; no file is read for them."""
    return stored.shapes if isinstance(stored, Shards) else {name: tuple(t.shape) for name, t in stored.items()}


def recognised(config: Mapping[str, Any], folder: Path, ignore_keys: Sequence[str] = ()) -> type[Family]:
    """The one family that a config and tensors without a name can belong to; the folder's name counts for nothing.

    Of several, all must mean the same model, or one only be as old as such files are. A refusal says what to write.
    """
    stored = shapes_in(folder)
    fitting: dict[type[Family], ModelSpec] = {}
    for family in sorted(families(), key=lambda family: family.second):
        kept = without(config, ignore_keys)
        spec = family.readable(kept)
        if spec is None or (not stored and family.parse(kept)[1].passed):
            continue
        with contextlib.suppress(CheckpointError):
            if stored:
                matched(family, spec, stored, folder)
            fitting[family] = spec
    file, by = str(folder / CONFIG), "keys and tensors" if stored else "keys"
    if not fitting:
        return family_of(config, file)
    if len(early := {family: spec for family, spec in fitting.items() if family.before_types}) == 1:
        fitting = early
    first, spec = next(iter(fitting.items()))
    if any(spec != other for other in fitting.values()):
        names = sorted({family.model_type for family in fitting})
        why = (
            f"model_type: is missing, and there are no architectures; its {by} fit {', '.join(names)}, which "
            f'compute different things: write the right one into the file, such as "model_type": "{names[0]}"'
        )
        raise SpecError([why], file)
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
        placed = matched(family, spec, shards.shapes, folder)
        table = family.table(spec).layout(spec, shards.shapes)
        entries = table.entries(spec)
        model = empty_model(spec, place, dtype or default_dtype(place, shards.dtype_of(placed[entries[0].theirs])))
        shards.dtype = next(model.parameters()).dtype
        if place.type != "meta":
            fill(model, entries, placed, shards, str(folder))
            check_copies(family, spec, shards)
            check_computed(table, shards, str(folder))
        places = {name: file.header.tensors[name] for name, file in shards.files.items()}
        say_left_out(table, {name: place.end - place.begin for name, place in places.items()}, str(folder))
    model.family = family.kind
    return model


def stored_numbers(folder: Path, kind: str, ignore_keys: Sequence[str] = ()) -> dict[str, Numbers]:
    """Weights of a published checkpoint, by our names, that are stored in whole numbers which ours hold exactly."""
    if quantization_of(read_json(folder / CONFIG, CONFIG_BYTES)) is None:
        return {}
    family, spec = described(folder, ignore_keys)
    with opened(folder) as shards:
        placed = matched(family, spec, shards.shapes, folder)
        return numbers_in(family.table(spec).layout(spec, shards.shapes).entries(spec), placed, shards, kind)


class StoredNumbers(Protocol):
    """Tensors of which some may be whole numbers."""

    def numbers(self, name: str, kind: str) -> Numbers | None:
        """A weight in whole numbers of ours; None where ours can't hold it exactly."""
        ...


def numbers_in(
    entries: Iterable[Entry], placed: Mapping[str, str], stored: StoredNumbers, kind: str
) -> dict[str, Numbers]:
    """Weights that are stored in whole numbers which ours hold exactly, by our names."""
    made: dict[str, Numbers] = {}
    for entry in entries:
        held = placed.get(entry.theirs) if entry.op == JOINED else None
        found = None if held is None else stored.numbers(held, kind)
        at = 0
        for name, shape in zip(entry.ours, entry.shapes, strict=True):
            if found is not None:
                made[name] = found.rows(at, at + shape[0])
            at += shape[0]
    return made


def matched(
    family: type[Family], spec: ModelSpec, stored: Mapping[str, tuple[int, ...]], where: Path
) -> dict[str, str]:
    """Name in the table -> stored name. Every tensor that is missing, left over or of another shape is named."""
    from anyformer.model.native_checkpoint import check_shapes

    table = family.table(spec).layout(spec, stored)
    entries = table.entries(spec)
    if missing := uncovered(spec, entries):
        raise CheckpointError(f"{where}: the family's table has no place for {', '.join(missing)}")
    wanted = {entry.theirs: entry.shape for entry in entries}
    placed = table.placed(stored, wanted)
    needed = {name: size for name, size in wanted.items() if name in placed or name not in table.zeros}
    check_shapes(where, needed, {name: stored[held] for name, held in placed.items()})
    return placed


def fill(
    model: Model,
    entries: Iterable[Entry],
    placed: Mapping[str, str],
    stored: Mapping[str, Tensor],
    where: str,
    *,
    copy: bool = False,
) -> None:
    """Put every tensor of a checkpoint where it belongs: as it is where it fits, unless copies are asked for.

    `placed` says how each is stored; one that may be left out, and is, has zeros.
    """
    from anyformer.model.native_checkpoint import adopt, lies_alone

    parameters = dict(model.named_parameters())
    for entry in entries:
        if entry.theirs not in placed:
            for name in entry.ours:
                parameters[name].detach().zero_()
            continue
        held, first = placed[entry.theirs], parameters[entry.ours[0]]
        place, file = entry.op.place(first), stored.plain_file(held) if isinstance(stored, Shards) else None
        alone = place is first and lies_alone(first)
        if file is not None and file.holds(held, first.dtype) and entry.op.keeps(entry.shapes) and not alone:
            # Past the view of the file, whose pages would stay in memory beside the copy.
            file.read_into(held, place.detach())
            continue
        theirs = stored[held]
        if not theirs.is_floating_point():
            told = f"{CONFIG} has no quantization_config that says what its numbers stand for"
            raise CheckpointError(f"{where}: {entry.theirs}: holds {theirs.dtype}, and {told}")
        for name, part in zip(entry.ours, entry.op.split(theirs, entry.shapes), strict=True):
            place = entry.op.place(parameters[name])
            if place is parameters[name]:
                adopt(parameters[name], part, copy=copy)
            else:
                place.copy_(part)


def differing(family: type[Family], spec: ModelSpec, stored: Mapping[str, Tensor]) -> dict[str, str]:
    """Stored copies of a tensor that are not equal to it -> the name under which it is stored itself."""
    import torch

    table = family.table(spec).layout(spec, shapes_of(stored))
    known = {entry.theirs for entry in table.entries(spec)}
    placed = table.placed(stored, known)
    found: dict[str, str] = {}
    for copy, name in table.doubles(stored, known):
        if copy == placed[name]:
            continue
        first, second = stored[placed[name]], stored[copy]
        if first.shape != second.shape or not torch.equal(first, second.to(first)):
            found[copy] = placed[name]
    return found


def untying(family: type[Family], config: Mapping[str, Any], stored: Mapping[str, Tensor]) -> dict[str, bool]:
    """Changes of a config by which all differing copies are tensors of their own; empty if the family has none."""
    for keys in (*((key,) for key in TYING), TYING):
        changes = {key: False for key in keys if key in family.keys}
        spec = family.readable(dict(config) | changes) if changes else None
        if spec is not None and not differing(family, spec, stored):
            return changes
    return {}


def check_copies(family: type[Family], spec: ModelSpec, shards: Shards) -> None:
    """A tensor that is stored twice must be the same twice, or the model is not tied as its config says."""
    if not (found := differing(family, spec, shards)):
        return
    pairs = ", ".join(f"{copy} differs from {name}" for copy, name in found.items())
    keys = " and ".join(untying(family, read_json(shards.folder / CONFIG, CONFIG_BYTES), shards))
    apart = f"a model of {family.architectures[0]} that has them apart can't be read"
    advice = f"if they are not, set {keys} to false there" if keys else apart
    raise CheckpointError(f"{shards.folder}: {pairs}, but {CONFIG} says that they are one; {advice}")


def check_computed(table: StateMap, stored: Mapping[str, Tensor], where: str) -> None:
    """A table that is computed here and read from the file by the public class must be the one that is computed."""
    for pattern, sines in table.computed.items():
        for name in stored:
            if re.fullmatch(pattern, name) and (why := sines.differs(stored[name])) is not None:
                raise CheckpointError(
                    f"{where}: {name}: {why}. The public class would read it, and here positions are computed, so the "
                    "model would be another one; if the table is damaged, take it out of the file"
                )


def say_left_out(table: StateMap, sizes: Mapping[str, int], where: str) -> None:
    """Say how much of a multimodal checkpoint is no part of the language model; `sizes` are bytes by name."""
    others = re.compile("|".join(f"(?:{pattern})" for pattern in table.others) or r"(?!)")
    if left := [name for name in sizes if others.fullmatch(name)]:
        parts = sorted({re.sub(r"^(model\.)?(\w+).*", r"\1\2", name) for name in left})
        total = sum(sizes[name] for name in left) / 1e6
        warnings.warn(
            f"{where}: this is the language model alone; left out: {len(left)} tensors, {total:,.1f} MB ({', '.join(parts)})",
            stacklevel=4,
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
    for entry in family.table(model.spec).written(model.spec):
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
    routes = any(layer.ffn.routes for stack in spec.stacks for layer in stack.layers)

    def otherwise(family: type[Family]) -> bool:
        # Families with experts can say a model without any, which is not what anybody looks for.
        return (family.base.get("ffn", {}).get("kind") == "moe") != routes

    def order(family: type[Family]) -> tuple[bool, ...]:
        # Of classes that compute the same, the one that models are known by is read by more tools.
        return family.kind != read_from, otherwise(family), family.second, not family.presets

    for family in sorted(families(), key=order):
        if kind not in (None, family.kind):
            continue
        try:
            config = family.hf_from(spec)
        except SpecError as error:
            found.append((family, error))
            continue
        if not uncovered(spec, family.table(spec).entries(spec)):
            if kind is None and read_from not in (None, family.kind):
                own = {other.kind: (other, error) for other, error in found}
                why = f"a model of the family {read_from!r}, which is not known here"
                if read_from in own:
                    other, error = own[read_from]
                    why = f"{other.architectures[0]}, whose files can't say it any more ({'; '.join(error.problems)})"
                warnings.warn(
                    f"model: was read from {why}; it is written as {config['architectures'][0]}", stacklevel=3
                )
            return family, config
    if not found:
        known = ", ".join(family.kind for family in families())
        raise InputError(f"family: {kind!r} is unknown (known: {known})")

    def distance(pair: tuple[type[Family], SpecError]) -> tuple[bool | int, ...]:
        # A class of another topology, or one that could not even be written, has one problem only, and is further away.
        family, error = pair
        unsaid = error.__cause__ is not None
        return error.problems[0].startswith("topology"), otherwise(family), unsaid, len(error.problems)

    nearest, error = min(found, key=distance)
    raise SpecError(error.problems, f"for a published class; the nearest is {nearest.architectures[0]}") from error


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
    count = len(groups)
    names = [SINGLE] if count == 1 else [f"model-{i:05}-of-{count:05}.safetensors" for i in range(1, count + 1)]
    made = published(model, chosen)
    for name, group in zip(names, groups, strict=True):
        tensors = {theirs: tensor.cpu().contiguous() for theirs, tensor in (next(made) for _ in group)}
        write_tensors(folder / name, tensors, {"format": "pt", WRITER: "anyformer"})
    if count > 1:
        placed = {theirs: name for name, group in zip(names, groups, strict=True) for theirs in group}
        total = sum(size for group in groups for size in group.values())
        write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": placed})
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


def grouped(family: type[Family], spec: ModelSpec, itemsize: int, most: int) -> list[dict[str, int]]:
    """Tensors of each file, in order, and their bytes; no file beyond `most` bytes unless one tensor is."""
    groups: list[dict[str, int]] = [{}]
    held, inventory = 0, weights(spec)
    for entry in family.table(spec).written(spec):
        size = math.prod(entry.shape) * (max(itemsize, 4) if inventory[entry.ours[0]].exact else itemsize)
        if groups[-1] and held + size > most:
            groups.append({})
            held = 0
        groups[-1][entry.theirs] = size
        held += size
    return groups


def write_json(file: Path, table: Mapping[str, Any]) -> None:
    """Write a table, for people to read."""
    text = json.dumps(table, indent=2, sort_keys=True, allow_nan=False) + "\n"
    replace_file(file, lambda place: place.write_text(text, encoding="utf-8"))
