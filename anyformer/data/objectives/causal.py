"""Causal language modelling: every token is predicted from those before it in its document."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from anyformer.data.dataset import IGNORE, Examples
from anyformer.data.objectives import Setting, TextObjective, first_eos
from anyformer.specs.axes import Problem
from anyformer.specs.model import ModelSpec


class NextToken(TextObjective):
    """Every token is predicted from those before it; bos and eos stand around a document where the spec has them."""

    topologies = ("decoder",)
    heads = ("lm",)
    shifts = True

    def skipped(self, spec: ModelSpec) -> int:
        """How many of the first tokens are only read: nothing of the same document comes before the first."""
        return 1

    def bits_per_byte(self, loss: float, examples: Examples) -> float | None:
        """At the text's own number of tokens per byte; None if its bytes were not counted."""
        tokens = int(np.sum(examples.lengths("tokens")))
        return loss * tokens / math.log(2) / examples.bytes if examples.bytes else None

    def around(self, setting: Setting, *, stream: bool) -> tuple[int | None, int | None]:
        return ends_of(setting.spec, stream=stream)

    def to_inputs(self, ids_N: Any, setting: Setting, key: tuple[int, ...]) -> dict[str, Any]:
        labels_N = ids_N.copy()
        labels_N[: self.skipped(setting.spec)] = IGNORE
        return {"input_ids": ids_N, "labels": labels_N}


@dataclass(frozen=True, kw_only=True)
class Causal(NextToken, kind="causal"):
    """Of each document, or of each row of a stream, all but the first token."""

    def own_problems(self, spec: ModelSpec) -> Iterator[Problem]:
        if prefix_of(spec):
            yield (
                "objective.kind",
                "'causal' counts every token, and the spec's pattern shows a prefix both ways; take 'prefix'",
            )


def ends_of(spec: ModelSpec, *, stream: bool) -> tuple[int | None, int | None]:
    """The ids before and after a document. In a stream one of them is enough if they are the same."""
    bos, eos = spec.ids.bos, first_eos(spec)
    return bos, None if stream and bos == eos else eos


def prefix_of(spec: ModelSpec) -> int:
    """How many of a document's first tokens the decoder shows to each other both ways; 0 if it is causal."""
    if spec.topology != "decoder":
        return 0
    patterns = [layer.attention.pattern for layer in spec.stacks[-1].layers]
    found = max((p.prefix() or 0 for p in patterns if p is not None), default=0)
    return found if found > 1 else 0
