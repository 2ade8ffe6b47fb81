"""Comparisons and judged claims: which test, which correction, and where there is none."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from anyformer.errors import InputError
from anyformer.lab.results import Claim, Results, RunResult
from anyformer.lab.statistics.comparison import compare, judge
from anyformer.lab.statistics.estimates import holm, smallest_effect
from anyformer.lab.statistics.pairing import samples
from tests.lab.studies import speed_study, study, variant

BASE = [3.20, 3.22, 3.19, 3.21, 3.23]


def near(shift: float, seed: int, n: int = 5, sd: float = 0.005) -> list[float]:
    """Losses about the base's."""
    return (np.array(BASE[:n]) + shift + sd * np.random.default_rng(seed).normal(size=n)).tolist()


def random_study(rng: np.random.Generator, n: int, shifts=(0.0,) * 7, scales=None) -> Results:
    """Independent runs of a base and others, in units of their standard deviation."""
    values = rng.normal(size=(len(shifts) + 1, n)) + np.array([0.0, *shifts])[:, None]
    if scales is not None:
        values *= np.array(scales)[:, None]
    return study(base=values[0].tolist(), **{f"v{i}": row.tolist() for i, row in enumerate(values[1:], 1)})


def claim(better: str, than: str = "base", **rest) -> Claim:
    return Claim(claim=f"{better} against {than}", paper="made up", better=better, than=than, **rest)


def test_comparison_of_five_seeds_is_the_paired_t_test_with_holms_correction():
    losses = {"a": near(-0.05, 1), "b": near(0.004, 2), "c": near(0.03, 3)}
    found = compare(study(base=BASE, **losses))
    expected = [stats.ttest_rel(losses[name], BASE) for name in "abc"]
    assert [each.p for each in found] == pytest.approx([each.pvalue for each in expected])
    assert [each.adjusted_p for each in found] == pytest.approx(holm([each.pvalue for each in expected]))
    assert [each.outcome for each in found] == ["better", "can't tell", "worse"]
    assert {(each.n, each.df, each.pooled_over, each.comparisons) for each in found} == {(5, 4, 0, 3)}
    first = found[0]
    assert first.interval == pytest.approx(tuple(expected[0].confidence_interval(0.95)))
    assert first.simultaneous == pytest.approx(tuple(expected[0].confidence_interval(1 - 0.05 / 3)))
    assert first.sd is not None
    assert first.smallest == pytest.approx(smallest_effect(sd=first.sd, n=5, df=4, comparisons=3))
    assert first.share == pytest.approx((np.mean(losses["a"]) - np.mean(BASE)) / np.mean(BASE))
    between = math.sqrt((np.var(losses["a"], ddof=1) + np.var(BASE, ddof=1)) / 2)
    assert first.sds == pytest.approx((np.mean(losses["a"]) - np.mean(BASE)) / between)


def test_comparison_of_three_seeds_is_judged_by_the_pooled_variance():
    rows = np.random.default_rng(5).normal(3.2, 0.01, size=(4, 3))
    rows[1] -= 0.2
    found = compare(study(base=rows[0].tolist(), a=rows[1].tolist(), b=rows[2].tolist(), c=rows[3].tolist()))
    left = rows - rows.mean(0) - rows.mean(1, keepdims=True) + rows.mean()
    pooled = math.sqrt(2 * np.sum(left**2) / 6)
    for each, row in zip(found, rows[1:], strict=True):
        sd = max(pooled, np.std(row - rows[0], ddof=1))
        assert each.sd == pytest.approx(sd)
        statistic = np.mean(row - rows[0]) / (sd / math.sqrt(3))
        assert each.p == pytest.approx(2 * stats.t.sf(abs(statistic), 6))
        assert (each.df, each.pooled_over) == (6, 4)
    assert [each.outcome for each in found] == ["better", "can't tell", "can't tell"]


def test_comparison_of_one_seed_judges_nothing():
    (found,) = compare(study(base=[3.2], a=[2.0]))
    assert found.outcome == "not judged"
    assert found.reason == "one seed shows no spread to judge a difference by"
    assert found.difference == pytest.approx(-1.2)
    assert found.p is found.interval is found.simultaneous is found.smallest is None


def test_comparison_with_missing_seeds_pairs_the_common_ones():
    losses = dict(enumerate(near(-0.05, 1, 5)))
    (found,) = compare(study(base=BASE, a={**losses, 17: 90.0}))
    assert (found.n, found.p) == (5, pytest.approx(stats.ttest_rel(list(losses.values()), BASE).pvalue))
    (found,) = compare(study(base=BASE, a={7: 1.0, 8: 1.0}))
    assert (found.outcome, found.reason) == ("not judged", "a and base have no seed in common")


