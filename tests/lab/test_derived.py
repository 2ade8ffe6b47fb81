"""Metrics made of several runs: the edge up to which an axis can be pushed, seed by seed."""

import pytest

from anyformer.lab.derived import with_derived
from anyformer.lab.results import Results, RunResult, VariantResult
from anyformer.lab.study import Study


def variant(name: str, changes: dict, *losses) -> VariantResult:
    """A variant with a run for each loss; None: it diverged."""
    runs = [
        RunResult(
            seed=seed, status="diverged" if loss is None else "finished", metrics={} if loss is None else {"loss": loss}
        )
        for seed, loss in enumerate(losses)
    ]
    return VariantResult(name=name, changes=changes, runs=runs, params=10, train_flops=5.0, lr_factor=2.0)


def study(*derive: dict, metric: str = "edge") -> Study:
    axes = {"lr": [1, 2, 4, 8], "attention.qk_norm": [True]}
    return Study.from_data({"base": "x.toml", "vary": axes, "cross": ["lr"], "metric": metric, "derive": list(derive)})


EDGE = {"name": "edge", "along": "lr", "below": 4.0}
MADE = [
    # As `variants` makes them: the base says its own values of all axes.
    variant("base", {"lr": 1.0, "attention.qk_norm": "none"}, 3.0, 3.1),
    variant("lr=4", {"lr": 4}, 3.2, None),
    variant("lr=2", {"lr": 2}, 3.1, 4.5),
    variant("lr=8", {"lr": 8}, 5.0, 3.0),
    variant("attention.qk_norm=true, lr=1", {"attention.qk_norm": True, "lr": 1}, 3.0, 3.0),
    variant("attention.qk_norm=true, lr=2", {"attention.qk_norm": True, "lr": 2}, 3.0, 3.0),
    variant("attention.qk_norm=true, lr=4", {"attention.qk_norm": True, "lr": 4}, 3.9, 3.0),
    variant("attention.qk_norm=true, lr=8", {"attention.qk_norm": True, "lr": 8}, 3.0, 4.0),
]


def derived(*derive: dict, metric: str = "edge", made=None) -> Results:
    return with_derived(Results(title="made up", metric=metric, variants=made or MADE), study(*derive, metric=metric))


def test_edge_is_where_the_runs_of_a_seed_first_cross_the_bound():
    found = derived(EDGE)
    assert [each.name for each in found.variants[:2]] == ["edge: base", "edge: attention.qk_norm=true"]
    # Seed 1 of the base breaks at 2: that it holds again at 8 is luck.
    assert found.variant("edge: base").values("edge") == pytest.approx({0: 2 + 0.8 / 1.8, 1: 0.9 / 1.4})
    assert found.variant("edge: attention.qk_norm=true").values("edge") == {0: 3.0, 1: 3.0}


def test_edge_before_a_run_that_diverged_is_the_last_value_that_held():
    made = [variant("base", {"lr": 1.0}, 3.0), variant("lr=2", {"lr": 2}, 3.5), variant("lr=4", {"lr": 4}, None)]
    assert derived(EDGE, made=made).variants[0].values("edge") == {0: 1.0}


def test_edge_is_no_number_where_not_even_the_smallest_value_holds():
    made = [variant("base", {"lr": 1.0}, 9.0, 3.0), variant("lr=2", {"lr": 2}, 3.0, 3.0)]
    group = derived(EDGE, made=made).variants[0]
    assert group.values("edge") == {1: 1.0}
    assert [run.metrics for run in group.runs] == [{"edge": None}, {"edge": 1.0}]


def test_groups_are_compared_with_the_group_of_the_base_where_they_are_judged():
    judged, besides = derived(EDGE), derived(EDGE, metric="loss")
    assert (judged.base, besides.base) == ("edge: base", "base")
    assert judged.variants[2:] == MADE
    group = judged.variant("edge: attention.qk_norm=true")
    assert group.changes == {"attention.qk_norm": True}
    assert judged.variants[0].changes == {}
    assert (group.params, group.lr_factor, group.speeds, group.solved) == (10, None, {}, {})


def test_several_derived_metrics_are_made_of_the_same_runs():
    found = derived(EDGE, {"name": "strict edge", "along": "lr", "below": 3.15})
    assert [each.name for each in found.variants[:4]] == [
        "strict edge: base", "strict edge: attention.qk_norm=true", "edge: base", "edge: attention.qk_norm=true",
    ]  # fmt: skip
    assert found.variant("strict edge: base").values("strict edge") == pytest.approx({0: 1.5, 1: 0.05 / 1.4})
    assert found.variant("edge: base").values("edge") == pytest.approx({0: 2 + 0.8 / 1.8, 1: 0.9 / 1.4})
    assert found.base == "edge: base"


def test_edge_along_another_axis_needs_its_values_in_the_variants():
    made = [
        variant("base", {"depth": 1}, 3.0),
        variant("depth=4", {"depth": 4}, 3.0),
        variant("depth=8", {"depth": 8}, 9.0),
    ]
    data = {"base": "x", "vary": {"depth": [4, 8]}, "derive": [{"name": "edge", "along": "depth", "below": 4.0}]}
    found = with_derived(Results(title="made up", variants=made), Study.from_data(data))
    assert found.variants[0].values("edge") == pytest.approx({0: 2 + 1 / 6})


def test_study_without_derived_metrics_is_left_as_it_is():
    results = Results(title="made up", variants=MADE)
    assert with_derived(results, study(metric="loss")) is results


def test_edge_of_a_seed_whose_run_failed_is_not_finished():
    made = [variant("base", {"lr": 1.0}, 3.0, 3.0), variant("lr=2", {"lr": 2}, 3.5, 5.0)]
    made[1].runs[0] = RunResult(seed=0, status="out of memory", reason="too large")
    group = derived(EDGE, made=made).variants[0]
    assert [(run.status, run.value("edge")) for run in group.runs] == [("out of memory", None), ("finished", 0.5)]
