"""Comparisons on pools of runs of which it is known what differs."""

import numpy as np
import pytest

from anyformer.errors import InputError
from anyformer.lab.statistics.calibration import null_study, planted_study

NORMAL = np.random.default_rng(0).normal(size=100).tolist()
HEAVY = np.random.default_rng(1).standard_t(4, size=100).tolist()
OWN = 2
"""`pool_below` with which every comparison has its own variance."""


@pytest.mark.parametrize("values", [NORMAL, HEAVY], ids=["normal", "heavy tails"])
@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_null_study_claims_something_in_few_redraws(values, seeds):
    assert null_study(values, seeds=seeds) <= 0.08


def test_null_study_at_three_seeds_with_their_own_variance_claims_in_few_redraws():
    assert null_study(NORMAL, seeds=3, pool_below=OWN) <= 0.08


@pytest.mark.parametrize(("values", "least"), [(NORMAL, 0.9), (HEAVY, 0.85)], ids=["normal", "heavy tails"])
def test_planted_study_of_five_seeds_finds_five_sd(values, least):
    assert planted_study(values) >= least


@pytest.mark.parametrize("values", [NORMAL, HEAVY], ids=["normal", "heavy tails"])
def test_planted_study_of_three_seeds_finds_five_sd_only_with_pooled_variance(values):
    assert 0.1 <= planted_study(values, seeds=3, pool_below=OWN) <= 0.35
    assert planted_study(values, seeds=3) >= 0.85


def test_planted_study_of_no_shift_finds_next_to_nothing():
    assert planted_study(NORMAL, shift_sds=0.0) <= 0.03


def test_study_of_too_few_values_is_refused():
    with pytest.raises(InputError, match="8 names with 5 disjoint seeds each can't be drawn from 39 values"):
        null_study(NORMAL[:39])
