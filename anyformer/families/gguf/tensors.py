"""The tensors of a GGUF file under the names of the family's own files, dequantised one at a time by the package gguf."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from anyformer.errors import CheckpointError, SpecError
from anyformer.families.family import Family
from anyformer.families.gguf.architectures import ARCHITECTURES, FACTORS, LONG, MULTIPLE, SHORT, Architecture, Lists
from anyformer.families.gguf.header import Block, Header, library
from anyformer.specs.model import ModelSpec

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from anyformer.parts.quantized import Numbers

EXPERT = re.compile(r"\.experts\.(\d+)\.")
SHARED_GATE = "ffn_gate_inp_shexp.weight"
"""A matrix of one row, which is a list there."""
CHUNK = 1 << 20
"""Weights that are dequantised at a time."""
PLAIN = ("F32", "F16", "BF16")
ROPE_TENSORS = (FACTORS, LONG, SHORT)
Q4_0_BLOCK, Q4_0_BYTES = 32, 18
ENDS = ("eos_token_id", "eot_token_id", "eom_token_id")
"""Keys of tokens that end an answer."""


def architecture_of(header: Header) -> Architecture:
    """The architecture that a file names."""
    name = header.metadata.get("general.architecture")
    experts = bool(header.metadata.get(f"{name}.expert_count"))
    found = [kind for kind in ARCHITECTURES if kind.name == name and kind.experts == experts]
    if not found:
        if any(kind.name == name for kind in ARCHITECTURES):
            why = "is missing" if not experts else "is not 0, and we know no such model with experts"
            raise SpecError([f"{name}.expert_count: {why}"], str(header.file))
        known = ", ".join(dict.fromkeys(kind.name for kind in ARCHITECTURES))
        raise SpecError([f"general.architecture: {name!r:.60} can't be read (known: {known})"], str(header.file))
    if header.metadata.get("split.count", 1) not in (0, 1):
        why = "is one of several files; put them together first (llama-gguf-split --merge)"
        raise SpecError([f"split.count: {header.metadata['split.count']}: {why}"], str(header.file))
    return found[0]


def config_of(header: Header, ignore_keys: Sequence[str] = (), lists: Lists | None = None) -> dict[str, Any]:
    """The config.json that the family's own files of this model would have; `lists` are factors that are in no file yet."""
    kind, source = architecture_of(header), str(header.file)
    prefix = f"{kind.name}."
    given = {
        key.removeprefix(prefix): value
        for key, value in header.metadata.items()
        if key.startswith(prefix) and key not in ignore_keys
    }
    family = Family.named(kind.family)
    if family is None:
        raise SpecError([f"general.architecture: {kind.name!r} needs the family {kind.family}"], source)
    problems = [
        f"{prefix}{key}: is not a key that we know here; if it changes nothing, go on without it: ignore_keys, --ignore-keys"
        for key, value in given.items()
        if key not in {*kind.keys, *kind.also, *MULTIPLE} and value not in (0, None)
    ]
    least = [key for key in ("block_count", "embedding_length", "attention.head_count") if key not in given]
    problems += [f"{prefix}{key}: is missing" for key in least]
    problems += [
        f"{prefix}{key}: {value!r:.60} is not one number for all layers"
        for key, value in given.items()
        if key in kind.keys and not isinstance(value, int | float)
    ]
    if problems:
        raise SpecError(problems, source)
    ids = {name: header.metadata.get(f"tokenizer.ggml.{name}") for name in ("bos_token_id", *ENDS)}
    table = header.tensors.get("token_embd.weight")
    config: dict[str, Any] = {
        "architectures": [family.architectures[0]],
        "model_type": family.model_type,
        "vocab_size": table.shape[0] if table is not None and len(table.shape) == 2 else given.get("vocab_size", 0),
        # llama.cpp leaves the output matrix out where it is the table.
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "bos_token_id": ids["bos_token_id"],
        "eos_token_id": [*dict.fromkeys(ids[name] for name in ENDS if ids[name] is not None)],
        "pad_token_id": header.metadata.get("tokenizer.ggml.padding_token_id"),
    }
    config |= {"rope_theta": 10000.0} if "rope.freq_base" in kind.keys else {}
    config |= kind.fixed
    config |= {name: number(given[key]) for key, name in kind.keys.items() if key in given}
    if "head_dim" in kind.keys.values():
        config.setdefault("head_dim", config["hidden_size"] // max(config["num_attention_heads"], 1))
    if kind.name == "llama" and any(name.endswith("attn_q.bias") for name in header.tensors):
        config["attention_bias"] = True
    try:
        if lists is None:
            lists = {name: _list(header, name) for name in ROPE_TENSORS if name in header.tensors}
        config |= kind.read(given, lists, config)
        _check_multiple(kind, given, config)
    except SpecError as error:
        raise SpecError(error.problems, source) from error
    except (KeyError, TypeError, ZeroDivisionError) as error:
        raise SpecError([f"{kind.name}: its keys do not go together: {error}"], source) from error
    return config


def number(value: float) -> float:
    """A number as it was before it was stored in 32 bits, as the shortest that rounds to it."""
    return value if isinstance(value, int) else float(np.format_float_positional(np.float32(value)))


def _check_multiple(kind: Architecture, given: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Keys that say the same as others must do so."""
    width, heads = (config[kind.keys[key]] for key in ("embedding_length", "attention.head_count"))
    head_dim = config.get("head_dim") or width // heads
    rotated = round(head_dim * config.get("partial_rotary_factor", 1.0))
    wanted = {"attention.value_length": head_dim, "rope.dimension_count": rotated, "attention.key_length": head_dim}
    problems = [
        f"{kind.name}.{key}: is {given[key]}, but heads of {value} are meant here"
        for key, value in wanted.items()
        if given.get(key, value) != value
    ]
    if problems:
        raise SpecError(problems)


def spec_of_header(
    header: Header, ignore_keys: Sequence[str] = (), lists: Lists | None = None
) -> tuple[type[Family], ModelSpec]:
    """The family and the spec of a file."""
    config = config_of(header, ignore_keys, lists)
    family = Family.named(architecture_of(header).family)
    if family is None:
        raise SpecError(["general.architecture: has no family"], str(header.file))
    return family, family.spec_from(config, str(header.file))


def names_of(kind: Architecture, theirs: list[str], depth: int) -> dict[str, str]:
    """Names in the family's files -> those of llama.cpp, of all that it has a name for."""
    package = library()
    arch = next(number for number, name in package.MODEL_ARCH_NAMES.items() if name == kind.name)
    table = package.get_tensor_name_map(arch, depth)
    # All experts of a layer are one tensor there.
    found = {name: table.get_name(EXPERT.sub(".experts.", name), (".weight", ".bias")) for name in theirs}
    return {name: own for name, own in found.items() if own is not None}


class GgufTensors(Mapping[str, "Tensor"]):
    """The tensors of a file, on the CPU, by the names of the family's own files: what blocks stand for."""

    def __init__(self, header: Header, family: type[Family], spec: ModelSpec) -> None:
        self.header, self.kind = header, architecture_of(header)
        entries = family.table(spec).entries(spec)
        known = names_of(self.kind, [entry.theirs for entry in entries], spec.depth)
        self.stored = {name: own for name, own in known.items() if own in header.tensors}
        # What has no name in the family keeps its own, and is then found to be no parameter of the spec.
        left = header.tensors.keys() - {*known.values(), *ROPE_TENSORS}
        self.stored |= {own: own for own in header.tensors if own in left}
        dims = spec.dims(spec.stacks[-1].layers[0], spec.stacks[-1])
        self.heads = {"attn_q.": dims.heads, "attn_k.": dims.kv_heads}
        self.dtype: torch.dtype | None = None
        """That of dequantised weights; unless given, float32."""
        self._bytes: Any = np.memmap(header.file, mode="c")
        for own in dict.fromkeys(self.stored.values()):
            self._check_type(own)
        self.shapes = {name: self._shape(name) for name in self.stored}

    def _check_type(self, own: str) -> None:
        package, kind = library(), self.header.tensors[own].type
        block = np.zeros((1, package.GGML_QUANT_SIZES[kind][1]), np.uint8)
        try:
            package.quants.dequantize(block, kind)
        except NotImplementedError as error:
            raise CheckpointError(
                f"{self.header.file}: {own}: is of type {kind.name}, which can't be dequantised here; quantise the model "
                "anew to another type (llama-quantize)"
            ) from error

    def _shape(self, name: str) -> tuple[int, ...]:
        own = self.stored[name]
        shape = self.header.tensors[own].shape
        if (index := self._expert(name)) is not None:
            # One that is not there has no shape, which is then said.
            return shape[1:] if len(shape) == 3 and index < shape[0] else ()
        if own.endswith(SHARED_GATE) and len(shape) == 1:
            return (1, *shape)
        return shape[::-1] if self._is_transposed(own) else shape

    @staticmethod
    def _expert(name: str) -> int | None:
        match = EXPERT.search(name)
        return None if match is None else int(match[1])

    def _is_transposed(self, own: str) -> bool:
        return own.endswith(".weight") and any(f".{part}." in own for part in self.kind.transposed)

    def __getitem__(self, name: str) -> Tensor:
        import torch

        own = self.stored[name]
        if self.kind.norm_offset and own.endswith("norm.weight"):
            made = self._floats(own, torch.float32) - self.kind.norm_offset
        else:
            made = self._floats(own, self.dtype or torch.float32, self._expert(name))
        return made.T if self._is_transposed(own) else made.reshape(self.shapes[name])

    def _rows(self, own: str) -> Any:
        """The bytes of a tensor (rows, bytes), in the order of the family's rows."""
        block = self.header.tensors[own]
        raw = self._bytes[block.begin : block.end]
        rows = raw.reshape(math.prod(block.shape[:-1]), -1)
        part = next((part for part in self.heads if f".{part}" in own), None)
        if part is None or not self.kind.permuted or not rows.size:
            return rows
        if len(block.shape) == 1:
            rows = raw.reshape(block.shape[0], -1)
        order = np.arange(len(rows)).reshape(self.heads[part], -1, 2).swapaxes(1, 2).reshape(-1)
        return rows[order].reshape(math.prod(block.shape[:-1]), -1)

    def _floats(self, own: str, dtype: torch.dtype, expert: int | None = None) -> Tensor:
        import torch

        package, block = library(), self.header.tensors[own]
        rows, shape = self._rows(own), block.shape
        if expert is not None:
            rows, shape = rows[expert * shape[1] : (expert + 1) * shape[1]], shape[1:]
        if block.type.name in PLAIN:
            plain = torch.from_numpy(rows.reshape(-1)).view(getattr(torch, DTYPES[block.type.name]))
            return plain.reshape(shape)
        made = torch.empty(shape, dtype=dtype).reshape(len(rows), -1)
        step = max(1, CHUNK // max(1, made.shape[1]))
        # Blocks of a damaged file may stand for anything.
        with np.errstate(all="ignore"):
            for at in range(0, len(rows), step):
                found = package.quants.dequantize(np.ascontiguousarray(rows[at : at + step]), block.type)
                made[at : at + step] = torch.from_numpy(found)
        return made.reshape(shape)

    def numbers(self, name: str, kind: str) -> Numbers | None:
        """A weight in whole numbers of ours; None where ours can't hold it exactly."""
        import torch

        from anyformer.families.quantization import exact_numbers

        own = self.stored[name]
        block = self.header.tensors[own]
        if block.type.name != "Q4_0" or len(block.shape) != 2 or self._is_transposed(own):
            return None
        rows = torch.from_numpy(self._rows(own)).unflatten(1, (-1, Q4_0_BYTES))
        scale = rows[..., :2].contiguous().view(torch.float16).squeeze(-1)
        halves = rows[..., 2:]
        data = torch.cat([halves & 15, halves >> 4], -1).flatten(1).to(torch.int8) - 8
        return exact_numbers(data, scale, 4, kind)

    @property
    def widest(self) -> torch.dtype:
        """The dtype that a model of these weights is given: that of its large plain ones, or float16 of blocks."""
        import torch

        blocks: list[Block] = [self.header.tensors[own] for own in self.stored.values()]
        found = {block.type.name for block in blocks if len(block.shape) > 1}
        dtypes = [getattr(torch, DTYPES.get(name, "float16")) for name in sorted(found)]
        made = dtypes[0] if dtypes else torch.float32
        for dtype in dtypes[1:]:
            made = torch.promote_types(made, dtype)
        return made

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)


DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def _list(header: Header, name: str) -> list[float]:
    """A small tensor of numbers."""
    block = header.tensors[name]
    if block.type.name != "F32" or len(block.shape) != 1 or not 0 < block.shape[0] <= 2**16:
        raise SpecError([f"{name}: is no list of numbers in F32"])
    raw = np.memmap(header.file, mode="c")[block.begin : block.end]
    return [number(value) for value in raw.view(np.float32).tolist()]
