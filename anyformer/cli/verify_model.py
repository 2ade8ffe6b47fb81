"""The model that a check runs on: a checkpoint as it is, or a spec with random weights, in small if it is large."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from anyformer.cli.parser import add_ignore_keys, add_set
from anyformer.errors import InputError

if TYPE_CHECKING:
    from anyformer.model.model import Model
    from anyformer.specs.model import ModelSpec


def add_model(parser: argparse.ArgumentParser) -> None:
    """The arguments that say which model."""
    parser.add_argument("spec", metavar="SPEC", help="the name of a preset, a .toml file or a directory")
    add_set(parser)
    add_ignore_keys(parser)
    parser.add_argument(
        "--full", action="store_true", help="in its own size; otherwise a large spec without weights is made small"
    )


def checked_model(
    given: argparse.Namespace, spec: ModelSpec, *, each: int, what: str, dtype: str = "float64", device: str = "cpu"
) -> tuple[Model, str]:
    """The model, and what it is: its own weights if it has some, else random ones, in small if need be.

    `each` is how many bytes a parameter takes in all, and `what` says of what.
    """
    import torch

    from anyformer.families.io import load
    from anyformer.families.shards import INDEX, SINGLE
    from anyformer.kernels.memory import free
    from anyformer.model.build import build
    from anyformer.verify.packing import randomise
    from anyformer.verify.shrink import is_large, small

    folder = Path(given.spec)
    stored = folder.suffix != ".toml" and any((folder / name).is_file() for name in (SINGLE, INDEX))
    if stored and given.changes:
        raise InputError(f"--set: {given.spec} holds weights, which fit its own spec only; name a preset or a .toml")
    shrinks = not stored and not given.full and is_large(spec)
    made = small(spec) if shrinks else spec
    params, room = made.count().params, free()
    if device == "cpu" and each * params > room:
        way = "leave out --full" if given.full else "check its spec alone, without weights"
        raise InputError(
            f"{given.spec}: {params / 1e9:.3g} B parameters{what} take {each * params / 1e9:.3g} GB in fp"
            f"{dtype.removeprefix('float')}, but {room / 1e9:.3g} GB are free; {way}"
        )
    kind = getattr(torch, dtype)
    if stored:
        return load(folder, device, kind, ignore_keys=given.ignore_keys), "its own weights"
    model = randomise(build(made, dtype=kind, seed=given.seed), given.seed).to(device)
    return model, f"{f'made small: {_size(made)}; ' if shrinks else ''}random weights"


def _size(spec: ModelSpec) -> str:
    """What is left of a spec that was made small."""
    layers = [layer for stack in spec.stacks for layer in stack.layers]
    a = layers[-1].attention
    depths = " and ".join(f"{stack.depth}" for stack in spec.stacks)
    heads = f"{a.heads} heads of {a.head_dim}" + (
        f" ({a.kv_heads} of keys)" if a.kv_heads not in (None, a.heads) else ""
    )
    patterns = dict.fromkeys(str(layer.attention.pattern) for layer in layers if layer.attention.pattern is not None)
    vocabulary = f"vocabulary {spec.vocab}" + (
        f" (source {spec.source_vocab})" if spec.source_vocab is not None else ""
    )
    sizes = [f"width {spec.width}", f"{depths} layers", heads, vocabulary, f"context {spec.context}"]
    return ", ".join([*sizes, *(["patterns " + ", ".join(patterns)] if patterns else [])])
