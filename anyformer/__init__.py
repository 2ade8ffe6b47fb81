"""anyformer: every Transformer language model, from one spec.

Importing this loads no torch; `build` and what comes after it do.

Shape suffixes of tensors, everywhere: B batch, T query positions, S key positions, L cache length, D width, H query
heads, G key and value heads, K head dimension, F feed-forward width, V vocabulary, C channels.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyformer.errors import (
    AnyformerError,
    CapabilityError,
    CheckpointError,
    DataError,
    InputError,
    SpecError,
    TrainingError,
)

if TYPE_CHECKING:
    from anyformer import lab, nn, optim
    from anyformer.data.tokenizer import tokenizer
    from anyformer.families.hf_bridge import from_hf, to_hf
    from anyformer.families.io import load, save
    from anyformer.families.zoo import zoo
    from anyformer.generation.generate import generate
    from anyformer.generation.pipelines.pipeline import pipeline
    from anyformer.model.build import build
    from anyformer.model.model import Model
    from anyformer.nn.functional import attention
    from anyformer.specs import ModelSpec

__version__ = "0.1.0"
__all__ = [
    "AnyformerError", "CapabilityError", "CheckpointError", "DataError", "InputError", "Model", "ModelSpec", "SpecError",
    "TrainingError", "attention", "build", "from_hf", "generate", "lab", "load", "nn", "optim", "pipeline", "save",
    "spec", "to_hf", "tokenizer", "zoo",
]  # fmt: skip

_LAZY = {
    "attention": "anyformer.nn.functional",
    "build": "anyformer.model.build",
    "from_hf": "anyformer.families.hf_bridge",
    "generate": "anyformer.generation.generate",
    "load": "anyformer.families.io",
    "pipeline": "anyformer.generation.pipelines.pipeline",
    "save": "anyformer.families.io",
    "to_hf": "anyformer.families.hf_bridge",
    "tokenizer": "anyformer.data.tokenizer",
    "zoo": "anyformer.families.zoo",
    "Model": "anyformer.model.model",
    "ModelSpec": "anyformer.specs.model",
}
_PACKAGES = ("lab", "nn", "optim")
"""Packages of public names of their own."""


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    if name in _PACKAGES:
        return importlib.import_module(f"anyformer.{name}")
    raise AttributeError(f"module 'anyformer' has no attribute {name!r}")


def __dir__() -> list[str]:
    # Not what this file needs for itself; modules that are loaded are there too.
    loaded = {name for name, value in globals().items() if getattr(value, "__name__", "") == f"{__name__}.{name}"}
    return sorted({*__all__, *loaded, *(name for name in globals() if name.startswith("__"))})


def _holds_model(path: Path) -> bool:
    return path.is_dir() or (path.suffix.lower() == ".gguf" and path.is_file())


def spec(
    source: str | Path | Mapping[str, Any] | ModelSpec,
    changes: Mapping[str, Any] | None = None,
    *,
    ignore_keys: Sequence[str] = (),
) -> ModelSpec:
    """A spec from a preset's name, a path ending in .toml, a directory, a GGUF file, plain data, or a spec; varied by
    `changes`.

    A directory holds a spec.toml, or the config.json of a published model, of which `ignore_keys` are taken as absent.
    """
    from anyformer.specs.model import ModelSpec

    if isinstance(source, str) and not source.strip():
        raise InputError("the name is empty; give that of a preset, a .toml file or a directory (. is this one)")
    if changes is not None and not isinstance(changes, Mapping):
        raise TypeError(f"changes: expected dotted names and values, such as {{'depth': 8}}, got {changes!r}")
    folder = isinstance(source, str | Path) and Path(source).suffix != ".toml" and _holds_model(Path(source))
    if ignore_keys and not folder:
        raise InputError(f"ignore_keys: {source} is no directory with a config.json, so there is nothing to ignore")
    if isinstance(source, ModelSpec):
        found = source
    elif isinstance(source, Mapping):
        found = ModelSpec.from_data(source)
    elif not isinstance(source, str | Path):
        raise TypeError(f"source: expected a name, a path, a table or a ModelSpec, got {type(source).__name__}")
    elif Path(source).suffix == ".toml":
        found = ModelSpec.from_file(source)
    elif folder:
        from anyformer.families.io import spec_of

        found = spec_of(Path(source), ignore_keys)
    else:
        from anyformer.families.zoo import named

        found = named(str(source))
    return found.vary(changes) if changes else found
