"""Quantised models on disk: the folder of `model.store`, with packed weights and a recipe that says how to read them.

A quantised parameter NAME is stored as NAME_packed and NAME_scale; every other parameter as it is. The recipe is JSON
under "quantization" in the metadata of model.safetensors. docs/quantization.md has the whole format, docs/adr/0033 why.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from anyformer.errors import CheckpointError
from anyformer.model.build import allocate
from anyformer.model.model import Model
from anyformer.model.quantize import HEAD, install, products
from anyformer.model.safetensors_file import TensorFile
from anyformer.model.safetensors_header import Place, read_header
from anyformer.parts.heads import LMHead
from anyformer.parts.quantized import GROUPS, KINDS, Numbers, QuantizedLinear, Slice
from anyformer.specs.model import ModelSpec
from anyformer.specs.parameters import weights

KEY = "quantization"
VERSION = 1
PACKED, SCALE = "_packed", "_scale"
DTYPES = {"int8": "I8", "int4": "U8"}
"""What packed numbers are, as safetensors names it."""
SCALES = {"int8": ("F32",), "int4": ("F32", "F16", "BF16")}


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How the weights of a file were quantised."""

    version: int = VERSION
    kind: str
    num_bits: int
    symmetric: bool = True
    strategy: str
    """Which weights share a scale: all of an output ("channel"), or a group of its inputs ("group")."""
    group_size: int | None
    """Inputs in a group; a matrix whose inputs it does not divide has a smaller one, as its scales show."""
    targets: list[str]
    """The quantised parameters, by name."""


def recipe(kind: str, targets: list[str]) -> Recipe:
    """That of a kind."""
    groups = kind == "int4"
    return Recipe(
        kind=kind, num_bits=4 if groups else 8, strategy="group" if groups else "channel",
        group_size=GROUPS[0] if groups else None, targets=targets,
    )  # fmt: skip


def stored_recipe(file: Path) -> Recipe | None:
    """The recipe of a file of weights; None if they are not quantised."""
    return parsed(read_header(file).metadata, file)


def parsed(metadata: dict[str, str], file: Path) -> Recipe | None:
    """The same from the metadata."""
    if KEY not in metadata:
        return None
    try:
        told: Any = json.loads(metadata[KEY])
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file}: {KEY}: is not JSON: {error}") from error
    if not isinstance(told, dict):
        raise CheckpointError(f"{file}: {KEY}: holds {type(told).__name__}, not a table")
    if told.get("version") != VERSION:
        raise CheckpointError(
            f"{file}: {KEY}: is of version {told.get('version')!r:.40}, and this anyformer reads {VERSION}; update anyformer"
        )
    kind: Any = told.get("kind")
    targets: Any = told.get("targets")
    problems = []
    if kind not in KINDS:
        problems.append(f"kind: {kind!r:.40} is unknown (known: {', '.join(KINDS)})")
    if not isinstance(targets, list) or not all(isinstance(name, str) for name in targets):
        problems.append("targets: is no list of parameters")
    elif len(set(targets)) < len(targets):
        problems.append("targets: names a parameter twice")
    if not problems:
        wanted = asdict(recipe(kind, targets))
        problems += [
            f"{name}: {told.get(name)!r:.40}; of {kind} it is {wanted.get(name)!r}"
            for name in sorted(told.keys() | wanted.keys())
            if name not in told or name not in wanted or told[name] != wanted[name]
        ]
    if problems:
        raise CheckpointError("\n  ".join([f"{file}: {KEY}: can't be read:", *problems]))
    return recipe(kind, targets)


