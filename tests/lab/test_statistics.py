"""Statistics on plain floats, against closed forms, scipy.stats and simulation."""

import itertools
import math
import sys

import numpy as np
import pytest
from scipy import stats

from anyformer.errors import CapabilityError, InputError
from anyformer.lab.statistics.estimates import (
    Paired,
    estimate,
    holm,
    paired,
    pool,
    power,
    residual,
    smallest_effect,
    t_below,
    t_quantile,
)


def by_seed(values) -> dict[int, float]:
    return dict(enumerate(map(float, values)))


@pytest.mark.parametrize("share", [0.6, 0.975, 0.99643])
def test_t_quantile_of_one_and_two_degrees_is_the_closed_form(share):
    assert t_quantile(share, 1) == pytest.approx(math.tan(math.pi * (share - 0.5)), rel=1e-9)
    assert t_quantile(share, 2) == pytest.approx((2 * share - 1) / math.sqrt(2 * share * (1 - share)), rel=1e-9)
    assert t_below(t_quantile(share, 4), 4) == pytest.approx(share, rel=1e-9)


def test_estimate_of_some_values_has_the_interval_of_scipy():
    values = [3.1, 3.3, 2.9, 3.05, 3.2]
    found = estimate(values)
    assert found is not None
    low, high = stats.t.interval(0.95, 4, loc=np.mean(values), scale=stats.sem(values))
    assert (found.mean, found.low, found.high) == pytest.approx((np.mean(values), low, high))
    assert found.sd == pytest.approx(np.std(values, ddof=1))


def test_estimate_of_one_value_has_no_interval():
    found = estimate([3.5])
    assert found is not None
    assert (found.mean, found.low, found.high, found.n) == (3.5, None, None, 1)
    assert estimate([]) is None


def test_estimate_intervals_cover_the_mean_in_95_percent_of_draws():
    rng = np.random.default_rng(0)
    found = [estimate(row) for row in rng.normal(2.0, 0.1, size=(4000, 4)).tolist()]
    covered = np.mean([each.low <= 2.0 <= each.high for each in found])
    assert 0.94 <= covered <= 0.96


def test_paired_difference_is_the_paired_t_test_of_scipy():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=6), rng.normal(size=6) + 0.5
    found, theirs = paired(by_seed(a), by_seed(b)), stats.ttest_rel(a, b)
    assert found is not None
    assert found.p == pytest.approx(theirs.pvalue)
    assert found.mean / found.error == pytest.approx(theirs.statistic)
    assert found.interval(0.01) == pytest.approx(tuple(theirs.confidence_interval(0.99)))


def test_paired_difference_with_missing_seeds_uses_the_common_ones():
    values, base = {0: 1.0, 1: 2.5, 2: 9.0}, {0: 0.5, 1: 1.0, 3: -7.0}
    assert paired(values, base) == paired({0: 1.0, 1: 2.5}, {0: 0.5, 1: 1.0})
    assert paired({0: 1.0, 2: 9.0}, base) is None


def test_paired_difference_of_equal_values_up_to_rounding_has_no_spread():
    base = by_seed([0.1, 1.7, 12.3])
    assert paired(base, base) == Paired(mean=0.0, sd=0.0, n=3, df=2)
    assert len({value + 0.1 - value for value in base.values()}) == 3
    shifted = paired({seed: value + 0.1 for seed, value in base.items()}, base)
    assert shifted is not None
    assert shifted.sd == 0.0
    assert shifted.mean == pytest.approx(0.1)


def test_residual_variance_is_that_of_a_least_squares_fit():
    rng = np.random.default_rng(1)
    values = rng.normal(size=(4, 3)) + rng.normal(size=(4, 1)) * 5 + rng.normal(size=(1, 3)) * 5
    variants, seeds = np.repeat(np.eye(4), 3, axis=0), np.tile(np.eye(3), (4, 1))
    design = np.hstack([variants, seeds])
    fit, rank = design @ np.linalg.pinv(design) @ values.ravel(), np.linalg.matrix_rank(design)
    found = residual([by_seed(row) for row in values])
    assert found is not None
    assert (found.df, found.variants) == (12 - rank, 4) == (6, 4)
    assert found.variance == pytest.approx(np.sum((values.ravel() - fit) ** 2) / 6)


def test_residual_variance_of_two_variants_is_half_that_of_their_difference():
    rng = np.random.default_rng(2)
    a, b = rng.normal(size=4), rng.normal(size=4)
    found = residual([by_seed(a), by_seed(b)])
    assert found is not None
    assert found.df == 3
    assert 2 * found.variance == pytest.approx(np.var(a - b, ddof=1))


