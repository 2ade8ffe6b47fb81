"""The best learning rate over widths, on losses whose optimum is known."""

import collections
import math
import re

import numpy as np
import pytest

import anyformer as af
from anyformer.errors import InputError
from anyformer.lab.scaling.lr_transfer import TransferPoint, obstacles, transfer

WIDTHS = (64, 128, 256, 512)


def runs(power, *, seeds=3, widths=WIDTHS, noise=0.004, rates=7, number=0, best=0.008, lean=0.3, diverges=math.inf):
    """Losses with an optimum at `best` (width / 128)^power, steeper towards large rates; infinite from `diverges` on."""
    draw, found = np.random.default_rng(number), []
    for width in widths:
        for rate in (0.008 * 2.0 ** (i - rates // 2) for i in range(rates)):
            x = math.log(rate / (best * (width / 128) ** power))
            loss = 3 + 0.03 * x * x * (1 + lean * math.tanh(x))
            for seed in range(seeds):
                noisy = loss + noise * draw.standard_normal()
                found.append(
                    TransferPoint(width=width, rate=rate, loss=noisy if rate < diverges else math.inf, seed=seed)
                )
    return found


@pytest.mark.parametrize(("power", "verdict"), [(0.0, "holds"), (-0.5, "does not hold"), (-1.0, "does not hold")])
def test_verdict_and_exponent_are_those_of_the_truth(power, verdict):
    verdicts, covered = collections.Counter(), 0
    for number in range(50):
        found = transfer(runs(power, number=number))
        verdicts[found.verdict] += 1
        covered += found.exponent[1] <= power <= found.exponent[2]
    assert verdicts[verdict] >= 48, verdicts
    assert covered >= 43


def test_best_rate_of_each_width_has_an_interval_that_holds_it():
    covered = 0
    for number in range(100):
        found = transfer(runs(-0.5, lean=0.0, number=number)).best
        covered += sum(each.low <= 0.008 * (each.width / 128) ** -0.5 <= each.high for each in found)
    assert covered >= 340
    assert [each.width for each in found] == list(WIDTHS)
    assert all(each.high < 2 * each.low for each in found)
    assert found[0].rate == pytest.approx(0.008 * 2**0.5, rel=0.1)


def test_words_say_each_rate_and_no_more_than_was_tried():
    told = transfer(runs(0.0)).words
    assert re.match(r"the best learning rate is 0\.00\d+ \(0\.00\d+ to 0\.00\d+\) at width 64, .* at width 512; ", told)
    assert "within the widths that were tried it holds" in told
    assert "it moves with the width, so it does not hold" in transfer(runs(-1.0)).words


def test_noise_that_hides_the_optimum_is_not_judged():
    found = transfer(runs(0.0, seeds=2, noise=0.08, widths=(64, 128)))
    assert found.verdict == "can't tell"
    assert "give more seeds" in found.words


def test_single_seed_takes_chance_from_the_distance_to_the_parabola():
    found = transfer(runs(-1.0, seeds=1, rates=9))
    assert found.verdict == "does not hold"
    none = transfer(runs(-0.1, seeds=1, rates=3, lean=0.0))
    assert (none.exponent, none.verdict, none.best[0].low) == (None, "can't tell", None)
    assert "can't be told from one run of each; give more seeds" in none.words


def test_best_rate_at_the_edge_of_what_was_tried_is_not_judged():
    found = transfer(runs(-1.0, best=0.004, rates=5))
    assert [each.edge for each in found.best] == [False, False, True, True]
    assert found.verdict == "can't tell"
    assert "the best of width 256, 512 is at the edge; try rates beyond it" in found.words


def test_best_rate_below_rates_that_diverge_is_not_at_the_edge():
    found = transfer(runs(0.0, diverges=0.01))
    assert not any(each.edge for each in found.best)
    assert found.verdict == "holds"
    assert all(each.rate == pytest.approx(0.008) for each in found.best)


def test_runs_that_tell_nothing_are_refused():
    with pytest.raises(InputError, match=r"there are runs of 1 width\(s\), and it takes 2"):
        transfer(runs(0.0, widths=(64,)))
    with pytest.raises(InputError, match="width 64 has 2 rates with a finite loss, and a parabola takes 3"):
        transfer(runs(0.0, diverges=0.003))
    with pytest.raises(InputError, match="width and rate are not both above 0"):
        transfer([*runs(0.0), TransferPoint(width=64, rate=0.0, loss=1.0)])


def test_transfer_is_the_same_each_time():
    assert transfer(runs(-0.3)) == transfer(runs(-0.3))


SPEC = af.spec({
    "vocab": 512, "width": 256, "depth": 8, "context": 64, "attention": {"heads": 8, "kv_heads": 4},
    "ffn": {"kind": "swiglu", "width": 768}, "head": {"kind": "lm", "tied": False},
})  # fmt: skip


@pytest.mark.parametrize("kind", ["glorot", "fan_in", "small", "t5"])
def test_spec_that_widths_agree_with_has_no_obstacle(kind):
    assert obstacles(SPEC.vary({"init.kind": kind})) == []


def test_obstacles_name_a_fixed_start_and_a_tied_head():
    (init,) = obstacles(SPEC.vary({"init.kind": "normal"}))
    assert init.startswith("init.kind: 'normal' starts matrices with 1 times the standard deviation at twice the width")
    (tied,) = obstacles(SPEC.vary({"head.tied": True}))
    assert tied.startswith("head.tied: logits of a tied head move faster in a wider model; untie it")
    assert obstacles(SPEC.vary({"head.tied": True, "head.scale": "64/width"})) == []
    assert len(obstacles(SPEC.vary({"init.kind": "gpt2", "head.tied": True}))) == 2
