"""Learning rates scaled by width: closed form by role, to the bit where unset, and features that move alike at every width."""

import dataclasses
import functools
import json

import numpy as np
import pytest
import torch
from torch import nn

import anyformer as af
from anyformer.data.dataset import Batch
from anyformer.data.objectives import Objective
from anyformer.errors import CheckpointError
from anyformer.optim.grouping import group_of
from anyformer.specs.parameters import weights
from anyformer.train.config import Config, identity
from anyformer.train.cuda_graph import Captured
from anyformer.train.optim import Optimizers
from anyformer.train.optim_config import AdamW, Decay, Muon, Optim, OptimKind
from anyformer.train.train_step import Precision, SpikeGuard, TrainStep
from anyformer.train.trainer import Step, Trainer
from tests.tolerances import assert_close
from tests.train.small import BASE
from tests.train.small_data import text_config, text_data

SPEC = af.spec(BASE)
"""Of width 16."""
KINDS = OptimKind.kinds()
DECAY = Decay(matrices=0.1, tables=0.2, head=0.3, vectors=0.4)


def fill(model, seed=0):
    make = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        p.grad = torch.randn(p.shape, generator=make).to(p.dtype).to(p.device)


def moved(optim, spec=SPEC, factors=(1.0, 0.5), **more):
    model = af.build(spec, dtype=torch.float64, **more)
    optimizers = Optimizers(model, optim)
    for seed, factor in enumerate(factors):
        fill(model, seed)
        optimizers.step(factor)
    return [p.detach() for p in model.parameters()]


@pytest.mark.parametrize(("name", "power"), [("adamw", 1.0), ("muon", 0.5)])
def test_rates_by_role_have_their_closed_form(name, power):
    moe = {"ffn.kind": "moe", "head.tied": False, "head.bias": True, "ffn.router_bias": True}
    spec = SPEC.vary(moe | {"position.kind": "learned"})
    optim = Optim(leaf=OptimKind.named(name)(), base_width=4)
    found = Optimizers(af.build(spec), optim).width_factors
    roles = {key: weight.role for key, weight in weights(spec).items()}
    share = 4 / SPEC.width
    for key, role in roles.items():
        group = group_of(role)
        inner = share**power if group == "matrices" else share if role in ("head", "router") else 1.0
        assert found[key] == inner, key
    told = {roles[key]: value for key, value in found.items()}
    assert (told["embedding"], told["position_embedding"], told["gain"], told["bias"]) == (1.0, 1.0, 1.0, 1.0)
    assert (told["head"], told["router"], told["query"], told["ffn_out"]) == (0.25, 0.25, 0.25**power, 0.25**power)


def test_dense_layer_of_a_head_is_scaled_as_the_head_is_and_a_tied_head_as_its_table():
    spec = SPEC.vary({"head.tied": True, "head.transform": True})
    found = Optimizers(af.build(spec), Optim(base_width=64)).width_factors
    assert found["head.dense.weight"] == 4.0
    assert found["embed.tokens.weight"] == found["head.dense.bias"] == 1.0


@pytest.mark.parametrize("name", KINDS)
def test_scaled_step_is_a_step_at_scaled_rates_that_shrinks_weights_as_much(name):
    leaf = OptimKind.named(name)(matrices=0.25)
    spec = SPEC.vary({"head.tied": False})
    optim = Optim(leaf=leaf, tables=0.5, head=0.125, vectors=0.0625, decay=DECAY, base_width=4)
    inner = optim.width_factor("query", 16)
    by_hand = dataclasses.replace(
        optim, leaf=dataclasses.replace(leaf, matrices=0.25 * inner), head=0.125 / 4, base_width=None,
        decay=dataclasses.replace(DECAY, matrices=0.1 / inner, head=0.3 * 4),
    )  # fmt: skip
    for a, b in zip(moved(optim, spec), moved(by_hand, spec), strict=True):
        assert torch.equal(a, b)


def test_adamw_at_scaled_rates_is_torch_adamw():
    ours, theirs = (af.build(SPEC, dtype=torch.float64) for _ in range(2))
    optim = Optim(leaf=AdamW(matrices=0.1), tables=0.2, vectors=0.3, decay=Decay(matrices=0.5), base_width=64)
    optimizers = Optimizers(ours, optim)
    groups = []
    for name, p in theirs.named_parameters():
        matrix = group_of(weights(SPEC)[name].role) == "matrices"
        rate = 0.4 if matrix else 0.2 if name.startswith("embed") else 0.3
        # The share 0.1 * 0.5 of a matrix goes in a step at full rate, as it would in a model of width 64.
        groups.append({"params": [p], "lr": rate, "weight_decay": 0.125 if matrix else 0.0})
    oracle = torch.optim.AdamW(groups, betas=(0.9, 0.95), foreach=False)
    for seed in range(3):
        fill(ours, seed)
        fill(theirs, seed)
        optimizers.step(1.0)
        oracle.step()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert_close("formula", a, b)


