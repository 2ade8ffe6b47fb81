"""The files of a published checkpoint: config.json, and its tensors in one safetensors file or in many with an index.

Nothing but JSON and safetensors is read, no file outside of the directory, and no JSON beyond a sane size.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyformer.errors import CheckpointError
from anyformer.families.quantization import FLOATS, StoredError, quantization, quantization_of
from anyformer.files import inside
from anyformer.model.safetensors_header import Header, read_header

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from anyformer.families.quantization import Quantization, QuantizedWeight
    from anyformer.model.safetensors_file import TensorFile
    from anyformer.parts.quantized import Numbers

CONFIG, SINGLE, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
SENTENCE = ("modules.json", "sentence_bert_config.json")
"""Files of sentence-transformers: where one of them is, the model is used without a head, whatever its config says."""
CONFIG_BYTES, INDEX_BYTES = 2**22, 2**26
"""Longest files that are parsed: published ones are a few kilobytes, and a few megabytes for an index."""
SHARD = re.compile(r"[\w.-]+\.safetensors")
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.h5", "*.msgpack")


def read_json(file: Path, most: int) -> dict[str, Any]:
    """A JSON file that holds one table."""
    found = read_any_json(file, most)
    if not isinstance(found, dict):
        raise CheckpointError(f"{file}: holds {type(found).__name__}, not a table of keys")
    return found


def read_any_json(file: Path, most: int) -> Any:
    """A JSON file, whatever it holds."""
    try:
        inside(file, file.parent)
        if file.stat().st_size > most:
            raise CheckpointError(f"{file}: is {file.stat().st_size} bytes long; at most {most} are read")
        return json.loads(file.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise CheckpointError(f"{file}: can't be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file}: is not JSON: {error}") from error


def shard_names(folder: Path) -> list[str]:
    """The files that hold the tensors of a checkpoint."""
    if (folder / SINGLE).is_file():
        return [SINGLE]
    if not (folder / INDEX).is_file():
        if files := sorted(path.name for path in folder.glob("*.gguf")):
            raise CheckpointError(
                f"{folder}: holds {files[0]} and no {SINGLE}; give the file itself: {folder / files[0]}"
            )
        others = sorted(path.name for pattern in PICKLES for path in folder.glob(pattern))
        if others:
            why = "such files can run code when they are opened, or have another layout"
            way = f"if you trust it: anyformer convert --unsafe-pickle {folder} NEW"
            raise CheckpointError(f"{folder}: holds {others[0]} and no {SINGLE}; {why}; {way}")
        raise CheckpointError(f"{folder}: there is neither {SINGLE} nor {INDEX}")
    placed = read_json(folder / INDEX, INDEX_BYTES).get("weight_map")
    if not isinstance(placed, dict) or not placed:
        raise CheckpointError(f"{folder / INDEX}: has no weight_map, which says where each tensor is")
    names = sorted({str(name) for name in placed.values()})
    for name in names:
        if not SHARD.fullmatch(name):
            raise CheckpointError(f"{folder / INDEX}: {name!r} is not the name of a safetensors file beside it")
        if not (folder / name).is_file():
            raise CheckpointError(f"{folder}: {name} is missing, which {INDEX} names")
    return names


class Shards(Mapping[str, "Tensor"]):
    """The tensors of open files, on the CPU: plain ones as views, quantised weights as what they stand for."""

    def __init__(self, folder: Path, files: dict[str, TensorFile], method: Quantization | None = None) -> None:
        self.folder, self.method = folder, method
        self.files: dict[str, TensorFile] = {}
        """By the stored names of tensors."""
        for name, file in files.items():
            if twice := next((tensor for tensor in file.header.tensors if tensor in self.files), None):
                raise CheckpointError(f"{folder}: {twice} stands in more than one file, among them {name}")
            self.files |= dict.fromkeys(file.header.tensors, file)
        held = {name: file.header.tensors[name] for name, file in self.files.items()}
        self.shapes = {name: place.shape for name, place in held.items()}
        self.quantised: dict[str, QuantizedWeight] = {}
        """Weights that are stored in several tensors, whose own names stand for nothing else."""
        self.dtype: torch.dtype | None = None
        """That of dequantised weights; unless given, float32."""
        if method is not None:
            with self._naming_file():
                self.quantised = {weight.name: weight for weight in method.weights(held, self._view)}
            parts = {name for weight in self.quantised.values() for name in (*weight.parts.values(), *weight.more)}
            plain = {name for name in held if name not in parts and not re.fullmatch(method.unused, name)}
            self.shapes = {name: shape for name, shape in self.shapes.items() if name in plain}
            self.shapes |= {name: weight.shape for name, weight in self.quantised.items()}

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.quantised or self.method is None:
            return self._view(name)
        import torch

        weight = self.quantised[name]
        with self._naming_file():
            return self.method.dequantised(weight, self._parts(weight), self.dtype or torch.float32)

    @property
    def plain(self) -> dict[str, str]:
        """The dtypes of tensors that are stored as they are, by the names of safetensors."""
        return {name: self.files[name].header.tensors[name].dtype for name in self.shapes if name not in self.quantised}

    @property
    def widest(self) -> torch.dtype:
        """The widest floating-point dtype of plain tensors, which loses nothing of any; float32 if there are none."""
        import torch

        return widest({*self.plain.values()} & {*FLOATS}) or torch.float32

    def dtype_of(self, name: str) -> torch.dtype:
        """The dtype of a tensor; of a quantised weight that of the others."""
        return self.widest if name in self.quantised else self._view(name).dtype

    def numbers(self, name: str, kind: str) -> Numbers | None:
        """A quantised weight in whole numbers of ours; None where ours can't hold it exactly, or it is plain."""
        if name not in self.quantised or self.method is None:
            return None
        with self._naming_file():
            return self.method.numbers(self.quantised[name], self._parts(self.quantised[name]), kind)

    def plain_file(self, name: str) -> TensorFile | None:
        """The file that holds a tensor as it is; None of a quantised weight."""
        return None if name in self.quantised else self.files[name]

    def _view(self, name: str) -> Tensor:
        return self.files[name].view(name)

    def _parts(self, weight: QuantizedWeight) -> dict[str, Tensor]:
        return {part: self._view(name) for part, name in weight.parts.items()}

    @contextlib.contextmanager
    def _naming_file(self) -> Iterator[None]:
        """Say which file a fault was found in."""
        try:
            yield
        except StoredError as error:
            place = self.files[error.name].file if error.name in self.files else self.folder
            raise CheckpointError(f"{place}: {error}") from error

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)


def widest(dtypes: Iterable[str]) -> torch.dtype | None:
    """The narrowest dtype that holds all of some floating-point ones, by the names of safetensors; None of none."""
    import torch

    from anyformer.model.safetensors_file import DTYPES

    found = [DTYPES[name] for name in sorted(dtypes)]
    return functools.reduce(torch.promote_types, found) if found else None


def headers_of(folder: Path) -> dict[str, Header]:
    """What each file of a checkpoint says that it holds, checked."""
    return {name: read_header(inside(folder / name, folder)) for name in shard_names(folder)}


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[Shards]:
    """The tensors of a checkpoint, by name. A file that is damaged is named.

    Quantised weights are there under the names that they have in a plain checkpoint.
    """
    from anyformer.model.safetensors_file import TensorFile

    table = quantization_of(read_json(folder / CONFIG, CONFIG_BYTES))
    with contextlib.ExitStack() as stack:
        made = {name: TensorFile(folder / name) for name in shard_names(folder)}
        files = {name: stack.enter_context(file) for name, file in made.items()}
        yield Shards(folder, files, None if table is None else quantization(table))
