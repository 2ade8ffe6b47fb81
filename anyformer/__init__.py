"""anyformer: every Transformer language model, from one spec.

Importing this loads no torch; `build` and what comes after it do.

Shape suffixes of tensors, everywhere: B batch, T query positions, S key positions, L cache length, D width, H query
heads, G key and value heads, K head dimension, F feed-forward width, V vocabulary, C channels.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyformer.errors import AnyformerError, CapabilityError, CheckpointError, DataError, InputError, SpecError

if TYPE_CHECKING:
    from anyformer.model.build import build
    from anyformer.model.models import Model
    from anyformer.model.store import load, save
    from anyformer.specs import ModelSpec

__version__ = "0.1.0"
__all__ = [
    "AnyformerError", "CapabilityError", "CheckpointError", "DataError", "InputError", "Model", "ModelSpec", "SpecError",
    "build", "load", "save", "spec",
]  # fmt: skip

_LAZY = {
    "build": "anyformer.model.build",
    "load": "anyformer.model.store",
    "save": "anyformer.model.store",
    "Model": "anyformer.model.models",
    "ModelSpec": "anyformer.specs.model",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'anyformer' has no attribute {name!r}")


def spec(source: str | Path | Mapping[str, Any] | ModelSpec, changes: Mapping[str, Any] | None = None) -> ModelSpec:
    """A spec from a path ending in .toml, a directory with a spec.toml, plain data, or a spec; varied by `changes`."""
    from anyformer.specs.model import ModelSpec

    if changes is not None and not isinstance(changes, Mapping):
        raise TypeError(f"changes: expected dotted names and values, such as {{'depth': 8}}, got {changes!r}")
    if isinstance(source, ModelSpec):
        found = source
    elif isinstance(source, Mapping):
        found = ModelSpec.from_data(source)
    elif not isinstance(source, str | Path):
        raise TypeError(f"source: expected a path, a table or a ModelSpec, got {type(source).__name__}")
    else:
        path = Path(source)
        if path.is_dir():
            path = path / "spec.toml"
            if not path.is_file():
                raise SpecError([f"{str(source)!r} is a directory without a spec.toml"])
        if path.suffix != ".toml":
            raise SpecError([f"{str(source)!r} is neither a path ending in .toml nor a directory with a spec.toml"])
        found = ModelSpec.from_file(path)
    return found.vary(changes) if changes else found
