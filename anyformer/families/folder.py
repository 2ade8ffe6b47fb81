"""A model's directory, whoever wrote it: our own format, or a published model's config.json and safetensors."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from anyformer.errors import InputError, SpecError
from anyformer.families.shards import CONFIG
from anyformer.specs.model import ModelSpec

if TYPE_CHECKING:
    import torch

    from anyformer.model.models import Model

FORMATS = ("anyformer", "hf")


def spec_of(folder: Path) -> ModelSpec:
    """The spec of the model in a directory."""
    if (folder / "spec.toml").is_file():
        return ModelSpec.from_file(folder / "spec.toml")
    if (folder / CONFIG).is_file():
        from anyformer.families.checkpoint import described

        return described(folder)[1]
    raise SpecError([f"{str(folder)!r} is a directory without a spec.toml or a config.json"])


def load(path: str | Path, device: str | torch.device | None = None, dtype: torch.dtype | None = None) -> Model:
    """Read a model from a directory: one that `save` wrote, or a published one with config.json and safetensors.

    `dtype` defaults to the checkpoint's own on an accelerator and to float32 on a CPU. The model is in evaluation mode:
    call `model.train()` before you train it.
    """
    from anyformer.families.checkpoint import load_published
    from anyformer.model import store

    folder = Path(path)
    if (folder / CONFIG).is_file() and not (folder / store.SPEC).is_file():
        return load_published(folder, device, dtype).eval()
    return store.load(path, device, dtype).eval()


def save(model: Model, path: str | Path, format: str = "anyformer") -> None:
    """Write a model into a directory, which is made if need be.

    "anyformer" is our own format. "hf" is that of the published class whose files can hold the spec, for other tools.
    """
    from anyformer.families.checkpoint import save_published
    from anyformer.model import store

    if format not in FORMATS:
        raise InputError(f"format: {format!r} is unknown (known: {', '.join(FORMATS)})")
    if format == "hf":
        save_published(model, path)
    else:
        store.save(model, path)
