"""Tensors in safetensors files, read so that no weight is held twice.

A view of a file is read when it is first used, which is the fastest way to open a model. Matrix products may differ in
the last bit with the address of a matrix, and a view begins wherever the file says; what is read into memory of our own
begins where every new tensor does, so that a model which was saved and loaded computes as before, to the bit.
"""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from anyformer.errors import CheckpointError
from anyformer.files import inside
from anyformer.model.safetensors_header import Header, read_header

PIECE = 2**23
"""Bytes that one worker reads at once."""
DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip


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
            self._workers = self._open.enter_context(ThreadPoolExecutor(min(4, os.cpu_count() or 1)))
        except (SafetensorError, OSError) as error:
            self._open.close()
            raise CheckpointError(f"{self.file}: is damaged or can't be read: {error}") from error
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    @contextmanager
    def _reading(self, name: str) -> Iterator[None]:
        try:
            yield
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{self.file}: {name}: is damaged or can't be read: {error}") from error

    def holds(self, name: str, dtype: torch.dtype) -> bool:
        """Whether a tensor is stored in a dtype, by the header alone."""
        return DTYPES.get(self.header.tensors[name].dtype) is dtype

    def view(self, name: str) -> Tensor:
        """A tensor, on the CPU, as a view of the file."""
        with self._reading(name):
            return self._stored.get_tensor(name)

    def read(self, name: str) -> Tensor:
        """A tensor, on the CPU, in memory of its own."""
        place = self.header.tensors[name]
        if place.dtype not in DTYPES:
            return self.view(name).clone()
        made = torch.empty(place.shape, dtype=DTYPES[place.dtype])
        self.read_into(name, made)
        return made

    def read_into(self, name: str, tensor: Tensor) -> None:
        """Give a tensor the values of a stored one of its shape: straight from the file where its dtype allows."""
        place = self.header.tensors[name]
        if DTYPES.get(place.dtype) is not tensor.dtype or not tensor.is_cpu or not tensor.is_contiguous():
            tensor.copy_(self.view(name))
        elif tensor.numel():
            flat: Any = tensor.reshape(-1).view(torch.uint8).numpy()
            room, first = memoryview(flat), self.header.start + place.begin

            def fill(at: int) -> None:
                end = min(at + PIECE, len(room))
                while at < end:
                    got = os.preadv(self._raw.fileno(), [room[at:end]], first + at)
                    if not got:
                        raise OSError("the file is shorter than it was")
                    at += got

            with self._reading(name):
                if len(room) <= PIECE:
                    # A thread costs more than a small tensor does, and experts are many.
                    fill(0)
                else:
                    list(self._workers.map(fill, range(0, len(room), PIECE)))
