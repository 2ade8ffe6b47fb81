"""A batch: what the model is called with in one step, and how it is divided among ranks and micro-batches."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from anyformer.errors import DataError
from anyformer.specs.embed_head import TokenEmbed
from anyformer.specs.model import ModelSpec

IGNORE = -100
"""A label that does not count: the number that the model's loss ignores, here without torch."""


@dataclass(frozen=True)
class Batch:
    """Arguments of `model(...)` as arrays. A unit is not divided: a row, or the rows of one example judged together."""

    inputs: Mapping[str, Any]
    step: int
    tokens_U: Any
    labels_U: Any
    """Labels of each unit that count in the loss."""

    @property
    def units(self) -> int:
        return len(self.tokens_U)

    @property
    def tokens(self) -> int:
        return int(self.tokens_U.sum())

    @property
    def labels(self) -> int:
        """Labels that count: what the model answers as `label_count`."""
        return int(self.labels_U.sum())

    @cached_property
    def digest(self) -> str:
        """A hash of names, shapes, dtypes and bytes of all inputs."""
        digest = hashlib.blake2b(digest_size=16)
        for name, array in sorted(self.inputs.items()):
            digest.update(f"{name} {array.dtype.str} {array.shape} ".encode())
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()

    def share(self, rank: int, world: int) -> Batch:
        """The units of one rank: the batch's own order, cut into `world` equal parts."""
        if not 0 <= rank < world:
            raise DataError(f"there is no rank {rank} among {world}; ranks are 0 to {world - 1}")
        return self._divided(world, f"{world} processes")[rank]

    def split(self, parts: int) -> list[Batch]:
        if parts < 1:
            raise DataError(f"a batch can't be split into {parts} parts; give at least 1")
        return self._divided(parts, f"{parts} micro-batches")

    def _divided(self, parts: int, words: str) -> list[Batch]:
        if parts == 1:
            return [self]
        if self.units % parts:
            below = self.units - self.units % parts
            fits = f"make it a multiple of {parts}, such as {f'{below} or ' if below else ''}{below + parts}"
            raise DataError(f"a batch of {self.units} can't be divided equally among {words}; {fits}")
        each = self.units // parts

        def part(array: Any, i: int) -> Any:
            rows = len(array) // self.units * each
            return array[i * rows : (i + 1) * rows]

        inputs = [{name: part(array, i) for name, array in self.inputs.items()} for i in range(parts)]
        return [Batch(inputs[i], self.step, part(self.tokens_U, i), part(self.labels_U, i)) for i in range(parts)]


def check_values(inputs: Mapping[str, Any], spec: ModelSpec, *, classes: int | None) -> None:
    """Refuse ids beyond a table, falling segments and non-finite numbers; `classes`: of integer labels, else None."""
    limits = {"input_ids": spec.input_vocab, "decoder_input_ids": spec.vocab}
    if isinstance(spec.embed, TokenEmbed) and spec.embed.token_types:
        limits["token_types"] = spec.embed.token_types
    problems: list[str] = []
    for name, array in inputs.items():
        if name == "labels" and classes is not None:
            problems += _beyond(name, array, (array != IGNORE) & ((array < 0) | (array >= classes)), classes)
        elif name in limits:
            problems += _beyond(name, array, (array < 0) | (array >= limits[name]), limits[name])
        elif name.endswith("segments"):
            back = np.argwhere(array[:, 1:] < array[:, :-1])
            if len(back):
                row, place = back[0].tolist()
                problems.append(
                    f"{name}: {array[row, place]} is followed by {array[row, place + 1]} at row {row}, column "
                    f"{place + 1}; ids of documents never decrease along a row"
                )
        elif array.dtype.kind == "f" and not np.isfinite(array).all():
            place = tuple(np.argwhere(~np.isfinite(array))[0].tolist())
            problems.append(f"{name}: {array[place]} at {place} is not a finite number")
    if problems:
        raise DataError("\n  ".join(["a batch that the model can't read:", *problems]))


def _beyond(name: str, array: Any, wrong: Any, limit: int) -> list[str]:
    if not wrong.any():
        return []
    place = tuple(np.argwhere(wrong)[0].tolist())
    return [
        f"{name}: {array[place]} at {place} is not among the {limit} that the spec has (0 to {limit - 1}); "
        "the tokenizer or the names of classes may belong to another spec"
    ]