def test_comparison_of_few_common_seeds_borrows_the_variance_of_complete_variants():
    full = [near(0.0, i) for i in range(3)]
    partial = dict(list(enumerate(near(-0.05, 9)))[:3])
    found = {each.name: each for each in compare(study(base=BASE, a=full[0], b=full[1], c=full[2], d=partial))}
    assert (found["d"].n, found["d"].pooled_over, found["d"].df) == (3, 4, 12)
    assert found["a"].pooled_over == 0
    assert found["d"].outcome == "better"


def test_comparison_of_a_variant_that_lost_runs_is_not_tested():
    results = study(base=BASE, a=[*near(-1, 1)[:2], "diverged", "diverged", "out of memory"], b=near(-0.05, 2))
    lost, other = compare(results)
    assert lost.outcome == "not judged"
    assert lost.reason == "a diverged in 2 of 5 seeds, ran out of memory in 1 of 5 seeds, base lost no run"
    assert lost.p is lost.difference is None
    assert (other.outcome, other.comparisons) == ("better", 1)


def test_comparison_with_a_base_that_lost_a_run_tests_nothing():
    found = compare(study(base=[*BASE[:4], "failed"], a=near(-1, 1), b=["diverged"] * 5))
    assert [each.reason for each in found] == [
        "base failed in 1 of 5 seeds",
        "b diverged in 5 of 5 seeds, base failed in 1 of 5 seeds",
    ]


def test_comparison_does_not_use_the_value_of_a_lost_run():
    results = study(base=BASE, a=near(-1, 1))
    last = RunResult(seed=4, status="diverged", metrics={"loss": 9.0})
    results.variants[1].runs[4] = last
    assert compare(results)[0].reason == "a diverged in 1 of 5 seeds, base lost no run"
    assert samples(results.variants[1], "loss").keys() == {0, 1, 2, 3}


def test_comparison_of_finished_runs_without_the_metric_is_not_tested():
    found = compare(study(base=BASE, a=[*near(0, 1)[:3], None, math.nan], b=[None] * 5))
    assert [each.reason for each in found] == ["a has no loss in 2 of 5 seeds", "b has no loss"]


@pytest.mark.parametrize("n", [2, 5])
def test_comparison_of_equal_runs_is_identical(n):
    found = compare(study(base=BASE[:n], a=BASE[:n], b=near(0.1, 1, n), c=near(0.1, 2, n)))
    assert (found[0].outcome, found[0].difference, found[0].p) == ("identical", 0.0, None)
    assert found[1].comparisons == 2
    if n < 5:
        assert found[1].pooled_over == 3, "the same runs twice say nothing about the spread"


def test_comparison_of_constant_differences_is_not_judged_by_its_own_variance():
    base = [120.0, 140.0, 130.0, 120.0, 150.0]
    (found,) = compare(study(metric="steps_to_4", base=base, a=[value - 10 for value in base]))
    assert (found.outcome, found.difference) == ("not judged", -10.0)
    assert found.reason == "the difference is the same in all 5 seeds: no spread to judge it by"
    pooled = compare(study(metric="steps_to_4", base=base[:3], a=[110.0, 130.0, 120.0], b=[120.0, 150.0, 110.0]))
    assert [each.outcome for each in pooled] == ["can't tell", "can't tell"]


def test_comparison_of_constant_values_everywhere_divides_by_nothing():
    found = compare(study(metric="steps_to_4", base=[100.0] * 3, a=[100.0] * 3, b=[90.0] * 3))
    assert [each.outcome for each in found] == ["identical", "not judged"]


def test_comparison_of_speeds_is_relative_and_by_rounds():
    base, faster = np.array([1000.0, 1020.0, 990.0, 1005.0, 1010.0]), np.array([1.1, 1.11, 1.09, 1.1, 1.105])
    results = speed_study(base=base.tolist(), a=(base * faster).tolist(), b=(base / faster).tolist())
    found = compare(results)
    test = stats.ttest_rel(np.log(base * faster), np.log(base))
    assert [each.outcome for each in found] == ["better", "worse"]
    assert found[0].p == pytest.approx(test.pvalue)
    assert found[0].difference == pytest.approx(math.exp(np.mean(np.log(faster))) - 1)
    assert found[0].interval == pytest.approx(tuple(math.expm1(end) for end in test.confidence_interval(0.95)))
    assert found[1].difference == pytest.approx(1 / (1 + found[0].difference) - 1)
    assert found[0].speed


