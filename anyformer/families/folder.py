"""A model's directory, whoever wrote it: our own format, or a published model's config.json and safetensors."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from anyformer.errors import SpecError
from anyformer.specs.model import ModelSpec

if TYPE_CHECKING:
    import torch

    from anyformer.model.models import Model


def spec_of(folder: Path) -> ModelSpec:
    """The spec of the model in a directory."""
    if (folder / "spec.toml").is_file():
        return ModelSpec.from_file(folder / "spec.toml")
    raise SpecError([f"{str(folder)!r} is a directory without a spec.toml or a config.json"])


def load(path: str | Path, device: str | torch.device | None = None, dtype: torch.dtype | None = None) -> Model:
    """Read a model from a directory.

    `dtype` defaults to the checkpoint's own on an accelerator and to float32 on a CPU.
    """
    from anyformer.model import store

    return store.load(path, device, dtype)
