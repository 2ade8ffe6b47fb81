"""The files of a published checkpoint: config.json, and its tensors in one safetensors file or in many with an index.

Nothing but JSON and safetensors is read, no file outside of the directory, and no JSON beyond a sane size.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyformer.errors import CheckpointError

if TYPE_CHECKING:
    from torch import Tensor

CONFIG, SINGLE, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
CONFIG_BYTES, INDEX_BYTES = 2**22, 2**26
"""Longest files that are parsed: published ones are a few kilobytes, and a few megabytes for an index."""
SHARD = re.compile(r"[\w.-]+\.safetensors")
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.h5", "*.msgpack", "*.gguf")


def read_json(file: Path, most: int) -> dict[str, Any]:
    """A JSON file that holds one table."""
    try:
        if file.stat().st_size > most:
            raise CheckpointError(f"{file}: is {file.stat().st_size} bytes long; at most {most} are read")
        found = json.loads(file.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise CheckpointError(f"{file}: can't be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file}: is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{file}: holds {type(found).__name__}, not a table of keys")
    return found


def shard_names(folder: Path) -> list[str]:
    """The files that hold the tensors of a checkpoint."""
    if (folder / SINGLE).is_file():
        return [SINGLE]
    if not (folder / INDEX).is_file():
        others = sorted(path.name for pattern in PICKLES for path in folder.glob(pattern))
        if others:
            why = "such files can run code when they are opened, or have another layout; convert it to safetensors"
            raise CheckpointError(f"{folder}: holds {others[0]} and no {SINGLE}; {why}")
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


class Shards:
    """Open files, and which of them holds each tensor."""

    def __init__(self, folder: Path, files: dict[str, Any]) -> None:
        self.folder = folder
        self.files: dict[str, Any] = {}
        for name, stored in files.items():
            for tensor in stored.keys():  # noqa: SIM118
                if tensor in self.files:
                    raise CheckpointError(f"{folder}: {tensor} stands in more than one file, among them {name}")
                self.files[tensor] = stored

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor, without reading it."""
        return tuple(self.files[name].get_slice(name).get_shape())

    def tensor(self, name: str) -> Tensor:
        """A tensor, on the CPU."""
        return self.files[name].get_tensor(name)


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[Shards]:
    """The tensors of a checkpoint, by name. A file that is damaged is named."""
    from safetensors import SafetensorError, safe_open

    with contextlib.ExitStack() as stack:
        files: dict[str, Any] = {}
        for name in shard_names(folder):
            try:
                files[name] = stack.enter_context(safe_open(folder / name, framework="pt"))
            except (SafetensorError, OSError) as error:
                raise CheckpointError(f"{folder / name}: is damaged or can't be read: {error}") from error
        try:
            yield Shards(folder, files)
        except SafetensorError as error:
            raise CheckpointError(f"{folder}: is damaged or can't be read: {error}") from error