def contents(model: Model) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a quantised model by name, and what is said of them in the metadata."""
    inventory = weights(model.spec)
    tensors = {name: p.detach() for name, p in model.named_parameters()}
    kind, targets = "", []
    for path, numbers, bias in _quantised(model):
        name = f"{path}.weight"
        kind = numbers.kind
        targets.append(name)
        tensors |= {name + PACKED: numbers.data_OI, name + SCALE: numbers.scale}
        if bias is not None and f"{path}.bias" in inventory:
            tensors[f"{path}.bias"] = bias
    held = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
    return held, {KEY: json.dumps(asdict(recipe(kind, sorted(targets))))}


def _quantised(model: Model) -> list[tuple[str, Numbers, Tensor | None]]:
    """Path, numbers and bias of every quantised map."""
    found: list[tuple[str, Numbers, Tensor | None]] = []
    for path, module in model.named_modules():
        if isinstance(module, Slice):
            bias = module.whole.bias
            own = None if bias is None else bias[module.start : module.end]
            found.append((path, module.whole.numbers.rows(module.start, module.end), own))
        elif isinstance(module, LMHead) and isinstance(module.quantised, QuantizedLinear):
            # Its bias is a parameter still.
            found.append((path, module.quantised.numbers, None))
        elif isinstance(module, QuantizedLinear) and not path.endswith((".whole", ".quantised")):
            found.append((path, module.numbers, module.bias))
    return found


def load(stored: TensorFile, spec: ModelSpec, asked: Recipe, place: torch.device, dtype: torch.dtype | None) -> Model:
    """The quantised model of an open file."""
    model, numbers = _read(stored, spec, asked, place, dtype)
    return install(model, numbers)


def load_dequantised(
    stored: TensorFile, spec: ModelSpec, asked: Recipe, place: torch.device, dtype: torch.dtype | None
) -> Model:
    """The same weights as floating-point numbers, in a plain model, which may be trained and exported."""
    from anyformer.model.native_checkpoint import empty_model

    shell, numbers = _read(stored, spec, asked, place, dtype)
    like = dict(shell.named_parameters())
    model = empty_model(spec, place, next(iter(like.values())).dtype)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(like[name] if name in like else numbers[name].floats(parameter.dtype))
    return model


def _read(
    stored: TensorFile, spec: ModelSpec, asked: Recipe, place: torch.device, dtype: torch.dtype | None
) -> tuple[Model, dict[str, Numbers]]:
    """A model without the weights that are quantised, and their numbers."""
    from anyformer.model.native_checkpoint import check_shapes, default_dtype

    with torch.device("meta"):
        model = Model(spec)
    known = {weight: maps.body.get_submodule(name) for maps in products(model) for name, weight in _pairs(maps)}
    head = model.head
    if isinstance(head, LMHead):
        known[HEAD] = head
    shapes = {name: _matrix(module) for name, module in known.items()}
    wanted = _check(stored, asked, shapes)
    inventory = weights(spec)
    wanted |= {name: weight.shape for name, weight in inventory.items() if name not in asked.targets}
    check_shapes(stored.file, wanted, {name: held.shape for name, held in stored.header.tensors.items()})
    for name in asked.targets:
        if name in inventory:
            known[name].register_parameter("weight", None)
    if dtype is None:
        dtype = default_dtype(place, stored.view(next(n for n in inventory if n not in asked.targets)).dtype)
    model = model.to(dtype)
    numbers: dict[str, Numbers] = {}
    for name in asked.targets:
        scale = stored.read(name + SCALE).to(place)
        group = shapes[name][1] // scale.shape[1] if asked.kind == "int4" else 0
        numbers[name] = Numbers(stored.read(name + PACKED).to(place), scale, asked.kind, group)
    if place.type != "meta":
        allocate(model, place)
        for name, parameter in model.named_parameters():
            stored.read_into(name, parameter.detach())
    return model, numbers


def _pairs(maps: Any) -> list[tuple[str, str]]:
    return list(zip(maps.names, maps.weights, strict=True))


def _matrix(module: nn.Module) -> tuple[int, int]:
    """(out, in) of what a module multiplies by."""
    if isinstance(module, LMHead):
        return module.shape[1], module.shape[0]
    out, into = module.get_parameter("weight").shape
    return out, into


def _check(stored: TensorFile, asked: Recipe, known: dict[str, tuple[int, int]]) -> dict[str, tuple[int, ...]]:
    """The shapes of packed weights and scales; refused where the recipe, the spec and the dtypes don't fit."""
    held, wanted, problems = stored.header.tensors, {}, []
    for name in asked.targets:
        if name not in known:
            problems.append(f"{name}: is no product of this spec that can be quantised")
            continue
        out, into = known[name]
        scale = held.get(name + SCALE)
        wanted[name + PACKED] = (out, into) if asked.kind == "int8" else (out, into // 2)
        groups = () if asked.kind == "int8" else (_groups(scale, into),)
        wanted[name + SCALE] = (out, *groups)
        for place, allowed in ((held.get(name + PACKED), (DTYPES[asked.kind],)), (scale, SCALES[asked.kind])):
            if place is not None and place.dtype not in allowed:
                problems.append(f"{name}: holds {place.dtype} where {asked.kind} has {' or '.join(allowed)}")
    if problems:
        raise CheckpointError("\n  ".join([f"{stored.file} does not fit its {KEY}:", *sorted(problems)]))
    return wanted


def _groups(scale: Place | None, into: int) -> int:
    """How many scales an output has: as the file says if that may be, else as we would write it."""
    allowed = [into // size for size in GROUPS if into % size == 0]
    told = scale.shape[-1] if scale is not None and scale.shape else 0
    return told if told in allowed else (allowed[0] if allowed else 0)
