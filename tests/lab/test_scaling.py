"""Scaling laws on ladders whose truth is known: numbers, coverage of intervals, and words that claim no more."""

import math
import re

import numpy as np
import pytest

from anyformer.errors import InputError
from anyformer.lab.scaling.laws import LEVEL, Point, crossing, fit, rungs_of, still_wins

FIRST = 1e15
LAW = (1.7, 2.0, 0.3)
"""E, A at the smallest size, alpha."""


def truth(law, compute):
    e, a, alpha = law
    return e + a * (compute / FIRST) ** -alpha


def ladder(law=LAW, sizes=5, seeds=3, ratio=4.0, noise=0.0, number=0, shared=0.0, other=1.0):
    """Runs around a law; `shared` is how much of their noise depends on the seed alone, as in another ladder."""
    common, own = np.random.default_rng([number, 0]), np.random.default_rng([number, int(100 * other)])
    found = []
    for i in range(sizes):
        for seed in range(seeds):
            compute = FIRST * ratio**i * other
            off = math.sqrt(shared) * common.standard_normal() + math.sqrt(1 - shared) * own.standard_normal()
            found.append(Point(compute=compute, loss=truth(law, compute) * math.exp(noise * off), seed=seed))
    return found


@pytest.mark.parametrize("law", [LAW, (2.5, 1.0, 0.5), (0.5, 3.0, 0.12), (1.0, 4.0, 1.2)])
def test_fit_of_runs_without_noise_is_the_law(law):
    found = fit(ladder(law))
    assert found.told
    assert found.irreducible == pytest.approx(law[0], abs=0.01)
    assert found.exponent == pytest.approx(law[2], abs=2e-3)
    assert found.coefficient == pytest.approx(law[1] * FIRST ** law[2], rel=0.1)
    for compute in (FIRST, 1e18, 1e20):
        mean, low, high = found.predict(compute)
        assert mean == pytest.approx(truth(law, compute), rel=2e-3)
        assert low <= mean <= high


def test_fit_is_a_plain_power_law_where_no_irreducible_loss_can_be_told():
    found = fit(ladder((0.0, 4.0, 0.1), noise=0.004, number=1))
    assert not found.told
    assert found.irreducible == 0.0
    assert found.exponent == pytest.approx(0.1, abs=0.005)
    assert "no irreducible loss can be told from 0" in found.words
    # That it can't be told is no proof that there is none: what the law says far away has to allow for one.
    assert found.intervals["irreducible"][1] > 0.3
    mean, _, high = found.predict(found.largest * 100)
    assert high - mean > 0.02


def test_fit_is_the_same_each_time_and_in_any_order():
    points = ladder(noise=0.005)
    first, again = fit(points), fit(points[::-1])
    assert first.predict(1e19) == again.predict(1e19)
    assert first.intervals == again.intervals
    assert fit(points) == first


@pytest.mark.parametrize(
    "case",
    [{}, {"sizes": 4, "seeds": 2, "ratio": 3.0}, {"seeds": 1}, {"law": (0.0, 4.0, 0.1)}, {"law": (1.0, 3.0, 0.15)}],
    ids=["bent", "short", "one seed", "straight", "nearly straight"],
)
def test_interval_of_the_extrapolation_holds_the_truth_as_often_as_it_says(case):
    """Of 100 ladders, at 10 times their largest compute."""
    law, covered, alphas = case.get("law", LAW), 0, 0
    for number in range(100):
        found = fit(ladder(**case, noise=0.005, number=number))
        at = 10 * found.largest
        _, low, high = found.predict(at)
        covered += low <= truth(law, at) <= high
        alphas += found.intervals["exponent"][0] <= law[2] <= found.intervals["exponent"][1]
    assert covered >= 85
    assert alphas >= 85
    # An interval of everything would hold the truth too.
    assert high - low < 0.3 * truth(law, at)
    assert LEVEL == 0.95


def test_interval_grows_with_the_distance_and_the_noise():
    quiet, loud = fit(ladder(noise=0.002, number=3)), fit(ladder(noise=0.01, number=3))

    def width(found, compute):
        _, low, high = found.predict(compute)
        return high - low

    assert width(quiet, 1e17) < width(quiet, 1e19) < width(quiet, 1e21)
    assert width(quiet, 1e19) < width(loud, 1e19)
    assert quiet.scatter == pytest.approx(0.002, rel=0.5)


def test_one_run_far_off_moves_the_law_little():
    points = ladder(seeds=5, noise=0.003)
    spoilt = [*points[:-1], Point(compute=points[-1].compute, loss=2 * points[-1].loss, seed=points[-1].seed)]
    plain, kept = fit(points), fit(spoilt)
    assert kept.rungs[-1].loss == pytest.approx(plain.rungs[-1].loss, rel=0.005)
    # Counted in full it would add 15 percent.
    assert kept.predict(kept.largest)[0] == pytest.approx(plain.predict(plain.largest)[0], rel=0.01)


def test_sizes_off_the_law_widen_its_interval_and_are_told():
    points = ladder(sizes=6, noise=0.001)
    off = [
        Point(compute=p.compute, loss=p.loss * (1.03 if 1e16 < p.compute < 1e17 else 1.0), seed=p.seed) for p in points
    ]
    plain, bent = fit(points), fit(off)
    assert plain.warnings == ()
    assert "sizes are further from the law than seeds are from each other" in bent.words
    assert np.ptp(bent.predict(1e20)[1:]) > 5 * np.ptp(plain.predict(1e20)[1:])
    assert "each size has one run" in fit(ladder(seeds=1, noise=0.001)).words


