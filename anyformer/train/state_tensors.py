"""Tables of tensors as safetensors files, written piece by piece so that nothing is held twice."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from anyformer.errors import CheckpointError
from anyformer.files import Bytes
from anyformer.model.native_checkpoint import metadata_of
from anyformer.model.safetensors_file import DTYPES
from anyformer.specs.model import ModelSpec

NAMES = {dtype: name for name, dtype in DTYPES.items()}
"""How safetensors calls a dtype."""


@dataclass(frozen=True)
class Table:
    """What one safetensors file holds: tensors by name, and texts beside them."""

    tensors: Mapping[str, Tensor]
    metadata: Mapping[str, str] = field(default_factory=dict)

    def on_host(self) -> Table:
        """A copy on the host, which later steps don't change."""
        moved = {name: tensor.detach().to("cpu", copy=True) for name, tensor in self.tensors.items()}
        return Table(moved, self.metadata)

    def pieces(self) -> Iterator[Bytes]:
        """The file from its first byte to its last. Tensors leave their device one at a time."""
        strange = sorted(f"{name} ({t.dtype})" for name, t in self.tensors.items() if t.dtype not in NAMES)
        if strange:
            raise CheckpointError(f"no place for {', '.join(strange)} in a file; known are {', '.join(DTYPES)}")
        # Wide elements first, as the library does it: each tensor then begins at a multiple of its element's size.
        order = sorted(self.tensors, key=lambda name: (-self.tensors[name].element_size(), name))
        header: dict[str, object] = {"__metadata__": dict(self.metadata)} if self.metadata else {}
        end = 0
        for name in order:
            tensor = self.tensors[name]
            begin, end = end, end + tensor.numel() * tensor.element_size()
            header[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        text += b" " * (-len(text) % 8)
        yield len(text).to_bytes(8, "little") + text
        for name in order:
            flat = self.tensors[name].detach().cpu().contiguous().reshape(-1)
            if flat.numel():
                raw: Any = flat.view(torch.uint8).numpy()
                yield memoryview(raw)


def model_table(tensors: Mapping[str, Tensor], spec: ModelSpec, family: str | None = None) -> Table:
    """The file that `anyformer.load` reads: weights by the names of parameters, their spec, and their family if any."""
    return Table(tensors, metadata_of(spec, family))
