"""Metrics made of several runs that differ in one axis: how far it can be pushed before a run breaks.

Of a grid over the learning rate and a feature, for example, the edge of divergence of each feature, seed by seed.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from anyformer.lab.results import BASE, Results, RunResult, VariantResult
from anyformer.lab.study import Derive, Study
from anyformer.lab.variants import LR, label


def with_derived(results: Results, study: Study) -> Results:
    """The results with a variant for each group of runs, called after what its members have in common."""
    given = results
    for derive in study.derive:
        groups = [_group(name, members, derive) for name, members in _members(given, derive).items()]
        judged = results.metric == derive.name
        results = replace(
            results, variants=[*groups, *results.variants], base=groups[0].name if judged else results.base
        )
    return results


def group_name(rest: str, derive: Derive) -> str:
    """What a group is called: `edge: base`, `edge: attention.qk_norm=true`."""
    return f"{derive.name}: {rest or BASE}"


def _members(results: Results, derive: Derive) -> dict[str, list[VariantResult]]:
    """Variants that differ in the axis alone, the base's group first."""
    found: dict[str, list[VariantResult]] = {}
    for variant in results.variants:
        plain = variant.name == results.base or variant.name == BASE
        rest = {} if plain else {name: v for name, v in variant.changes.items() if name != derive.along}
        found.setdefault(group_name(label(rest), derive), []).append(variant)
    return found


def _group(name: str, members: Sequence[VariantResult], derive: Derive) -> VariantResult:
    default = 1.0 if derive.along == LR else None
    ordered = sorted(
        ((float(value), each) for each in members if (value := each.changes.get(derive.along, default)) is not None),
        key=lambda pair: pair[0],
    )
    seeds = sorted({run.seed for _, each in ordered for run in each.runs})
    runs = [_derived(ordered, seed, derive) for seed in seeds]
    shared = {key: value for key, value in members[0].changes.items() if key != derive.along}
    first = ordered[0][1] if ordered else members[0]
    changes = {} if name == group_name("", derive) else shared
    return replace(first, name=name, changes=changes, runs=runs, speeds={}, solved={}, lr_factor=None)


def _derived(ordered: Sequence[tuple[float, VariantResult]], seed: int, derive: Derive) -> RunResult:
    """The edge of a seed; a run that failed for another reason than its own divergence leaves none."""
    every = [run for _, variant in ordered for run in variant.runs if run.seed == seed]
    broken = next((run for run in every if run.status not in ("finished", "diverged")), None)
    if broken is not None:
        return RunResult(seed=seed, status=broken.status, reason=broken.reason)
    return RunResult(seed=seed, status="finished", metrics={derive.name: _edge(ordered, seed, derive)})


def _edge(ordered: Sequence[tuple[float, VariantResult]], seed: int, derive: Derive) -> float | None:
    """The value, as log2, at which the runs of a seed cross the bound for the first time; None if they begin above it.

    Between two runs it is found by a straight line. A run that diverged has no value to draw one to: the edge is then the
    last one that held, as it is where none breaks.
    """
    edge, last = None, 0.0
    for value, variant in ordered:
        run = next((run for run in variant.runs if run.seed == seed), None)
        found = None if run is None or run.status != "finished" else run.value(derive.metric)
        if found is None or value <= 0:
            break
        if found >= derive.below:
            step = 0.0 if edge is None else math.log2(value) - edge
            return None if edge is None else edge + step * (derive.below - last) / (found - last)
        edge, last = math.log2(value), found
    return edge
