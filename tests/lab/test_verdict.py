"""The verdict in words: it says what was found, what was not, and how it was judged."""

from dataclasses import replace

import numpy as np
import pytest

from anyformer.lab.results import Claim
from anyformer.lab.statistics.comparison import compare, judge
from anyformer.lab.statistics.estimates import power
from anyformer.lab.statistics.verdict import amount, judgement_words, metric_words, verdict
from tests.lab.studies import speed_study, study

BASE = [3.20, 3.22, 3.19, 3.21, 3.23]


def near(shift: float, seed: int, n: int = 5, sd: float = 0.005) -> list[float]:
    return (np.array(BASE[:n]) + shift + sd * np.random.default_rng(seed).normal(size=n)).tolist()


def test_verdict_of_five_seeds_names_better_worse_and_undecided():
    results = study(
        base=BASE, a=near(-0.05, 1), b=near(0.0, 3), c=near(0.05, 2), d=BASE, e=[3.0, "diverged", *BASE[:3]]
    )
    said = verdict(results)
    a = compare(results)[0]
    assert said[0] == "Held-out loss over 5 seeds; lower is better."
    assert said[1].startswith(f"Better than base: a by {abs(a.difference):.4f} (")
    assert f"{abs(a.share):.2%} of base's value, {abs(a.sds):.1f} sd between seeds" in said[1]
    assert said[2].startswith("Worse than base: c by 0.0")
    assert said[3] == "Can't be told apart from base: b."
    assert said[4].startswith("The smallest difference that this study would have detected with 80% power is about 0.0")
    assert said[5] == "Identical to base in every seed: d."
    assert said[6] == "Not judged: e diverged in 1 of 5 seeds, base lost no run."
    assert said[7].startswith("Each comparison is judged by the variance of its own paired differences; p values are ")
    assert "corrected for 3 comparisons (Holm)" in said[7]
    assert len(said) == 8


def test_verdict_gives_the_simultaneous_interval_of_a_difference():
    results = study(base=BASE, a=near(-0.05, 1), b=near(0.0, 3))
    low, high = compare(results)[0].simultaneous
    said = next(each for each in verdict(results) if each.startswith("Better"))
    assert f"({-high:.4f} to {-low:.4f};" in said


def test_verdict_with_nothing_to_claim_claims_nothing():
    said = verdict(study(base=BASE, a=near(0.0, 3), b=near(0.001, 4)))
    assert not any(each.startswith(("Better", "Worse")) for each in said)
    assert "Can't be told apart from base: a, b." in said


def test_verdict_of_three_seeds_says_that_variance_is_pooled_and_what_three_seeds_find():
    said = verdict(study(base=BASE[:3], **{f"v{i}": near(0.0, i, 3) for i in range(7)}))
    assert said[-2].startswith(
        "With fewer than five seeds, every comparison is judged by the variance pooled over 8 variants "
        "(14 degrees of freedom), which assumes that they spread alike"
    )
    share = power(5.0, seeds=3, comparisons=7)
    assert 0.1 < share < 0.35
    assert said[-1] == (
        f"Three seeds with their own variance would find only {share:.0%} of differences of five standard deviations "
        "between seeds among 7 comparisons; use five seeds or more."
    )


def test_verdict_of_one_seed_judges_nothing():
    said = verdict(study(base=[3.0], a=[1.0], b=[5.0]))
    assert said[0] == "Held-out loss over 1 seed; lower is better."
    assert said[1] == "Nothing is judged: one seed shows no spread to judge a difference by."
    assert said[2].startswith(
        f"Even three seeds with their own variance would find {power(5, seeds=3, comparisons=2):.0%}"
    )


def test_verdict_of_lost_runs_alone_speaks_of_no_number_of_seeds():
    said = verdict(study(base=BASE, a=[3.0, 3.1, "diverged", "diverged", "diverged"]))
    assert said == [
        "Held-out loss; lower is better.",
        "Nothing is judged: a diverged in 3 of 5 seeds, base lost no run.",
    ]


def test_verdict_of_four_seeds_pools_without_the_warning_of_three():
    said = verdict(study(base=BASE[:4], a=near(0.0, 1, 4), b=near(0.0, 2, 4)))
    assert said[-1].startswith("With fewer than five seeds, every comparison is judged by the variance pooled over 3 ")


def test_verdict_without_a_base_or_others_says_so():
    assert verdict(study(a=BASE)) == ["The study has no variant base to compare with: nothing is judged."]
    assert verdict(study(base=BASE)) == ["There is no variant beside base: nothing is judged."]


def test_verdict_of_speeds_is_in_percent_and_rounds():
    base = np.array([1000.0, 1020.0, 990.0, 1005.0, 1010.0])
    said = verdict(speed_study(base=base.tolist(), a=(base * [1.1, 1.11, 1.09, 1.1, 1.105]).tolist()))
    assert said[0] == "Train tokens per second over 5 rounds; higher is better."
    assert said[1].startswith("Better than base: a by 10.")
    assert "% (" in said[1]
    assert "one comparison, with an interval of 95%" in said[-1]


@pytest.mark.parametrize(
    ("better", "margin", "expected"),
    [
        ("a", None, "Agrees: the held-out loss of a is lower than that of base by 0.048"),
        ("c", None, "Differs: the held-out loss of c is higher than that of base by 0.048"),
        ("b", None, "Can't tell: b - base is -0.0"),
        ("b", 0.02, "Agrees: b - base is -0.0"),
        ("c", 0.02, "Differs: c - base is +0.048"),
        ("b", 0.001, "Can't tell: b - base is -0.0"),
        ("e", None, "Differs: e diverged in 3 of 5 seeds, base lost no run."),
        ("none", None, "Can't tell: the study has no variant none."),
    ],
)
def test_judgement_words_say_what_was_found(better, margin, expected):
    lost = [3.0, 3.0, "diverged", "diverged", "diverged"]
    results = study(base=BASE, a=near(-0.05, 1), b=near(0.0, 3), c=near(0.05, 2), e=lost)
    claims = [Claim(claim="made up", paper="none", better=better, margin=margin)]
    assert judgement_words(judge(replace(results, claims=claims))[0]).startswith(expected)


def test_judgement_words_that_cannot_tell_name_what_could_have_been_seen():
    results = study([Claim(claim="made up", paper="none", better="b")], base=BASE, b=near(0.0, 3))
    (found,) = judge(results)
    assert (
        f"a difference of about {amount(found.smallest, found.smallest)} would have been detected"
        in judgement_words(found)
    )


def test_amounts_have_the_digits_that_their_precision_warrants():
    assert amount(3.214567, 0.0123) == "3.215"
    assert amount(-12345.6, 340.0, sign=True) == "-12,346"
    assert amount(0.0832, 0.0121, speed=True, sign=True) == "+8.3%"
    assert amount(1.5, None) == "1.5000"
    assert metric_words("bits_per_byte") == "bits per byte"