@pytest.mark.parametrize("name", KINDS)
def test_model_of_the_base_width_moves_to_the_bit_as_without_one(name):
    leaf = OptimKind.named(name)()
    plain, based, other = (moved(Optim(leaf=leaf, base_width=width)) for width in (None, SPEC.width, 8))
    assert all(torch.equal(a, b) for a, b in zip(plain, based, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(plain, other, strict=True))


@pytest.mark.parametrize("name", KINDS)
def test_scaled_step_with_a_factor_on_the_device_is_the_one_with_a_number(name):
    optim = Optim(leaf=OptimKind.named(name)(), decay=DECAY, base_width=4)
    for a, b in zip(moved(optim, factors=(0.5,)), moved(optim, factors=(torch.tensor(0.5),)), strict=True):
        assert_close("single", a, b)


@pytest.fixture
def mesh(tmp_path):
    """A group of this one process."""
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh

    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    distributed.destroy_process_group()


@pytest.mark.parametrize("name", KINDS)
def test_parameters_cut_over_processes_move_at_the_scaled_rates(name, mesh):
    from torch.distributed.tensor import Shard, distribute_tensor

    plain, cut = af.build(SPEC), af.build(SPEC)
    for module in cut.modules():
        for p_name, p in list(module.named_parameters(recurse=False)):
            module._parameters[p_name] = nn.Parameter(distribute_tensor(p.detach(), mesh, [Shard(0)]))
    optim = Optim(leaf=OptimKind.named(name)(), decay=DECAY, base_width=4)
    both = [Optimizers(plain, optim), Optimizers(cut, optim)]
    fill(plain)
    for p, q in zip(plain.parameters(), cut.parameters(), strict=True):
        q.grad = distribute_tensor(p.grad.clone(), q.device_mesh, q.placements)
    for each in both:
        each.step(1.0)
    for p, q in zip(plain.parameters(), cut.parameters(), strict=True):
        assert_close("single", q.full_tensor(), p)


@pytest.mark.cuda
@pytest.mark.parametrize("name", KINDS)
def test_captured_steps_at_scaled_rates_are_the_steps_of_the_learner(name):
    spec = SPEC.vary({"vocab": 16, "context": 16, "head.tied": False})
    optim = Optim(leaf=OptimKind.named(name)(), decay=DECAY, base_width=4)

    def learner(optim):
        model = af.build(spec, device="cuda").train()
        parts = {"objective": Objective.named("causal")(), "precision": Precision(), "guard": SpikeGuard()}
        return TrainStep(model=model, optimizers=Optimizers(model, optim), **parts)

    plain, replayed, unscaled = learner(optim), learner(optim), learner(dataclasses.replace(optim, base_width=None))
    steps = Captured(replayed)
    ids_BT, counts = np.random.default_rng(0).integers(16, size=(4, 16)), np.full(4, 16)
    for step in range(3):
        batch = Batch({"input_ids": ids_BT, "labels": ids_BT}, step, counts, counts - 1)
        for each in (plain, steps, unscaled):
            each.step(batch, seed=0, step=step, factor=0.5**step).read()
    assert steps.failures == []
    for a, b in zip(plain.model.parameters(), replayed.model.parameters(), strict=True):
        assert_close("single", a, b)
    head = "head.weight"
    assert not torch.allclose(unscaled.model.get_parameter(head), replayed.model.get_parameter(head), atol=1e-4)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Foreign(OptimKind):
    """A kind that says nothing of widths."""

    kind = "foreign"


def test_base_width_that_cannot_be_is_named():
    assert list(Optim(base_width=128).problems()) == []
    assert list(Optim(base_width=0).problems()) == [("base_width", "0 is not at least 1")]
    assert list(Optim(leaf=Foreign()).problems()) == []
    ((path, why),) = Optim(leaf=Foreign(), base_width=8).problems()
    assert path == "base_width"
    assert "nobody has derived how the rates of 'foreign' go with the width" in why


@pytest.fixture
def data(tmp_path):
    return text_data(tmp_path / "data")


def state(folder):
    return json.loads(max(folder.glob("checkpoints/step-*/state.json")).read_text())


def steps_of(config, until=None):
    with Trainer(config) as run:
        told = [event for event in run.events(until=until) if isinstance(event, Step)]
        return [event.loss for event in told], [p.detach().clone() for p in run.components.model.parameters()]


def test_config_without_base_width_is_the_one_of_earlier_versions(tmp_path, data):
    """A key that is not set is not written, so that a state that lacks it is not another run's."""
    config = text_config(data, tmp_path / "run")
    assert "optim.base_width" not in identity(config)
    assert "base_width" not in config.to_data()["optim"]
    scaled = text_config(data, tmp_path / "run", {"optim.base_width": 64})
    assert identity(scaled) == {**identity(config), "optim.base_width": "64"}
    assert Config.from_toml(scaled.to_toml()).optim.base_width == 64


def test_run_whose_state_lacks_base_width_goes_on_to_the_bit(tmp_path, data):
    whole = steps_of(text_config(data, tmp_path / "whole"))
    config = text_config(data, tmp_path / "parts")
    first, _ = steps_of(config, until=6)
    assert "optim.base_width" not in state(tmp_path / "parts")["config"]
    rest, ends = steps_of(config)
    assert first + rest == whole[0]
    assert all(torch.equal(a, b) for a, b in zip(ends, whole[1], strict=True))


def test_run_with_base_width_resumes_to_the_bit_and_is_no_other(tmp_path, data):
    changes = {"optim.base_width": 64}
    whole = steps_of(text_config(data, tmp_path / "whole", changes))
    assert whole[0] != steps_of(text_config(data, tmp_path / "plain"))[0]
    config = text_config(data, tmp_path / "parts", changes)
    first, _ = steps_of(config, until=6)
    assert state(tmp_path / "parts")["config"]["optim.base_width"] == "64"
    with pytest.raises(CheckpointError, match=r"optim\.base_width: was '64', is not set"):
        steps_of(text_config(data, tmp_path / "parts"))
    rest, ends = steps_of(config)
    assert first + rest == whole[0]
    assert all(torch.equal(a, b) for a, b in zip(ends, whole[1], strict=True))


WIDTHS = (32, 64, 128, 256)


def of_width(width):
    """More heads of the same size, and a feed-forward that is wider in proportion."""
    return af.spec({
        "vocab": 32, "width": width, "depth": 2, "context": 32, "attention": {"heads": width // 16},
        "ffn": {"kind": "swiglu", "width": 3 * width}, "head": {"kind": "lm", "tied": False}, "init": {"kind": "fan_in"},
    })  # fmt: skip


def features(model, ids_BT):
    """What each branch adds to the residual."""
    found, hooks = {}, []
    for i, block in enumerate(model.decoder.blocks):
        for name in ("attention", "ffn"):

            def keep(module, given, made, key=(i, name)):
                found[key] = made[0] if isinstance(made, tuple) else made

            hooks.append(getattr(block, name).body.register_forward_hook(keep))
    with torch.no_grad():
        model(ids_BT)
    for hook in hooks:
        hook.remove()
    return found


@functools.cache
def change_per_step(name, width, base_width):
    """The root mean square by which a step changes what a branch adds, the mean over steps, branches in the rows."""
    leaf = {"adamw": AdamW(matrices=0.0005), "muon": Muon(matrices=0.002)}[name]
    optim = Optim(leaf=leaf, tables=0.0005, vectors=0.0005, base_width=base_width)
    model = af.build(of_width(width)).train()
    optimizers = Optimizers(model, optim)
    ids_BT = torch.randint(0, 32, (8, 32), generator=torch.Generator().manual_seed(3))
    before, changes = features(model, ids_BT), []
    for _ in range(4):
        model(ids_BT, labels=ids_BT).loss.backward()
        optimizers.step(1.0)
        after = features(model, ids_BT)
        changes.append([(after[key] - before[key]).square().mean().sqrt().item() for key in after])
        before = after
    return np.mean(changes, axis=0)


def growth(name, base_width):
    """The power of the width by which the change of each branch grows."""
    changes = np.log([change_per_step(name, width, base_width) for width in WIDTHS])
    return np.polyfit(np.log(WIDTHS), changes, 1)[0]


@pytest.mark.parametrize(("name", "power"), [("adamw", 1.0), ("muon", 0.5)])
def test_features_move_alike_at_every_width_with_base_width_and_drift_without(name, power):
    """The coordinate check of Yang et al. 2022 (appendix D.1)."""
    with_it, without = growth(name, WIDTHS[0]), growth(name, None)
    assert np.abs(with_it).max() < 0.2, with_it
    assert without.min() > 0.7 * power, without
    assert np.abs(without - with_it - power).max() < 0.25, (with_it, without)