def test_residual_variance_without_degrees_of_freedom_is_none():
    assert residual([]) is None
    assert residual([by_seed([1.0, 2.0])]) is None
    assert residual([{0: 1.0}, {0: 2.0}]) is None
    with pytest.raises(InputError, match="the same seeds"):
        residual([{0: 1.0, 1: 2.0}, {0: 1.0, 2: 2.0}])


def test_residual_variance_of_shifted_copies_is_zero_in_spite_of_rounding():
    found = residual([by_seed([3.1 + shift, 3.27 + shift, 3.3 + shift]) for shift in (0.0, 0.1, 0.7)])
    assert found is not None
    assert found.variance == 0.0


def test_pool_takes_the_larger_of_both_variances_and_the_degrees_of_all():
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(5, 3))
    rows[4] *= 30
    left = residual([by_seed(row) for row in rows[:4]])
    calm, wild = (paired(by_seed(rows[i]), by_seed(rows[0])) for i in (1, 4))
    assert left is not None
    assert calm is not None
    assert wild is not None
    assert pool(calm, left).sd == pytest.approx(max(calm.sd, math.sqrt(2 * left.variance)))
    assert pool(wild, left).sd == wild.sd
    assert pool(wild, left).df == left.df == 6


def test_holm_is_the_closed_test_of_bonferroni():
    rng = np.random.default_rng(4)
    for _ in range(20):
        p = (rng.random(5) ** 3).tolist()
        subsets = [s for size in range(1, 6) for s in itertools.combinations(range(5), size)]
        expected = [max(min(1.0, len(s) * min(p[j] for j in s)) for s in subsets if i in s) for i in range(5)]
        assert holm(p) == pytest.approx(expected)
    assert holm([]) == []
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])


def test_equivalence_p_says_whether_the_interval_lies_within_or_outside():
    rng = np.random.default_rng(5)
    seen = set()
    for _ in range(300):
        found = paired(by_seed(rng.normal(rng.choice([0, 1, 3]), 0.5, size=5)), by_seed(np.zeros(5)))
        assert found is not None
        low, high = found.interval(2 * 0.02)
        within, outside = low >= -1 and high <= 1, low >= 1 or high <= -1
        assert (found.p_inside(-1, 1) <= 0.02) == within
        assert (found.p_outside(-1, 1) <= 0.02) == outside
        seen.add((within, outside))
    assert seen == {(True, False), (False, True), (False, False)}


def test_equivalence_at_the_margin_is_claimed_in_at_most_alpha_of_draws():
    rng = np.random.default_rng(6)
    rows = rng.normal(1.0, 0.5, size=(3000, 5)).tolist()
    p = [found.p_inside(-1, 1) for row in rows if (found := paired(by_seed(row), by_seed(np.zeros(5)))) is not None]
    assert 0.04 <= np.mean(np.array(p) <= 0.05) <= 0.06


@pytest.mark.parametrize(("n", "df", "comparisons"), [(5, 4, 7), (5, 4, 1), (3, 14, 7), (10, 9, 20)])
def test_smallest_effect_is_marked_in_80_percent_of_simulated_studies(n, df, comparisons):
    rng, draws = np.random.default_rng(7), 20000
    effect = smallest_effect(sd=2.0, n=n, df=df, comparisons=comparisons)
    middle = effect + 2.0 / math.sqrt(n) * rng.normal(size=draws)
    error = 2.0 / math.sqrt(n) * np.sqrt(rng.chisquare(df, size=draws) / df)
    p = 2 * stats.t.sf(np.abs(middle / error), df)
    assert 0.78 <= np.mean(p <= 0.05 / comparisons) <= 0.82


def test_power_is_that_of_the_noncentral_t_and_of_simulated_runs():
    critical = stats.t.isf(0.025 / 7, 4)
    assert power(5.0, seeds=5, comparisons=7) == pytest.approx(stats.nct.sf(critical, 4, 5 * math.sqrt(5 / 2)))
    rng = np.random.default_rng(8)
    base, shifted = rng.normal(size=(2, 20000, 4))
    p = stats.ttest_rel(shifted + 2.0, base, axis=1).pvalue
    assert power(2.0, seeds=4) == pytest.approx(np.mean(p <= 0.05), abs=0.015)


def test_power_of_few_seeds_is_small_and_grows_with_pooling():
    assert 0.1 <= power(5.0, seeds=3, comparisons=7) <= 0.35
    assert power(5.0, seeds=3, comparisons=7, pooled_over=8) > 0.95
    assert power(5.0, seeds=5, comparisons=7) > 0.9
    assert power(5.0, seeds=1) == 0.0


def test_statistics_without_scipy_say_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(CapabilityError, match=r"need scipy: pip install 'anyformer\[lab\]'"):
        t_quantile(0.9, 3)
