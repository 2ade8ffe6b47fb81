"""Tensors in safetensors files, read and written so that they lie in memory as those that were never saved.

Matrix products may differ in the last bit with the address of a matrix, so every weight begins at a multiple of 64
bytes, wherever it comes from. Our files are laid out that way, and their tensors are views that are read when they are
used. A file that is not is read into memory of our own. Either way no weight is held twice.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from anyformer.errors import CheckpointError
from anyformer.files import inside
from anyformer.model.header import Header, Place, read_header

ALIGNED = 64
PIECE = 2**23
"""Bytes that one worker reads at once."""
NAMES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
DTYPES = {name: dtype for dtype, name in NAMES.items()}


class TensorFile:
    """An open file, used in a `with`; its header is checked when it is made."""

    def __init__(self, file: Path) -> None:
        self.file = inside(file, file.parent)
        self.header: Header = read_header(file)
        self._open = ExitStack()

    def __enter__(self) -> Self:
        try:
            self._stored: Any = self._open.enter_context(safe_open(self.file, framework="pt"))
            self._raw = self._open.enter_context(self.file.open("rb", buffering=0))
            self._crew = self._open.enter_context(ThreadPoolExecutor(min(4, os.cpu_count() or 1)))
        except (SafetensorError, OSError) as error:
            self._open.close()
            raise CheckpointError(f"{self.file}: is damaged or can't be read: {error}") from error
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def tensor(self, name: str) -> Tensor:
        """A tensor, on the CPU: a view of the file, or a copy where a view would begin at an odd address."""
        place = self.header.tensors[name]
        try:
            if (self.header.start + place.begin) % ALIGNED == 0 or place.dtype not in DTYPES:
                return self._stored.get_tensor(name)
            return self._read(place)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{self.file}: {name}: is damaged or can't be read: {error}") from error

    def _read(self, place: Place) -> Tensor:
        made = torch.empty(place.shape, dtype=DTYPES[place.dtype])
        if not made.numel():
            return made
        room = _bytes(made)
        first = self.header.start + place.begin

        def fill(at: int) -> None:
            end = min(at + PIECE, len(room))
            while at < end:
                got = os.preadv(self._raw.fileno(), [room[at:end]], first + at)
                if not got:
                    raise OSError("the file is shorter than it was")
                at += got

        for _ in self._crew.map(fill, range(0, len(room), PIECE)):
            pass
        return made


def save_file(tensors: Mapping[str, Tensor], file: Path, metadata: Mapping[str, str]) -> None:
    """Write a safetensors file.

    The header is filled up with blanks, and tensors of odd sizes come last, so that the others begin where they should.
    """
    order = sorted(tensors, key=lambda name: tensors[name].nbytes % ALIGNED != 0)
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    end = 0
    for name in order:
        tensor, begin = tensors[name], end
        end += tensor.nbytes
        header[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGNED)
    with file.open("wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            out.write(_bytes(tensors[name].contiguous()))


def _bytes(tensor: Tensor) -> memoryview:
    """The memory of a tensor."""
    flat: Any = tensor.reshape(-1).view(torch.uint8).numpy()
    return memoryview(flat)
