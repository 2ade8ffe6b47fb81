"""Saving and loading a model: `model.safetensors`, which carries its spec, and `spec.toml` for people to read.

Each file is written beside its place, synced, and renamed over it, so that a kill leaves the old file or the new one.
Nothing but safetensors and TOML is ever read.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from anyformer.errors import CheckpointError, InputError, fault_of, file_fault
from anyformer.files import replace_file
from anyformer.model.build import allocate
from anyformer.model.model import Model
from anyformer.model.safetensors_file import TensorFile
from anyformer.parts.quantized import is_quantized
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
        from anyformer.model.quantized_checkpoint import contents

        tensors, more = contents(model)
    else:
        tensors = {name: p.detach().cpu().contiguous() for name, p in model.named_parameters()}
    write_tensors(folder / WEIGHTS, tensors, metadata_of(model.spec, model.family) | more)
    replace_file(folder / SPEC, lambda place: place.write_text(text, encoding="utf-8"))


def metadata_of(spec: ModelSpec, family: str | None) -> dict[str, str]:
    """What a file of weights says about its model."""
    return {"format": "pt", "spec": spec.to_toml()} | ({} if family is None else {"family": family})


def write_tensors(file: Path, tensors: dict[str, torch.Tensor], metadata: dict[str, str]) -> None:
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
    from anyformer.model import quantized_checkpoint

    folder = Path(path)
    file = folder / WEIGHTS
    if not file.is_file():
        raise CheckpointError(f"{folder}: there is no {WEIGHTS}; give a directory that anyformer.save wrote")
    place = torch.device(device or "cpu")
    with TensorFile(file) as stored:
        spec = _spec_of(stored.header.metadata, file)
        recipe = quantized_checkpoint.parsed(stored.header.metadata, file)
        if recipe is not None:
            read = quantized_checkpoint.load_dequantised if dequantise else quantized_checkpoint.load
            _warn_of_another_spec(folder, spec)
            model = read(stored, spec, recipe, place, dtype)
            model.family = stored.header.metadata.get("family")
            return model
        inventory = weights(spec)
        shapes = {name: held.shape for name, held in stored.header.tensors.items()}
        check_shapes(file, {name: w.shape for name, w in inventory.items()}, shapes)
        if dtype is None:
            dtype = default_dtype(place, stored.view(next(iter(inventory))).dtype)
        model = empty_model(spec, place, dtype)
        # Files that were written before families were kept have none.
        model.family = stored.header.metadata.get("family")
        if place.type != "meta":
            for name, parameter in model.named_parameters():
                stored.read_into(name, parameter.detach())
    _warn_of_another_spec(folder, spec)
    return model


def _warn_of_another_spec(folder: Path, spec: ModelSpec) -> None:
    written = folder / SPEC
    if written.is_file() and written.read_bytes() != spec.to_toml().encode():
        warnings.warn(
            f"{written} is not the spec that {WEIGHTS} was saved with; the model is built from the latter. "
            "To change a spec, load it, vary it and build.",
            stacklevel=3,
        )


def _spec_of(metadata: dict[str, str], file: Path) -> ModelSpec:
    if "spec" not in metadata:
        raise CheckpointError(f"{file}: carries no spec, so anyformer did not write it")
    return ModelSpec.from_toml(metadata["spec"], f"in {file}")


def default_dtype(place: torch.device, stored: torch.dtype) -> torch.dtype:
    """The dtype of a model that nobody asked one for: float32 on a CPU, else what the checkpoint has."""
    return torch.float32 if place.type == "cpu" else stored


def empty_model(spec: ModelSpec, place: torch.device, dtype: torch.dtype) -> Model:
    """A model on its device, whose parameters are still to be filled."""
    with torch.device("meta"):
        model = Model(spec).to(dtype)
    return model if place.type == "meta" else allocate(model, place)


@torch.no_grad()
def adopt(parameter: torch.nn.Parameter, tensor: torch.Tensor, *, copy: bool = False) -> None:
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


def lies_alone(parameter: torch.nn.Parameter) -> bool:
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
