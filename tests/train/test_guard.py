"""The guard: what is not finite or far out of line is refused, named, and remembered over a resume."""

import json
import math

import pytest
import torch

from anyformer.errors import CheckpointError, TrainingError
from anyformer.train.train_step import ENOUGH, WINDOW, SpikeGuard

NAN, INF = math.nan, math.inf


def judge(guard: SpikeGuard, norm: float, loss: float = 1.0) -> bool:
    return bool(guard.judge(torch.tensor(loss), torch.tensor(norm)))


def settle(guard: SpikeGuard, skipped: bool, step: int = 1, loss: float = 1.0, norm: float = 1.0) -> str:
    return guard.settle(skipped, step=step, loss=loss, norm=norm, where=lambda: "3fa9 (examples 4 and 7)")


@pytest.mark.parametrize("spike", [None, 10.0])
@pytest.mark.parametrize(("loss", "norm"), [(NAN, 1.0), (INF, 1.0), (-INF, 1.0), (1.0, NAN), (1.0, INF), (NAN, NAN)])
def test_guard_refuses_what_is_not_finite(spike, loss, norm):
    guard = SpikeGuard(spike=spike)
    assert judge(guard, norm, loss)
    assert not judge(guard, 1.0)
    assert guard.state()["norms"] == ([] if spike is None else [1.0])


def test_guard_refuses_spikes_once_it_knows_what_is_usual():
    guard = SpikeGuard(spike=10.0)
    assert not any(judge(guard, 1.0 + i / 100) for i in range(ENOUGH - 1))
    assert not judge(guard, 50.0), "too few to tell"
    assert judge(guard, 12.0)
    assert not judge(guard, 10.5), "the median is above 1.06"
    assert judge(guard, 12.0), "what was refused is not usual"
    assert not any(judge(guard, 5.0) for _ in range(WINDOW))
    assert not judge(guard, 12.0), "what is usual has changed"
    assert len(guard.state()["norms"]) == WINDOW
    guard.enter(0)
    assert judge(guard, 1e6)
    guard.enter(1)
    assert not judge(guard, 1e6)


def test_guard_without_a_spike_lets_every_finite_norm_through():
    guard = SpikeGuard()
    assert not any(judge(guard, 10.0**i) for i in range(30))


def test_guard_goes_on_after_a_restore_as_if_nothing_had_been():
    norms = [abs(math.sin(i) * 3) + 0.1 * (i % 7 == 0) * i for i in range(200)]
    straight = SpikeGuard(spike=1.5)
    expected = [judge(straight, norm) for norm in norms]
    assert any(expected)
    assert not all(expected)
    for cut in (0, 3, ENOUGH, WINDOW, 130):
        first = SpikeGuard(spike=1.5)
        found = [judge(first, norm) for norm in norms[:cut]]
        for skipped in found[-2:]:
            settle(first, skipped)
        second = SpikeGuard(spike=1.5)
        second.restore(json.loads(json.dumps(first.state())))
        assert second.state() == first.state()
        assert found + [judge(second, norm) for norm in norms[cut:]] == expected


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"skipped": 0, "in_a_row": 0, "stage": 0, "count": 3, "norms": [1.0]},
        {"skipped": 0, "in_a_row": 0, "stage": 0, "count": 1, "norms": [NAN]},
        {"skipped": -1, "in_a_row": 0, "stage": 0, "count": 0, "norms": []},
        {"skipped": 0, "in_a_row": 0, "stage": 0, "count": 1, "norms": ["x"]},
    ],
)
def test_guard_refuses_a_state_that_does_not_hold_together(state):
    with pytest.raises(CheckpointError, match="guard: its state"):
        SpikeGuard().restore(state)


def test_guard_names_the_step_and_the_batch():
    guard = SpikeGuard(spike=4.0)
    assert settle(guard, False) == ""
    told = settle(guard, True, step=12, loss=NAN)
    assert told == "step 12: the loss was nan on batch 3fa9 (examples 4 and 7); the weights were left as they were"
    assert "norm was inf (loss 2)" in settle(guard, True, loss=2.0, norm=INF)
    assert "norm, 80, was more than 4.0 times the usual one" in settle(guard, True, norm=80.0)
    assert (guard.skipped, guard.in_a_row) == (3, 3)
    settle(guard, False)
    assert (guard.skipped, guard.in_a_row) == (3, 0)


def test_guard_ends_a_run_after_its_patience_or_at_once():
    guard = SpikeGuard(patience=3)
    settle(guard, True)
    settle(guard, True)
    with pytest.raises(TrainingError, match=r"step 9: the loss was inf on batch 3fa9.*3 steps in a row"):
        settle(guard, True, step=9, loss=INF)
    with pytest.raises(TrainingError, match=r"step 5: the loss was nan on batch 3fa9.*guard.action is stop"):
        settle(SpikeGuard("stop"), True, step=5, loss=NAN)
