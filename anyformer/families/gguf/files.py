"""Models from GGUF files and back: llama.cpp's layout, one file, written whole or not at all."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from anyformer.errors import CheckpointError, InputError, SpecError
from anyformer.families.checkpoint import check_exportable, fill, matched, numbers_in, published
from anyformer.families.facts import differences
from anyformer.families.family import Family
from anyformer.families.gguf.architectures import ARCHITECTURES, FACTORS, LONG, SHORT, Architecture, llama3_factors
from anyformer.families.gguf.header import Block, Header, library, read_header
from anyformer.families.gguf.tensors import ENDS, SHARED_GATE, GgufTensors, names_of, number, spec_of_header
from anyformer.files import replace_file
from anyformer.specs.model import ModelSpec

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from anyformer.model.model import Model
    from anyformer.parts.quantized import Numbers

TYPES = ("f32", "f16", "bf16", "q8_0")
"""What matrices can be written in; norms, biases and tables of positions are F32, as llama.cpp has them."""
WRITER = "anyformer"


def spec_of_gguf(file: Path, ignore_keys: Sequence[str] = ()) -> ModelSpec:
    """The spec of the model in a file."""
    return spec_of_header(read_header(file), ignore_keys)[1]


def open_gguf(file: Path, ignore_keys: Sequence[str] = ()) -> tuple[type[Family], ModelSpec, GgufTensors]:
    """What a file holds."""
    header = read_header(file)
    family, spec = spec_of_header(header, ignore_keys)
    return family, spec, GgufTensors(header, family, spec)


def load_gguf(
    file: Path, device: str | torch.device | None, dtype: torch.dtype | None, ignore_keys: Sequence[str] = ()
) -> Model:
    """A model from a file, its weights as the numbers that they stand for."""
    import torch

    from anyformer.model.native_checkpoint import default_dtype, empty_model

    family, spec, stored = open_gguf(file, ignore_keys)
    place = torch.device(device or "cpu")
    placed = matched(family, spec, stored.shapes, file)
    model = empty_model(spec, place, dtype or default_dtype(place, stored.widest))
    stored.dtype = next(model.parameters()).dtype
    if place.type != "meta":
        fill(model, family.table(spec).entries(spec), placed, stored, str(file))
    model.family = family.kind
    return model


def gguf_numbers(file: Path, kind: str, ignore_keys: Sequence[str] = ()) -> dict[str, Numbers]:
    """Weights of a file, by our names, that are stored in whole numbers which ours hold exactly."""
    family, spec, stored = open_gguf(file, ignore_keys)
    entries = family.table(spec).entries(spec)
    return numbers_in(entries, matched(family, spec, stored.shapes, file), stored, kind)


def written_as(spec: ModelSpec, read_from: str | None = None) -> tuple[Architecture, dict[str, Any]]:
    """The architecture of llama.cpp that can hold a spec, and the config of its family: the model's own, or the first.

    What none can hold is named, by what the nearest can't.
    """
    found: list[tuple[Architecture, SpecError]] = []
    for kind in sorted(ARCHITECTURES, key=lambda kind: kind.family != read_from):
        family = Family.named(kind.family)
        if family is None:
            continue
        try:
            config = family.hf_from(spec)
            header = planned(kind, config, spec)
            other = spec_of_header(header, (), _factors(kind, config, spec))[1]
        except SpecError as error:
            found.append((kind, error))
            continue
        # A decoder never begins with it.
        pairs = [pair for pair in differences(spec, other) if pair[0] != "ids.start"]
        pairs = [(name, mine, theirs) for name, mine, theirs in pairs if _single(mine) != _single(theirs)]
        if not pairs:
            own = next((other for other, _ in found if other.family == read_from), None)
            if own is not None:
                why = f"was read from {own.name}, which can't hold it any more; it is written as {kind.name}"
                warnings.warn(f"model: {why}", stacklevel=3)
            return kind, config
        lines = [f"{name}: is {mine!r:.60}, but such files mean {theirs!r:.60}" for name, mine, theirs in pairs]
        found.append((kind, SpecError(lines)))
    nearest, error = min(found, key=lambda pair: (pair[1].problems[0].startswith("topology"), len(pair[1].problems)))
    raise SpecError(error.problems, f"as a GGUF file; the nearest architecture is {nearest.name}") from error


def _single(value: Any) -> Any:
    """Numbers as a file of 32 bits holds them."""
    if isinstance(value, list | tuple):
        return tuple(map(_single, value))
    return number(value) if isinstance(value, float) else value


def planned(kind: Architecture, config: Mapping[str, Any], spec: ModelSpec) -> Header:
    """What the header of a file of this model says of it: its keys, and the shapes of its tensors."""
    dims = spec.dims(spec.stacks[-1].layers[0], spec.stacks[-1])
    sizes = {"attention.head_count_kv": dims.kv_heads, "feed_forward_length": dims.ffn_width}
    given = {key: config[name] for key, name in kind.keys.items() if config.get(name) is not None}
    given |= {key: value for key, value in sizes.items() if key in kind.keys and key not in given}
    given |= {"vocab_size": spec.vocab}
    if "rope.freq_base" in kind.keys:
        given |= {"rope.dimension_count": dims.head_dim}
        given |= dict.fromkeys(("attention.key_length", "attention.value_length"), dims.head_dim)
    given |= kind.write(config)
    metadata: dict[str, Any] = {"general.architecture": kind.name}
    metadata |= {f"{kind.name}.{key}": value for key, value in given.items() if value is not None}
    ids = {"bos_token_id": spec.ids.bos, "padding_token_id": spec.ids.pad}
    ids |= dict(zip(ENDS, spec.ids.eos, strict=False))
    metadata |= {f"tokenizer.ggml.{name}": value for name, value in ids.items() if value is not None}
    family = Family.named(kind.family)
    entries = [] if family is None else family.table(spec).entries(spec)
    names = names_of(kind, [entry.theirs for entry in entries], spec.depth)
    plain = library().GGMLQuantizationType.F32
    shapes = dict(_stored_shapes(kind, [(entry.theirs, entry.shape) for entry in entries], names))
    return Header(Path(kind.name), metadata, {name: Block(plain, shape, 0, 0) for name, shape in shapes.items()})


def _factors(kind: Architecture, config: Mapping[str, Any], spec: ModelSpec) -> dict[str, list[float]]:
    """Tensors of what frequencies are divided by, where a scaling is stored so."""
    scaling = config.get("rope_scaling") or {}
    if scaling.get("rope_type") == "llama3":
        dims = spec.dims(spec.stacks[-1].layers[0], spec.stacks[-1])
        return {FACTORS: [number(n) for n in llama3_factors(scaling, config["rope_theta"], dims.head_dim)]}
    if scaling.get("rope_type") == "longrope" and kind.name == "phi3":
        return {LONG: scaling["long_factor"], SHORT: scaling["short_factor"]}
    return {}


def save_gguf(model: Model, path: str | Path, kind: str = "f16", more: Mapping[str, Any] | None = None) -> None:
    """Write a model into a file; matrices in one of `TYPES`. `more` is metadata besides, such as that of a tokenizer."""
    package, place = library(), Path(path)
    if kind not in TYPES:
        raise InputError(f"type: {kind!r} is unknown (known: {', '.join(TYPES)})")
    if place.suffix.lower() != ".gguf":
        raise InputError(f"{place}: is no name of a GGUF file; give one that ends in .gguf")
    if place.is_dir():
        raise InputError(f"{place}: is a directory; give the name of a file")
    check_exportable(model)
    if any(p.is_meta for p in model.parameters()):
        raise InputError("model: it is on the meta device and has no weights to save")
    found, config = written_as(model.spec, model.family)
    header, factors = planned(found, config, model.spec), _factors(found, config, model.spec)
    family = Family.named(found.family)
    if family is None:
        raise InputError(f"family: {found.family!r} is unknown")
    file_type = {"f32": "ALL_F32", "f16": "MOSTLY_F16", "bf16": "MOSTLY_BF16", "q8_0": "MOSTLY_Q8_0"}[kind]
    notes = {"general.file_type": int(package.LlamaFileType[file_type]), "general.quantized_by": WRITER}
    if kind == "q8_0":
        notes["general.quantization_version"] = package.GGML_QUANT_VERSION
    metadata = header.metadata | notes | dict(more or {"tokenizer.ggml.model": "no_vocab"})
    names = names_of(found, [name for name, _ in _shapes(family, model.spec)], model.spec.depth)
    lost = [name for name, _ in _shapes(family, model.spec) if name not in names]
    if lost:
        raise SpecError([f"{name}: llama.cpp has no tensor for it" for name in lost], f"as a file of {found.name}")
    dims = model.spec.dims(model.spec.stacks[-1].layers[0], model.spec.stacks[-1])
    heads = {"attn_q.": dims.heads, "attn_k.": dims.kv_heads}

    def write(beside: Path) -> None:
        writer = package.GGUFWriter(None, found.name)
        for key, value in metadata.items():
            _add(writer, key, value)
        for name, values in factors.items():
            writer.add_tensor_info(name, (len(values),), np.dtype(np.float32), 4 * len(values))
        for own, stored in _stored_shapes(found, _shapes(family, model.spec), names):
            made = _type(own, stored, kind)
            size = int(np.prod(package.quant_shape_to_byte_shape(stored, made))) if stored else 0
            writer.add_tensor_info(own, stored, np.dtype(np.float32), size, raw_dtype=made)
        try:
            writer.write_header_to_file(beside)
            writer.write_kv_data_to_file()
            writer.write_ti_data_to_file()
            for values in factors.values():
                writer.write_tensor_data(np.array(values, np.float32))
            for own, group in itertools.groupby(published(model, family), lambda pair: names[pair[0]]):
                tensors = [_stored(found, own, tensor, heads, kind) for _, tensor in group]
                writer.write_tensor_data(tensors[0] if "_exps." not in own else np.stack(tensors))
        finally:
            writer.close()

    replace_file(place, write)


def _shapes(family: type[Family], spec: ModelSpec) -> Iterator[tuple[str, tuple[int, ...]]]:
    for entry in family.table(spec).written(spec):
        yield entry.theirs, entry.shape


def _stored_shapes(
    kind: Architecture, shapes: Iterable[tuple[str, tuple[int, ...]]], names: Mapping[str, str]
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes in a file, of all that it has a name for."""
    known = [(names[name], shape) for name, shape in shapes if name in names]
    for own, group in itertools.groupby(known, lambda pair: pair[0]):
        found = [shape for _, shape in group]
        if "_exps." in own:
            yield own, (len(found), *found[0])
        elif own.endswith(SHARED_GATE):
            yield own, found[0][1:]
        else:
            yield own, found[0][::-1] if _is_matrix(kind, own) else found[0]


