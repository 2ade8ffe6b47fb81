"""CPU workers's step: the pieces of a batch in threads, to the bit what they are one after the other."""

import numpy as np
import pytest
import torch

import anyformer as af
from anyformer.data.dataset import Batch
from anyformer.data.objectives import Objective
from anyformer.train.cpu_workers import CpuWorkers
from anyformer.train.optim import Optimizers
from anyformer.train.train_step import Precision, SpikeGuard, TrainStep
from tests.contract.draw import BASE


def learner(changes, **more):
    model = af.build(af.spec(BASE, changes), dtype=torch.float64).train()
    parts = {"objective": Objective.named("causal")(), "precision": Precision(), "guard": SpikeGuard()}
    return TrainStep(model=model, optimizers=Optimizers(model), **(parts | more))


def batch(step, rows=4, length=12):
    ids_BT = np.random.default_rng(step).integers(37, size=(rows, length))
    counts = np.full(rows, length)
    return Batch({"input_ids": ids_BT, "labels": ids_BT}, step, counts, counts - 1)


@pytest.mark.parametrize("kind", ["t5", "shaw", "xl", "learned", "rope", "alibi"])
def test_crew_step_of_every_kind_of_position_is_the_step_of_one_thread(kind):
    """A gradient may come in another layout than its parameter has (a table that was transposed), and the fused update
    would take it number by number."""
    alone = learner({"position.kind": kind}, micro=2)
    shared = learner({"position.kind": kind})
    with CpuWorkers(2) as workers:
        shared.workers = workers
        for step in range(3):
            for each in (alone, shared):
                each.step(batch(step), seed=0, step=step, factor=1.0)
    other = dict(alone.model.named_parameters())
    wrong = [name for name, p in shared.model.named_parameters() if not torch.equal(p, other[name])]
    assert not wrong


def test_crew_step_of_a_model_that_learns_in_parts_moves_those_only():
    alone, shared = learner({}, micro=2), learner({})
    for each in (alone, shared):
        each.model.decoder.blocks[0].requires_grad_(False)
    before = {name: p.detach().clone() for name, p in shared.model.named_parameters()}
    with CpuWorkers(2) as workers:
        shared.workers = workers
        for each in (alone, shared):
            each.step(batch(0), seed=0, step=0, factor=1.0)
    other = dict(alone.model.named_parameters())
    for name, p in shared.model.named_parameters():
        assert torch.equal(p, other[name]), name
        assert torch.equal(p, before[name]) == name.startswith("decoder.blocks.0."), name
