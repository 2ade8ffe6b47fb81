"""Matching by time, on a made-up machine: steps and sizes take as long as the base, through noise and slow moments."""

import random

import pytest

from anyformer.errors import InputError
from anyformer.lab.time_match import match_time
from anyformer.lab.variants import Variant
from tests.lab.small_study import study_of, variants_of, write_base

ROUNDS = 5
STEPS = {"stages.steps": 2000}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return write_base(tmp_path_factory.mktemp("time"))


def seconds(variant: Variant) -> float:
    """What a step truly takes: a launch and the arithmetic."""
    return 1e-3 + variant.train_flops / variant.run.config.steps * 1e-9


class Machine:
    """Measures in rounds that take turns; each round is slower or faster than the last, and every number noisy."""

    def __init__(self, noise: float = 0.0, drift: float = 0.0, bias: float = 0.0) -> None:
        self.draw, self.noise, self.drift, self.bias = random.Random(0), noise, drift, bias
        self.asked: list[list[str]] = []

    def __call__(self, some):
        self.asked.append([each.name for each in some])
        found = {each.name: {"step_seconds": list[float](), "reason": ""} for each in some}
        for _ in range(ROUNDS):
            slow = 1 + self.drift * self.draw.random()
            for each in some:
                wrong = self.bias if len(self.asked) == 1 and each.name != "base" else 0.0
                spent = seconds(each) * slow * (1 + self.draw.gauss(0, self.noise) + wrong)
                found[each.name]["step_seconds"].append(spent)
        return found


def off(found: list[Variant]) -> list[float]:
    """How far the true time of each variant is from the base's."""
    total = [seconds(each) * each.run.config.steps for each in found]
    return [each / total[0] - 1 for each in total]


def timed(base: str, machine, set=STEPS, **more):
    study = study_of(base, set=set, measure={}, **more)
    return match_time(variants_of(base, set=set, **{k: v for k, v in more.items() if k != "match"}), study, machine)


AXES = {"depth": [2, 3], "ffn.kind": ["relu"], "lr": [2]}


def test_time_match_by_steps_makes_every_run_as_long_as_the_base(base):
    machine = Machine()
    found, words = timed(base, machine, vary=AXES, match={"to": "time", "by": ["steps"]})
    assert [each.name for each in found] == ["base", "depth=2", "depth=3", "ffn=relu", "lr=2"]
    assert found[0].solved == {}
    assert max(map(abs, off(found))) < 1e-3
    for each, true in zip(found, off(found), strict=True):
        assert each.off_by == pytest.approx(true, abs=1e-9)
    assert found[1].solved == {"steps": found[1].run.config.steps}
    assert found[1].run.config.steps < 2000
    assert found[1].run.spec.depth == 2
    assert "standard error of up to 0.0%" in words
    # Once to choose, once to judge.
    assert machine.asked == [[each.name for each in found]] * 2


def test_time_match_sees_through_slow_moments_that_hit_a_whole_round(base):
    """Rounds differ by half, but variants of one round don't."""
    found, words = timed(base, Machine(drift=0.5), vary=AXES, match={"to": "time", "by": ["steps"]})
    assert max(map(abs, off(found))) < 1e-3
    assert "standard error of up to 0.0%" in words


def test_time_match_with_noise_stays_within_its_tolerance_and_says_how_noisy(base):
    found, words = timed(base, Machine(noise=0.02), vary=AXES, match={"to": "time", "by": ["steps"]})
    assert max(map(abs, off(found))) < 0.03
    assert "standard error of up to 0.0%" not in words


def test_time_match_misled_at_first_measures_again(base):
    """A first measurement that is off by a third is corrected by later ones, as the judgement is by fresh rounds."""
    machine = Machine(bias=0.3)
    match = {"to": "time", "by": ["steps"], "tolerance": 0.15}
    found, _ = timed(base, machine, vary={"depth": [2]}, match=match)
    assert len(machine.asked) == 3
    assert abs(off(found)[1]) < 0.15


def test_time_match_by_a_size_tries_sizes_beside_the_base(base):
    machine = Machine(drift=0.2)
    found, _ = timed(
        base, machine, vary={"depth": [2, 3]}, match={"to": "time", "by": ["ffn.width"]}, set=STEPS | {"ffn.width": 200}
    )
    assert max(map(abs, off(found))) < 0.03
    for each in found[1:]:
        assert 0 < each.solved["ffn.width"] < 200
        assert each.run.config.steps == 2000
    assert all(asked[0] == "base" for asked in machine.asked)


def test_time_match_that_can_not_be_names_the_closest(base):
    with pytest.raises(InputError) as caught:
        timed(base, Machine(), vary={"depth": [8], "lr": [2]}, match={"to": "time", "by": ["ffn.width"]})
    said = str(caught.value)
    assert said.startswith(
        "time can't be matched within 3% of the base by ffn.width, so nothing was begun:\n  depth=8: the closest is "
    )
    assert "lr=2" not in said
    assert "add steps to match.by" in said


def test_time_match_does_not_turn_steps_that_a_variant_is_about(base):
    with pytest.raises(InputError, match=r"stages.steps=1000: the closest is as it is, -50.0%"):
        timed(base, Machine(), vary={"stages.steps": [1000], "depth": [2]}, match={"to": "time", "by": ["steps"]})


def test_time_match_of_what_can_not_be_measured_says_why(base):
    def machine(some):
        return {each.name: {"step_seconds": [], "reason": "out of memory: none left"} for each in some}

    with pytest.raises(InputError, match="base: its time can't be measured: out of memory: none left"):
        timed(base, machine, vary={"depth": [2]}, match={"to": "time", "by": ["steps"]})
