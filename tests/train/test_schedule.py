"""Schedules: closed forms, and the ones of transformers where it has them."""

import math

import pytest

from anyformer.optim.schedule import Constant, Cosine, InverseSqrt, Linear, Schedule, Trapezoid

TOTAL, WARMUP = 50, 8


@pytest.mark.parametrize("kind", Schedule.kinds())
@pytest.mark.parametrize("total", [1, 7, 1000])
def test_schedule_stays_between_zero_and_its_peak_and_wastes_no_step(kind, total):
    made = Schedule.named(kind)()
    factors = [made.factor(step, total) for step in range(total)]
    assert all(0 < factor <= 1 for factor in factors)
    assert all(0 <= made.at(i / 100) <= 1 for i in range(101))
    assert list(made.problems()) == []


@pytest.mark.parametrize("kind", Schedule.kinds())
def test_schedule_warms_up_in_a_straight_line_by_share_or_by_steps(kind):
    leaf = Schedule.named(kind)
    share, steps = leaf(warmup=0.1), leaf(warmup=100.0)
    for made in (share, steps):
        assert [made.factor(step, 1000) for step in (0, 49, 99)] == pytest.approx([0.01, 0.5, 1.0])
    assert [n for n, _ in leaf(warmup=-1.0).problems()] == ["warmup"]


def theirs(name, *args, **kwargs):
    """The factors of one of transformers' schedules."""
    import torch
    from transformers import optimization

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = getattr(optimization, name)(optimizer, *args, **kwargs)
    return schedule.lr_lambdas[0]


@pytest.mark.parametrize(
    ("made", "name", "kwargs"),
    [
        (Cosine(warmup=WARMUP, floor=0.0), "get_cosine_schedule_with_warmup", {"num_training_steps": TOTAL}),
        (Linear(warmup=WARMUP), "get_linear_schedule_with_warmup", {"num_training_steps": TOTAL}),
        (Constant(warmup=WARMUP), "get_constant_schedule_with_warmup", {}),
        (
            Cosine(warmup=WARMUP, floor=0.2),
            "get_cosine_with_min_lr_schedule_with_warmup",
            {"num_training_steps": TOTAL, "min_lr_rate": 0.2},
        ),
        (
            Trapezoid(warmup=WARMUP, decay=20.0),
            "get_wsd_schedule",
            {"num_decay_steps": 20, "num_training_steps": TOTAL, "decay_type": "linear"},
        ),
    ],
    ids=lambda value: value.kind if isinstance(value, Schedule) else None,
)
def test_schedule_is_the_one_of_transformers_but_for_its_wasted_first_step(made, name, kwargs):
    oracle = theirs(name, num_warmup_steps=WARMUP, **kwargs)
    for step in range(TOTAL):
        # Their warm-up begins at 0; after it both count alike.
        wanted = oracle(step + 1 if step < WARMUP else step)
        assert made.factor(step, TOTAL) == pytest.approx(wanted, rel=1e-12)


def test_inverse_sqrt_is_the_rule_of_2017_over_its_peak():
    width, warmup = 512, 4000
    made = InverseSqrt()
    for step in (0, 1, 3998, 3999, 4000, 99_999):
        s = step + 1
        rule = width**-0.5 * min(s**-0.5, s * warmup**-1.5)
        assert made.factor(step, 100_000) == pytest.approx(rule / (width * warmup) ** -0.5, rel=1e-12)
    oracle = theirs("get_inverse_sqrt_schedule", num_warmup_steps=8)
    assert InverseSqrt(warmup=8.0).factor(30, 50) == pytest.approx(oracle(31), rel=1e-12)


def test_cosine_ends_at_its_floor():
    made = Cosine(warmup=0.0, floor=0.25)
    assert [made.factor(step, 100) for step in (0, 50, 100)] == pytest.approx([1.0, 0.625, 0.25])
    assert made.factor(25, 100) == pytest.approx(0.25 + 0.75 * (1 + math.cos(math.pi / 4)) / 2)


def test_trapezoid_by_the_clock_rises_stays_and_falls_to_zero():
    schedule = Trapezoid(warmup=0.1, decay=0.4)
    assert schedule.at(0.0) == pytest.approx(0.01)
    assert schedule.at(0.05) == pytest.approx(0.51)
    assert schedule.at(0.1) == schedule.at(0.5) == 1.0
    assert schedule.at(0.8) == pytest.approx(0.5)
    assert schedule.at(1.0) == 0.0
    assert Trapezoid(warmup=0.0, decay=0.0).at(0.5) == 1.0


@pytest.mark.parametrize("leaf", [Cosine, Linear, Trapezoid])
def test_schedule_names_a_floor_that_is_no_share(leaf):
    assert [name for name, _ in leaf(floor=1.5).problems()] == ["floor"]


def test_trapezoid_names_a_decay_below_zero():
    assert list(Trapezoid(decay=-0.5).problems()) == [("decay", "-0.5 is not at least 0")]
