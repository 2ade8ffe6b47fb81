"""Prefix language modelling: a beginning that is seen both ways, and every token after it predicted (Raffel et al. 2019)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from anyformer.data.batch import IGNORE
from anyformer.data.examples import Examples
from anyformer.data.objectives.causal import ends_of, prefix_of, text_bits
from anyformer.data.objectives.objective import Setting
from anyformer.data.objectives.text import TextObjective
from anyformer.specs.axes import Problem
from anyformer.specs.model import ModelSpec


@dataclass(frozen=True, kw_only=True)
class PrefixText(TextObjective, kind="prefix"):
    """The spec's pattern says how long the prefix is; only tokens after it count."""

    topologies = ("decoder",)
    heads = ("lm",)
    shifts = True

    def own_problems(self, spec: ModelSpec) -> Iterator[Problem]:
        if not prefix_of(spec):
            yield "attention.pattern", "'prefix' needs a pattern with a prefix, such as 'causal | prefix(32)'"

    def bits_per_byte(self, loss: float, examples: Examples) -> float | None:
        return text_bits(loss, examples)

    def around(self, setting: Setting, *, stream: bool) -> tuple[int | None, int | None]:
        return ends_of(setting.spec, stream=stream)

    def room(self, setting: Setting) -> int:
        return setting.length

    def dress(self, ids_N: Any, setting: Setting, key: tuple[int, ...]) -> dict[str, Any]:
        labels_N = ids_N.copy()
        labels_N[: prefix_of(setting.spec)] = IGNORE
        return {"input_ids": ids_N, "labels": labels_N}