@pytest.mark.parametrize(
    ("points", "words"),
    [
        (ladder(sizes=3), "there are 3 sizes, and it takes 4 to tell a law from a line; add smaller ones"),
        ([], "there are 0 sizes"),
        (
            ladder(sizes=5, ratio=1.3),
            "the largest size has 2.86 times the compute of the smallest, and it takes 4 times",
        ),
        (
            ladder((0.5, 1.0, -0.1)),
            "the loss does not fall with compute (1.5 at the smallest size, 2.241 at the largest)",
        ),
    ],
)
def test_ladder_that_supports_no_extrapolation_is_refused_with_the_reason(points, words):
    with pytest.raises(InputError, match=re.escape(f"no law can be fitted: {words}")):
        fit(points)


@pytest.mark.parametrize(
    ("point", "words"),
    [
        (Point(compute=0.0, loss=1.0), "compute is not above 0 and finite"),
        (Point(compute=1.0, loss=math.inf), "loss is not above 0 and finite; leave out runs that diverged"),
        (Point(compute=FIRST, loss=1.0), "there is another run of seed 0 with the same compute"),
    ],
)
def test_point_that_cannot_be_is_named(point, words):
    with pytest.raises(InputError, match=re.escape(words)):
        rungs_of([*ladder(), point])


def test_prediction_for_no_compute_is_refused():
    with pytest.raises(InputError, match=r"compute -1\.0 is not above 0"):
        fit(ladder()).predict(-1.0)


WORSE_LATER = (1.8, 1.75, 0.3)
"""Ahead of LAW at small sizes, behind it at large ones."""


def test_choice_that_wins_at_every_size_and_beyond_is_expected_to_win():
    found = still_wins(ladder(noise=0.001, shared=0.9), ladder((1.6, 1.9, 0.3), noise=0.001, shared=0.9), at=1e19)
    assert all(rung.measured > 0 and rung.fitted[1] > 0 for rung in found.rungs)
    mean, low, high = found.at_end
    assert low < truth(LAW, 1e19) - truth((1.6, 1.9, 0.3), 1e19) < high
    assert low > 0
    assert found.crossing is None
    assert "the other has the lower loss at all of 5 sizes" in found.words
    assert f"ahead by {mean:.4f} in loss" in found.words
    assert "it is expected to win there, if both laws hold that far" in found.words


def test_choice_that_wins_small_and_loses_large_is_told_with_the_crossing():
    base, other = (ladder(law, noise=2e-4, shared=0.9) for law in (LAW, WORSE_LATER))
    found = still_wins(base, other, at=1e19, name="mqa")
    assert [rung.measured > 0 for rung in found.rungs] == [True, True, True, False, False]
    where = FIRST * (0.25 / 0.1) ** (1 / 0.3)
    assert found.crossing == pytest.approx(where, rel=0.2)
    assert found.at_end[2] < 0
    assert found.words.startswith("mqa has the lower loss at 3 of 5 sizes")
    assert "behind by" in found.words
    assert "it is expected to lose there" in found.words
    assert crossing(fit(base), fit(other), 2e15) is None


def test_difference_within_chance_is_not_called_a_win():
    found = still_wins(ladder(noise=0.01, number=1), ladder(noise=0.01, number=2, other=1.01), at=1e19)
    assert found.at_end[1] < 0 < found.at_end[2]
    assert "whether it wins there can't be told" in found.words
    assert "expected" not in found.words


def test_ladders_too_short_for_a_law_are_compared_where_they_were_measured():
    found = still_wins(ladder(sizes=3), ladder((1.6, 2.0, 0.3), sizes=3), at=1e19)
    assert found.at_end is None
    assert [rung.fitted for rung in found.rungs] == [None] * 3
    assert [rung.measured for rung in found.rungs] == pytest.approx([0.1] * 3)
    assert "at all of 3 sizes; nothing can be said about 1e+19 FLOPs: there are 3 sizes" in found.words


def test_place_further_off_than_the_ladder_is_long_is_called_a_guess():
    base, other = ladder(noise=0.001), ladder((1.6, 1.9, 0.3), noise=0.001)
    assert "no more than a guess" in still_wins(base, other, at=1e21).words
    assert "no more than a guess" not in still_wins(base, other, at=1e19).words
    assert "(within the ladder)" in still_wins(base, other, at=1e16).words


def test_ladders_of_other_sizes_are_refused():
    with pytest.raises(InputError, match=r"the ladders have 5 and 4 sizes; compare ladders of the same sizes"):
        still_wins(ladder(), ladder(sizes=4), at=1e19)
    with pytest.raises(InputError, match=r"at: compute nan is not above 0"):
        still_wins(ladder(), ladder(), at=math.nan)


def test_interval_of_the_advantage_holds_the_truth_and_gains_by_common_seeds():
    law, widths = (1.65, 1.95, 0.3), {}
    for shared in (0.0, 0.95):
        covered, widths[shared] = 0, []
        for number in range(60):
            base = ladder(noise=0.005, number=number, shared=shared)
            found = still_wins(base, ladder(law, noise=0.005, number=number, shared=shared, other=1.02), at=1e18)
            _, low, high = found.at_end
            covered += low <= truth(LAW, 1e18) - truth(law, 1e18) <= high
            widths[shared].append(high - low)
        assert covered >= 51
    assert np.median(widths[0.95]) < 0.5 * np.median(widths[0.0])
