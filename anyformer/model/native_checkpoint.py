"""Saving and loading a model: `model.safetensors`, which carries its spec, and `spec.toml` for people to read.

Each file is written beside its place, synced, and renamed over it, so that a kill leaves the old file or the new one.
Nothing but safetensors and TOML is ever read.

Of a quantised model a parameter NAME is stored as NAME_packed and NAME_scale; every other parameter as it is. The recipe
is JSON under "quantization" in the metadata. docs/quantization.md has the whole format, docs/adr/0033 why.
"""

import json
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from anyformer.errors import CheckpointError, InputError, fault_of, file_fault
from anyformer.files import replace_file
from anyformer.model.build import allocate
from anyformer.model.model import Model
from anyformer.model.quantize import HEAD, install, products
from anyformer.model.safetensors_file import TensorFile
from anyformer.model.safetensors_header import read_header
from anyformer.parts.heads import LMHead
from anyformer.parts.quantized import GROUPS, KINDS, Numbers, QuantizedLinear, Slice, is_quantized
from anyformer.specs.model import ModelSpec
from anyformer.specs.parameters import weights

WEIGHTS, SPEC = "model.safetensors", "spec.toml"
FORMATS = ("anyformer",)


def save(model: Model, path: str | Path, format: str = "anyformer") -> None:
    """Write a model into a directory, which is made if need be."""
    if format not in FORMATS:
        raise InputError(f"format: {format!r} is unknown (known: {', '.join(FORMATS)})")
    if any(p.is_meta for p in model.parameters()):
        raise InputError("model: it is on the meta device and has no weights to save")
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    text = model.spec.to_toml()
    more: dict[str, str] = {}
    if is_quantized(model):
        tensors, more = contents(model)
    else:
        tensors = {name: p.detach().cpu().contiguous() for name, p in model.named_parameters()}
    write_tensors(folder / WEIGHTS, tensors, metadata_of(model.spec, model.family) | more)
    replace_file(folder / SPEC, lambda place: place.write_text(text, encoding="utf-8"))


def metadata_of(spec: ModelSpec, family: str | None) -> dict[str, str]:
    """What a file of weights says about its model."""
    return {"format": "pt", "spec": spec.to_toml()} | ({} if family is None else {"family": family})


