"""Prefix language modelling: a beginning that is seen both ways, and every token after it predicted (Raffel et al. 2019)."""

from collections.abc import Iterator
from dataclasses import dataclass

from anyformer.data.objectives.causal import NextToken, prefix_of
from anyformer.specs.axes import Problem
from anyformer.specs.model import ModelSpec


@dataclass(frozen=True, kw_only=True)
class PrefixText(NextToken, kind="prefix"):
    """The spec's pattern says how long the prefix is; only tokens after it count."""

    def own_problems(self, spec: ModelSpec) -> Iterator[Problem]:
        if not prefix_of(spec):
            yield "attention.pattern", "'prefix' needs a pattern with a prefix, such as 'causal | prefix(32)'"

    def skipped(self, spec: ModelSpec) -> int:
        return prefix_of(spec)
