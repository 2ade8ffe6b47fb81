"""Steps by replay: the learner's own on a CUDA device; and a reason where they can't be recorded."""

import numpy as np
import pytest
import torch

import anyformer as af
from anyformer.data.batch import Batch
from anyformer.data.objectives import Objective
from anyformer.errors import CapabilityError
from anyformer.train.captured import Captured, why_not
from anyformer.train.guard import Guard
from anyformer.train.learner import Learner
from anyformer.train.optim import Optimizers
from anyformer.train.precision import Precision
from anyformer.train.team import Team
from tests.contract.draw import BASE
from tests.tolerances import assert_close

SPEC = af.spec(BASE | {"vocab": 16, "context": 16})
CUDA = torch.device("cuda")


def learner(device="cpu", spec=SPEC, **more):
    model = af.build(spec, device=device).train()
    parts = {"objective": Objective.named("causal")(), "precision": Precision(), "guard": Guard()}
    return Learner(model=model, optimizers=Optimizers(model), **(parts | more))


def batch(step, length=16):
    ids_BT = np.random.default_rng(step).integers(16, size=(4, length))
    counts = np.full(4, length)
    return Batch({"input_ids": ids_BT, "labels": ids_BT}, step, counts, counts - 1)


def test_captured_step_on_a_cpu_is_refused_with_the_way_out():
    with pytest.raises(CapabilityError, match=r"compute\.capture: only steps on a CUDA device .* on cpu; .* = false"):
        Captured(learner()).step(batch(0), seed=0, step=0, factor=1.0)


def test_captured_step_names_why_it_can_not_be_recorded():
    assert "there are 2; run one" in why_not(learner(team=Team(world=2)), batch(0), CUDA)
    assert "leave compute.micro (2) out" in why_not(learner(micro=2), batch(0), CUDA)
    rolled = SPEC.vary({"block.wiring": "reversible", "block.dropout": 0.1})
    assert "leave dropout out" in why_not(learner(spec=rolled), batch(0), CUDA)
    assert why_not(learner(micro=4), batch(0), CUDA) == ""


@pytest.mark.skipif(not torch.cuda.is_available(), reason="graphs are recorded on CUDA only")
def test_captured_steps_are_the_steps_of_the_learner_and_repeat_to_the_bit():
    spec = SPEC.vary({"block.dropout": 0.2})
    plain, *others = (learner("cuda", spec) for _ in range(3))
    replays = [Captured(each) for each in others]
    # Two shapes, weights that are not finite from step 3 on, and a factor that changes.
    for step, length in enumerate([16, 16, 12, 16, 12]):
        if step == 3:
            for each in others:
                with torch.no_grad():
                    each.model.get_parameter("decoder.final_norm.weight").fill_(float("nan"))
        before = [t.clone() for t in (*others[0].model.parameters(), *others[0].optimizers.state().values())]
        found = [each.step(batch(step, length), seed=3, step=step, factor=0.5**step).read() for each in replays]
        assert [each.skipped for each in found] == [step >= 3] * 2
        after = [[*each.model.parameters(), *each.optimizers.state().values()] for each in others]
        assert all(torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0)) for a, b in zip(*after, strict=True))
        if step >= 3:
            assert all(torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0)) for a, b in zip(before, after[0], strict=True))
        else:
            assert found[0] == found[1]
        if step == 0:
            # The same drops, so the same loss; only the rate is a float32 here, and a double there.
            assert plain.step(batch(0), seed=3, step=0, factor=1.0).read().loss == found[0].loss
            for a, b in zip(plain.model.parameters(), others[0].model.parameters(), strict=True):
                assert_close("single", a, b)
