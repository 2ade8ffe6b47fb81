"""Regression on a series: real numbers in, real numbers out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from anyformer.data.dataset import Examples, Piece, Pieces
from anyformer.data.objectives import Long, Made, Objective, Setting, fitting
from anyformer.errors import DataError
from anyformer.specs.axes import Problem
from anyformer.specs.embed_head import RegressionHead, SeriesEmbed
from anyformer.specs.model import ModelSpec

if TYPE_CHECKING:
    from torch import Tensor

    from anyformer.kernels.loss import LossTerms
    from anyformer.model.model import Model, Output


@dataclass(frozen=True, kw_only=True)
class Regress(Objective, kind="regress"):
    """The column `values` holds the channels of one time step after another, `target` the numbers that are asked for."""

    columns = ("values", "target")
    topologies = ("encoder", "decoder")
    heads = ("regression",)
    lanes = {"": ("values",)}
    long: Long = "refuse"
    """Cut keeps the latest steps, which is what a forecast is made from."""

    def own_problems(self, spec: ModelSpec) -> Iterator[Problem]:
        if not isinstance(spec.embed, SeriesEmbed):
            yield "embed.kind", f"'regress' needs 'series', which reads numbers, not {spec.embed.kind!r}"

    def plan(self, examples: Examples, setting: Setting) -> Pieces:
        channels, outputs = _sizes(setting.spec)
        values_N, target_N = (np.asarray(examples.lengths(column)) for column in self.columns)
        wrong = np.flatnonzero((values_N % channels != 0) | (target_N != outputs))
        if len(wrong):
            i = int(wrong[0])
            asked = f"{channels} for each time step (embed.channels) and answers {outputs} (head.outputs)"
            raise DataError(f"example {i} has {values_N[i]} values and {target_N[i]} targets; the spec reads {asked}")
        steps_N = values_N // channels
        i, cells, counts = fitting(steps_N, setting.length, self.long)
        return Pieces(i, steps_N[i] - cells, steps_N[i], {"": cells}, **counts)

    def make(self, examples: Examples, piece: Piece, setting: Setting, key: tuple[int, ...]) -> Made:
        channels, _ = _sizes(setting.spec)
        values = examples.read("values", piece.example, piece.start * channels, piece.stop * channels)
        values_TC = np.asarray(values, np.float32).reshape(-1, channels)
        return Made(({"values": values_TC},), np.asarray(examples.read("target", piece.example), np.float32))

    def no_answer(self, setting: Setting) -> Any:
        return np.zeros(_sizes(setting.spec)[1], np.float32)

    def answer(self, model: Model, inputs: dict[str, Tensor], **how: Any) -> tuple[LossTerms, Output]:
        from anyformer.kernels.loss import LossTerms

        out = model(**inputs, **how)
        squares, count = _squares(out, inputs)
        error = squares / count.clamp(min=1)
        # Whatever else the model adds to its loss stays.
        total = out.loss - out.losses["squared_error"] + error
        return LossTerms(total, {**out.losses, "squared_error": error}, count), out

    def judge(self, out: Output, inputs: dict[str, Tensor]) -> dict[str, tuple[float, float]]:
        if out.logits is None:
            return {}
        squares, count = _squares(out, inputs)
        return {"mse": (float(squares.detach()), float(count))}


def _sizes(spec: ModelSpec) -> tuple[int, int]:
    """Numbers of a time step, and of an answer."""
    channels = spec.embed.channels if isinstance(spec.embed, SeriesEmbed) else 1
    return channels, spec.head.outputs if isinstance(spec.head, RegressionHead) else 1


def _squares(out: Any, inputs: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Summed squares of the errors of rows that hold something, and how many numbers these are."""
    import torch

    labels = inputs["labels"]
    exact = torch.promote_types(out.logits.dtype, torch.float32)
    errors = out.logits.to(exact) - labels.to(exact)
    held_B = (inputs["attention_mask"] != 0).any(-1)
    return errors.square().masked_fill(~held_B[:, None], 0).sum(), held_B.sum() * labels.shape[1]
