"""The files of a published checkpoint: config.json, and its tensors in one safetensors file or in many with an index.

Nothing but JSON and safetensors is read, no file outside of the directory, and no JSON beyond a sane size.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyformer.errors import CheckpointError
from anyformer.files import inside
from anyformer.model.safetensors_header import Header, read_header

if TYPE_CHECKING:
    from torch import Tensor

    from anyformer.model.safetensors_file import TensorFile

CONFIG, SINGLE, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
SENTENCE = ("modules.json", "sentence_bert_config.json")
"""Files of sentence-transformers: where one of them is, the model is used without a head, whatever its config says."""
CONFIG_BYTES, INDEX_BYTES = 2**22, 2**26
"""Longest files that are parsed: published ones are a few kilobytes, and a few megabytes for an index."""
SHARD = re.compile(r"[\w.-]+\.safetensors")
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.h5", "*.msgpack", "*.gguf")


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
    """The tensors of open files, on the CPU, as views."""

    def __init__(self, folder: Path, files: dict[str, TensorFile]) -> None:
        self.folder = folder
        self.files: dict[str, TensorFile] = {}
        """By the names of tensors."""
        for name, file in files.items():
            if twice := next((tensor for tensor in file.header.tensors if tensor in self.files), None):
                raise CheckpointError(f"{folder}: {twice} stands in more than one file, among them {name}")
            self.files |= dict.fromkeys(file.header.tensors, file)
        self.shapes = {name: file.header.tensors[name].shape for name, file in self.files.items()}

    def __getitem__(self, name: str) -> Tensor:
        return self.files[name].view(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.files)

    def __len__(self) -> int:
        return len(self.files)


def headers_of(folder: Path) -> dict[str, Header]:
    """What each file of a checkpoint says that it holds, checked."""
    return {name: read_header(inside(folder / name, folder)) for name in shard_names(folder)}


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[Shards]:
    """The tensors of a checkpoint, by name. A file that is damaged is named."""
    from anyformer.model.safetensors_file import TensorFile

    with contextlib.ExitStack() as stack:
        made = {name: TensorFile(folder / name) for name in shard_names(folder)}
        yield Shards(folder, {name: stack.enter_context(file) for name, file in made.items()})