def test_comparison_of_speeds_leaves_out_rounds_without_a_measurement_and_ignores_lost_runs():
    results = speed_study(base=[100.0, 101.0, 99.0, 100.0, 102.0, None], a=[110.0, 112.0, 109.0, 110.0, 111.0, 5.0])
    results.variants[1].runs.append(RunResult(seed=0, status="diverged"))
    found = compare(Results.from_data(results.to_data()))
    assert (found[0].n, found[0].outcome) == (5, "better")
    assert compare(speed_study(base=[1.0, 2.0], a=[]))[0].reason == "a has no train_tokens_per_second"


def test_comparison_of_a_metric_that_grows_with_quality_calls_higher_better():
    found = compare(study(metric="accuracy", base=BASE, a=near(-0.05, 1), b=near(0.05, 2)))
    assert [each.outcome for each in found] == ["worse", "better"]


def test_comparison_by_an_unknown_metric_or_base_says_what_is_known():
    with pytest.raises(InputError, match=r"metric: no run of this study has 'los'; did you mean 'loss'\?"):
        compare(study(base=BASE, a=BASE), "los")
    with pytest.raises(InputError, match="there is no variant 'base'"):
        compare(study(a=BASE))


def test_comparison_where_all_runs_were_lost_says_so():
    (found,) = compare(study(base=["diverged"] * 2, a=["failed"] * 2))
    assert found.reason == "a failed in 2 of 2 seeds, base diverged in 2 of 2 seeds"


def test_simultaneous_intervals_exclude_zero_exactly_if_marked():
    rng = np.random.default_rng(0)
    cut = 0
    for _ in range(100):
        for each in compare(random_study(rng, 5, shifts=(0, 1, 2, 3, 4, 5, 6))):
            assert each.simultaneous is not None
            low, high = each.simultaneous
            assert (not low < 0 < high) == each.marked
            cut += 0.0 in (low, high)
    assert cut > 0, "no difference was marked by Holm's step-down alone"


@pytest.mark.parametrize("n", [3, 5])
def test_simultaneous_intervals_cover_all_differences_in_95_percent_of_studies(n):
    rng, shifts = np.random.default_rng(1), (0, 0, 0, 1, 1, 3, 6)
    covered = 0
    for _ in range(400):
        ends = [each.simultaneous for each in compare(random_study(rng, n, shifts))]
        covered += all(low <= shift <= high for (low, high), shift in zip(ends, shifts, strict=True))
    assert covered / 400 >= 0.93


def test_pooled_comparison_of_an_unstable_variant_claims_in_few_studies():
    rng = np.random.default_rng(2)
    scales = [1, 1, 1, 10, 1, 1, 1, 1]
    claims = sum(any(each.marked for each in compare(random_study(rng, 3, scales=scales))) for _ in range(400))
    assert claims / 400 <= 0.12


def test_judgement_of_a_better_claim_agrees_differs_or_cannot_tell():
    results = study([claim("a"), claim("b"), claim("c"), claim("a", "c")], base=BASE, a=near(-0.05, 1),
                    b=near(0.05, 2), c=near(0.0, 3))  # fmt: skip
    found = judge(results)
    assert [each.verdict for each in found] == ["agrees", "differs", "can't tell", "agrees"]
    assert {each.claims for each in found} == {4}
    p = [stats.ttest_rel(near(-0.05, 1), BASE).pvalue, stats.ttest_rel(near(0.05, 2), BASE).pvalue,
         stats.ttest_rel(near(0.0, 3), BASE).pvalue, stats.ttest_rel(near(-0.05, 1), near(0.0, 3)).pvalue]  # fmt: skip
    assert [each.adjusted_p for each in found] == pytest.approx(holm(p))
    assert found[2].smallest is not None
    assert found[2].smallest > abs(found[2].difference)


def test_judgement_of_a_metric_that_grows_with_quality_agrees_with_higher():
    results = study([claim("a"), claim("b")], metric="accuracy", base=BASE, a=near(0.05, 1), b=near(-0.05, 2))
    assert [each.verdict for each in judge(results)] == ["agrees", "differs"]


def test_judgement_of_equality_compares_the_interval_of_two_one_sided_tests_with_the_margin():
    claims = [claim("a", margin=0.02), claim("b", margin=0.02), claim("a", margin=0.003)]
    found = judge(study(claims, base=BASE, a=near(0.0, 3), b=near(0.05, 2)))
    assert [each.verdict for each in found] == ["agrees", "differs", "can't tell"]
    expected = stats.ttest_rel(near(0.0, 3), BASE).confidence_interval(1 - 2 * 0.05 / 3)
    assert found[0].interval == pytest.approx(tuple(expected))
    alone = stats.ttest_1samp(np.array(near(0.0, 3)) - BASE, 0.02, alternative="less").pvalue
    other = stats.ttest_1samp(np.array(near(0.0, 3)) - BASE, -0.02, alternative="greater").pvalue
    assert found[0].adjusted_p == pytest.approx(3 * max(alone, other))
    lows, highs = zip(*(each.interval for each in found), strict=True)
    assert -0.02 < lows[0] < highs[0] < 0.02 < lows[1]
    assert not -0.003 < lows[2] < highs[2] < 0.003