def write_tensors(file: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write a safetensors file in one go: a kill leaves the old one or the new one."""
    try:
        replace_file(file, lambda place: save_file(tensors, place, metadata))
    except SafetensorError as error:
        fault = fault_of(str(error), file)
        what = f"{file}: can't be written: {error}" if fault is None else file_fault(fault)
        raise CheckpointError(what) from error


def load(
    path: str | Path,
    device: str | torch.device | None = None,
    dtype: torch.dtype | None = None,
    *,
    dequantise: bool = False,
) -> Model:
    """Read a model from a directory that `save` wrote.

    `dtype` defaults to the checkpoint's own on an accelerator and to float32 on a CPU. A quantised model comes back
    quantised; with `dequantise` as a plain one, with the weights that its whole numbers stand for.
    """
    folder = Path(path)
    file = folder / WEIGHTS
    if not file.is_file():
        raise CheckpointError(f"{folder}: there is no {WEIGHTS}; give a directory that anyformer.save wrote")
    place = torch.device(device or "cpu")
    with TensorFile(file) as stored:
        metadata = stored.header.metadata
        if "spec" not in metadata:
            raise CheckpointError(f"{file}: carries no spec, so anyformer did not write it")
        spec, quantization = ModelSpec.from_toml(metadata["spec"], f"in {file}"), parsed(metadata, file)
        # Of a model that is not quantised, nothing is.
        model, numbers = _read(stored, spec, quantization or recipe(KINDS[0], []), place, dtype)
    if quantization is not None and not dequantise:
        model = install(model, numbers)
    elif numbers:
        like = dict(model.named_parameters())
        model = empty_model(spec, place, next(iter(like.values())).dtype)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(like[name] if name in like else numbers[name].floats(parameter.dtype))
    # Files that were written before families were kept have none.
    model.family = metadata.get("family")
    written = folder / SPEC
    # An earlier version may have written fewer fields.
    if written.is_file() and written.read_bytes() not in (metadata["spec"].encode(), spec.to_toml().encode()):
        warnings.warn(
            f"{written} is not the spec that {WEIGHTS} was saved with; the model is built from the latter. "
            "To change a spec, load it, vary it and build.",
            stacklevel=2,
        )
    return model


def default_dtype(place: torch.device, stored: torch.dtype) -> torch.dtype:
    """The dtype of a model that nobody asked one for: float32 on a CPU, else what the checkpoint has."""
    return torch.float32 if place.type == "cpu" else stored


def empty_model(spec: ModelSpec, place: torch.device, dtype: torch.dtype) -> Model:
    """A model on its device, whose parameters are still to be filled."""
    with torch.device("meta"):
        model = Model(spec).to(dtype)
    return model if place.type == "meta" else allocate(model, place)


@torch.no_grad()
def adopt(parameter: nn.Parameter, tensor: Tensor, *, copy: bool = False) -> None:
    """Give a parameter the values of a tensor.

    For a model that is being made, before anybody else knows of its parameters: a tensor that fits becomes the
    parameter, so that it takes no memory twice. One whose module laid it out beside others stays there. What is written
    to a view of a file stays in memory; the file is never changed.
    """
    fits = tensor.dtype == parameter.dtype and tensor.device == parameter.device and tensor.is_contiguous()
    if fits and lies_alone(parameter) and not copy:
        parameter.data = tensor
    else:
        parameter.copy_(tensor)


def lies_alone(parameter: nn.Parameter) -> bool:
    """Whether a parameter has a storage of its own."""
    return parameter.untyped_storage().nbytes() == parameter.nbytes


def check_shapes(file: Path, wanted: dict[str, tuple[int, ...]], found: dict[str, tuple[int, ...]]) -> None:
    """Refuse a checkpoint whose tensors are not those that its spec asks for, naming every one that differs."""
    problems = [f"{name}: is missing" for name in wanted.keys() - found.keys()]
    problems += [f"{name}: is no parameter of this spec" for name in found.keys() - wanted.keys()]
    problems += [
        f"{name}: has shape {found[name]}, the spec says {wanted[name]}"
        for name in wanted.keys() & found.keys()
        if found[name] != wanted[name]
    ]
    if problems:
        raise CheckpointError("\n  ".join([f"{file} does not fit its spec:", *sorted(problems)]))


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
        given: Any = json.loads(metadata[KEY])
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file}: {KEY}: is not JSON: {error}") from error
    if not isinstance(given, dict):
        raise CheckpointError(f"{file}: {KEY}: holds {type(given).__name__}, not a table")
    if given.get("version") != VERSION:
        raise CheckpointError(
            f"{file}: {KEY}: is of version {given.get('version')!r:.40}, and this anyformer reads {VERSION}; update anyformer"
        )
    kind: Any = given.get("kind")
    targets: Any = given.get("targets")
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
            f"{name}: {given.get(name)!r:.40}; of {kind} it is {wanted.get(name)!r}"
            for name in sorted(given.keys() | wanted.keys())
            if name not in given or name not in wanted or given[name] != wanted[name]
        ]
    if problems:
        raise CheckpointError("\n  ".join([f"{file}: {KEY}: can't be read:", *problems]))
    return recipe(kind, targets)


def contents(model: Model) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a quantised model by name, and what is said of them in the metadata."""
    inventory = weights(model.spec)
    tensors = {name: p.detach() for name, p in model.named_parameters()}
    kind, targets = "", []
    for path, module in model.named_modules():
        if isinstance(module, Slice):
            numbers, bias = module.whole.numbers.rows(module.start, module.end), module.whole.bias
            bias = None if bias is None else bias[module.start : module.end]
        elif isinstance(module, LMHead) and isinstance(module.quantised, QuantizedLinear):
            # Its bias is a parameter still.
            numbers, bias = module.quantised.numbers, None
        elif isinstance(module, QuantizedLinear) and not path.endswith((".whole", ".quantised")):
            numbers, bias = module.numbers, module.bias
        else:
            continue
        name, kind = f"{path}.weight", numbers.kind
        targets.append(name)
        tensors |= {name + PACKED: numbers.data_OI, name + SCALE: numbers.scale}
        if bias is not None and f"{path}.bias" in inventory:
            tensors[f"{path}.bias"] = bias
    held = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
    return held, {KEY: json.dumps(asdict(recipe(kind, sorted(targets))))}


def _read(
    stored: TensorFile, spec: ModelSpec, asked: Recipe, place: torch.device, dtype: torch.dtype | None
) -> tuple[Model, dict[str, Numbers]]:
    """A model without the weights that are quantised, and their numbers."""
    with torch.device("meta"):
        model = Model(spec)
    known: dict[str, nn.Module] = {
        weight: body.get_submodule(name) for body, names in products(model) for name, weight in names.items()
    }
    shapes = {name: tuple(module.get_parameter("weight").shape) for name, module in known.items()}
    if isinstance(model.head, LMHead):
        known[HEAD], shapes[HEAD] = model.head, model.head.shape[::-1]
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


def _check(stored: TensorFile, asked: Recipe, known: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """The shapes of packed weights and scales; refused where the recipe, the spec and the dtypes don't fit."""
    held, wanted, problems = stored.header.tensors, {}, []
    for name in asked.targets:
        if name not in known:
            problems.append(f"{name}: is no product of this spec that can be quantised")
            continue
        out, into = known[name]
        scale = held.get(name + SCALE)
        wanted[name + PACKED], wanted[name + SCALE] = (out, into), (out,)
        if asked.kind == "int4":
            # How many scales an output has: as the file says if that may be, else as we would write it.
            groups = [into // size for size in GROUPS if into % size == 0] or [0]
            given = scale.shape[-1] if scale is not None and scale.shape else 0
            wanted[name + SCALE] = (out, given if given in groups else groups[0])
            wanted[name + PACKED] = (out, into // 2)
        for place, allowed in ((held.get(name + PACKED), (DTYPES[asked.kind],)), (scale, SCALES[asked.kind])):
            if place is not None and place.dtype not in allowed:
                problems.append(f"{name}: holds {place.dtype} where {asked.kind} has {' or '.join(allowed)}")
    if problems:
        raise CheckpointError("\n  ".join([f"{stored.file} does not fit its {KEY}:", *sorted(problems)]))
    return wanted