def _is_matrix(kind: Architecture, own: str) -> bool:
    """Whether the family stores it the other way round."""
    return own.endswith(".weight") and any(f".{part}." in own for part in kind.transposed)


def _type(own: str, shape: tuple[int, ...], kind: str) -> Any:
    types = library().GGMLQuantizationType
    if len(shape) < 2 or own == "position_embd.weight" or "ffn_gate_inp" in own:
        return types.F32
    # Rows that blocks do not divide stay whole, as llama.cpp's converter has it.
    return types.F16 if kind == "q8_0" and shape[-1] % 32 else types[kind.upper()]


def _stored(kind: Architecture, own: str, tensor: Tensor, heads: Mapping[str, int], type_: str) -> Any:
    """A tensor of the family's files as llama.cpp has it."""
    package = library()
    made = (tensor.T if _is_matrix(kind, own) else tensor).float().cpu().contiguous().numpy()
    part = next((part for part in heads if f".{part}" in own), None)
    if kind.permuted and part is not None:
        made = made.reshape(heads[part], 2, -1, *made.shape[1:]).swapaxes(1, 2).reshape(made.shape)
    if own.endswith(SHARED_GATE):
        made = made[0]
    if kind.norm_offset and own.endswith("norm.weight"):
        made = made + np.float32(kind.norm_offset)
    if not np.isfinite(made).all():
        raise CheckpointError(f"{own}: holds numbers that are not finite, which no block can hold")
    # Beyond the largest number of 16 bits it becomes infinite, which the caller can see and numpy need not tell.
    with np.errstate(over="ignore"):
        return package.quants.quantize(np.ascontiguousarray(made), _type(own, made.shape, type_))


def _add(writer: Any, key: str, value: Any) -> None:
    """One key, in the type that llama.cpp reads it in."""
    if key == "general.architecture":
        return
    match value:
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case _:
            writer.add_array(key, value)
