"""Reading a study of scale: laws, other choices, learning rates, from made-up runs with a known law."""

import json
import math

import pytest

from anyformer.lab.plan import Plan, PlannedVariant
from anyformer.lab.results import Results, RunResult, VariantResult
from anyformer.lab.scaling.plot import draw_scaling
from anyformer.lab.scaling.scale_study import read_scaling

SIZES = {32: 1e5, 64: 4e5, 128: 1.6e6, 256: 6.4e6, 512: 25.6e6}
SEEDS = (0, 1, 2)


def noise(*key) -> float:
    return 0.002 * math.sin(97 * hash(key) % 1000)


def law(compute, floor=1.5, coefficient=40.0, exponent=0.12):
    return floor + coefficient * compute**-exponent


def made(rungs) -> tuple[Results, Plan]:
    """Results and plan of (name, width, params, loss), the base being the largest."""
    variants, planned = [], []
    for name, width, params, loss in rungs:
        flops = 120.0 * params**2
        runs = [
            RunResult(seed=seed, status="finished", metrics={"loss": loss * (1 + noise(seed, width))}) for seed in SEEDS
        ]
        variants.append(
            VariantResult(name=name, params=int(params), train_flops=flops, steps=10, tokens_per_step=8, runs=runs)
        )
        config = {"model": {"spec": {"width": width, "depth": 2}}, "optim": {"matrices": 0.01}}
        planned.append(PlannedVariant(
            name=name, slug=name, changes={}, solved={}, off_by=None, config=config, then=None, convert={}, params=int(params),
            train_flops=flops, kv_bytes_per_token=None, steps=10, tokens_per_step=8,
        ))  # fmt: skip
    plan = Plan(study={}, variants=planned, budget="", match="", machine={}, devices=["cpu"], date="")
    return Results(title="made up", variants=variants), plan


def named(params) -> str:
    return {1e5: "100k", 4e5: "400k", 1.6e6: "1.60M", 6.4e6: "6.40M", 25.6e6: "25.6M"}[params]


def ladder(choice="", gain=0.0):
    found = [
        (", ".join(filter(None, (named(params), choice))), width, params, law(120 * params**2) - gain)
        for width, params in SIZES.items()
    ]
    if not choice:
        found[-1] = ("base", *found[-1][1:])
    return [found[-1], *found[:-1]]


def test_scaling_recovers_the_law_and_extends_it_ten_times():
    found = read_scaling(*made(ladder()))
    (base,) = found.ladders
    assert base.fit is not None
    assert base.fit.exponent == pytest.approx(0.12, abs=0.03)
    assert found.at == pytest.approx(10 * 120 * 25.6e6**2)
    value, low, high = base.fit.predict(found.at)
    assert low <= law(found.at) <= high
    assert value == pytest.approx(law(found.at), rel=0.01)
    assert [rung.size for rung in base.rungs] == ["100k", "400k", "1.60M", "6.40M", "25.6M"]
    assert found.transfer is None
    assert "times its largest size) the law expects a loss of" in " ".join(found.words)
    json.dumps(found.to_data())


def test_scaling_of_a_choice_that_is_ahead_everywhere_says_that_it_is_expected_to_win():
    found = read_scaling(*made([*ladder(), *ladder("position=alibi", gain=0.1)]), at=1e18)
    assert [each.choice for each in found.ladders] == ["", "position=alibi"]
    end = found.advantages["position=alibi"].at_end
    assert end is not None
    assert end[0] == pytest.approx(0.1, abs=0.03)
    assert any("position=alibi has the lower loss at all of 5 sizes" in line for line in found.words)


def test_scaling_with_learning_rates_takes_the_best_of_each_size_and_judges_whether_it_moves():
    rungs = []
    for width, params in SIZES.items():
        for rate in (0.25, 0.5, 1.0, 2.0, 4.0):
            # The best factor is 1 at every width.
            loss = law(120 * params**2) + 0.05 * math.log(rate) ** 2
            base = width == 512 and rate == 1
            name = "base" if base else ", ".join(filter(None, (named(params), "" if rate == 1 else f"lr={rate:g}")))
            rungs.append((name, width, params, loss))
    rungs.sort(key=lambda each: each[0] != "base")
    found = read_scaling(*made(rungs))
    assert [rung.rate for rung in found.ladders[0].rungs] == [1.0] * 5
    assert found.transfer is not None
    assert found.transfer.verdict == "holds"
    assert found.transfer.best[0].rate == pytest.approx(0.01, rel=0.1)


def test_scaling_of_few_sizes_says_why_there_is_no_law():
    found = read_scaling(*made(ladder()[:3]))
    assert found.ladders[0].fit is None
    assert "there are 3 sizes, and it takes 4" in found.words[0]


def test_scaling_is_drawn_with_and_without_a_law(tmp_path):
    for count in (5, 2):
        found = read_scaling(*made(ladder()[:count]))
        written = draw_scaling(found, "A $title", tmp_path / str(count))
        assert [place.name for place in written] == ["scaling.png", "scaling.svg"]
        assert all(place.stat().st_size > 5000 for place in written)
        assert "training compute (FLOPs)" in written[1].read_text() or "<path" in written[1].read_text()