def test_judgement_of_equal_speeds_takes_a_relative_margin():
    results = speed_study(base=[1000.0, 1010.0, 990.0, 1000.0, 1005.0], a=[1003.0, 1009.0, 992.0, 998.0, 1009.0])
    claims = [claim("a", margin=0.02), claim("a", margin=2.0)]
    assert [each.verdict for each in judge(replace(results, claims=claims))] == ["agrees", "agrees"]
    assert judge(replace(results, claims=[claim("a", margin=1e-4)]))[0].verdict == "can't tell"


def test_judgement_of_equality_claims_keeps_their_share_of_alpha():
    rng = np.random.default_rng(3)
    wrong = 0
    for _ in range(400):
        results = random_study(rng, 5, shifts=(0, 0, 3, 3, 3, 8, 9))
        claims = [claim("v1"), claim("v2"), *(claim(f"v{i}", margin=3.0) for i in (3, 4, 5)), claim("base", "v6")]
        found = judge(replace(results, claims=claims))
        # Those that differ by the margin itself may be called neither; nothing may be called better than its equal.
        wrong += any(each.verdict != "can't tell" for each in found[:2]) or any(
            each.verdict == "differs" for each in found[2:5]
        )
    assert wrong / 400 <= 0.07


def test_judgement_of_a_better_claim_gains_nothing_from_a_decided_equality_claim():
    losses = near(-0.005, 1)
    p = stats.ttest_rel(losses, BASE).pvalue
    found = judge(study([claim("a"), claim("b", margin=0.01)], base=BASE, a=losses, b=near(0.5, 2)))
    assert found[1].verdict == "differs"
    assert found[0].adjusted_p == pytest.approx(2 * p)


def test_judgement_where_one_diverged_in_most_runs_needs_no_test():
    results = study(
        base=BASE, a=[3.0, 3.0, "diverged", "diverged", "diverged"], b=[3.0, 3.0, 3.0, "diverged", "diverged"]
    )
    claims = [claim("a"), claim("base", "a"), claim("a", margin=1.0), claim("b"), claim("a", "b")]
    found = judge(replace(results, claims=claims))
    assert [each.verdict for each in found] == ["differs", "agrees", "differs", "can't tell", "can't tell"]
    assert found[0].reason == "a diverged in 3 of 5 seeds, base lost no run"


def test_judgement_of_runs_that_failed_otherwise_cannot_tell():
    results = study([claim("a")], base=BASE, a=["failed"] * 5)
    assert judge(results)[0].verdict == "can't tell"


def test_judgement_of_identical_variants_agrees_only_with_equality():
    found = judge(study([claim("a"), claim("a", margin=0.1)], base=BASE, a=BASE))
    assert [each.verdict for each in found] == ["can't tell", "agrees"]
    assert found[0].reason == "a and base are identical in all 5 seeds"


def test_judgement_of_a_claim_that_the_study_cannot_hold_says_what_is_missing():
    claims = [claim("alibi"), claim("a", metric="bleu"), claim("a")]
    found = judge(study(claims, base=[3.0], a=[2.0]))
    assert [each.verdict for each in found] == ["can't tell"] * 3
    assert [each.reason for each in found] == [
        "the study has no variant alibi", "a has no bleu", "one seed shows no spread to judge a difference by",
    ]  # fmt: skip


def test_judgement_with_a_margin_of_zero_is_refused():
    with pytest.raises(InputError, match="the margin is 0; give one above 0, or none"):
        judge(study([claim("a", margin=0)], base=BASE, a=BASE))


def test_judgement_of_three_seeds_pools_the_variance():
    results = study([claim("a")], base=BASE[:3], a=near(-0.05, 1, 3), b=near(0.0, 2, 3), c=near(0.0, 3, 3))
    (found,) = judge(results)
    assert (found.verdict, found.pooled_over, found.n) == ("agrees", 4, 3)


def test_comparison_reads_a_study_back_from_its_file(tmp_path):
    results = study(base=BASE, a=near(-0.05, 1))
    results.save(tmp_path)
    assert compare(Results.read(tmp_path)) == compare(results)


def test_variant_name_of_the_base_may_be_another():
    results = replace(study(one=BASE, two=near(-0.05, 1)), base="two")
    (found,) = compare(results)
    assert (found.name, found.base, found.outcome) == ("one", "two", "worse")
    assert compare(replace(results, variants=[variant("two", BASE)])) == []
