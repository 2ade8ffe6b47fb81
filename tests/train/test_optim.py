"""The optimizers of a model: groups by role, steps that are skipped, copies in fp32, and state to the bit."""

import math

import pytest
import torch
from torch import nn

import anyformer as af
from anyformer.errors import TrainingError
from anyformer.optim.grouping import group_of
from anyformer.optim.rule import AdamWRule, MuonRule, total_norm
from anyformer.specs.codec import Problems, read, write
from anyformer.specs.parameters import weights
from anyformer.train.cpu_workers import CpuWorkers
from anyformer.train.distributed.sharded_checkpoint import put
from anyformer.train.optim import Optimizers, take
from anyformer.train.optim_config import AdamW, Decay, Muon, Optim, OptimKind
from tests.contract.draw import BASE, draw
from tests.tolerances import assert_close

SPEC = af.spec(BASE)
KINDS = OptimKind.kinds()


def kind(name: str, **given) -> Optim:
    return Optim(leaf=OptimKind.named(name)(**given))


def fill(model, seed=0, value=None):
    make = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        p.grad = torch.randn(p.shape, generator=make).to(p.dtype) if value is None else torch.full_like(p, value)


def copies(model, optimizers):
    return [t.detach().clone() for t in (*model.parameters(), *optimizers.state().values())]


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("seed", range(12))
def test_optimizers_serve_every_parameter_of_any_spec_once_by_its_role(seed):
    spec = draw(seed)
    model = af.build(spec)
    optimizers = Optimizers(model)
    assert [id(p) for p in optimizers.parameters()] == [id(p) for p in model.parameters()]
    roles = weights(spec)
    found = {each.name: group for group, members in optimizers.groups.items() for each in members}
    assert found == {name: group_of(roles[name].role) for name, _ in model.named_parameters()}
    assert all(isinstance(optimizers.rules[g], MuonRule if g == "matrices" else AdamWRule) for g in optimizers.groups)


def test_groups_tell_an_untied_head_from_the_table():
    model = af.build(SPEC.vary({"head.tied": False}))
    optim = Optim(tables=0.5, head=0.25)
    optimizers = Optimizers(model, optim)
    assert [each.name for each in optimizers.groups["head"]] == ["head.weight"]
    assert [each.name for each in optimizers.groups["tables"]] == ["embed.tokens.weight"]
    assert (optim.rate("head"), Optim(tables=0.5).rate("head")) == (0.25, 0.5)


def test_decay_by_default_shrinks_matrices_and_nothing_else():
    model = af.build(SPEC)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    fill(model, value=0.0)
    optimizers = Optimizers(model)
    optimizers.step(1.0)
    for name, p in model.named_parameters():
        matrix = any(each.name == name for each in optimizers.groups["matrices"])
        wanted = before[name] * (1 - 0.005 * 0.1) if matrix else before[name]
        assert_close("single", p, wanted)


def test_adamw_kind_is_torch_adamw_with_a_rate_for_each_group():
    ours, theirs = (af.build(SPEC, dtype=torch.float64) for _ in range(2))
    optim = Optim(leaf=AdamW(matrices=0.1), tables=0.2, vectors=0.3, decay=Decay(matrices=0.5, vectors=0.25))
    optimizers = Optimizers(ours, optim)
    roles = weights(SPEC)
    groups = [
        {"params": [p], "lr": optim.rate(g) * 0.5, "weight_decay": getattr(optim.decay, g)}
        for name, p in theirs.named_parameters()
        for g in [group_of(roles[name].role)]
    ]
    oracle = torch.optim.AdamW(groups, betas=(0.9, 0.95), foreach=False)
    for seed in range(3):
        fill(ours, seed)
        fill(theirs, seed)
        optimizers.step(0.5)
        oracle.step()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert_close("formula", a, b)


@pytest.mark.parametrize("name", KINDS)
def test_step_scales_every_rate_by_the_factor_and_drops_gradients(name):
    ends = []
    for factor, times in ((0.5, 1.0), (1.0, 0.5), (torch.tensor(0.5), 1.0)):
        optim = kind(name, matrices=0.5 * times)
        optim = Optim(leaf=optim.leaf, tables=0.25 * times, vectors=0.125 * times, decay=Decay(matrices=0.0))
        model = af.build(SPEC)
        fill(model)
        Optimizers(model, optim).step(factor)
        assert all(p.grad is None for p in model.parameters())
        ends.append([p.detach() for p in model.parameters()])
    assert same(ends[0], ends[1])
    for a, b in zip(ends[0], ends[2], strict=True):
        assert_close("single", a, b)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("bad", [1.0, float("nan"), float("inf")])
def test_skipped_step_leaves_weights_and_state_to_the_bit(name, bad):
    model = af.build(SPEC)
    optimizers = Optimizers(model, kind(name))
    fill(model)
    optimizers.step(1.0)
    before = copies(model, optimizers)
    fill(model, value=bad)
    optimizers.clip(1.0)
    optimizers.step(1.0, None, torch.ones(()))
    assert same(before, copies(model, optimizers))
    assert all(p.grad is None for p in model.parameters())
    fill(model, 1)
    optimizers.step(1.0, None, torch.zeros(()))
    assert not same(before, copies(model, optimizers))


@pytest.mark.parametrize("name", KINDS)
def test_crew_moves_parameters_as_one_thread_does(name):
    ends = []
    for size in (1, 3):
        model = af.build(SPEC)
        optimizers = Optimizers(model, kind(name))
        with CpuWorkers(size) as workers:
            for seed in range(2):
                fill(model, seed)
                optimizers.step(1.0, workers)
        ends.append(copies(model, optimizers))
    assert same(*ends)


def test_parameter_without_gradient_stays_as_it_is():
    model = af.build(SPEC)
    fill(model)
    idle = next(iter(model.parameters()))
    idle.grad = None
    before = idle.detach().clone()
    optimizers = Optimizers(model)
    optimizers.clip(1.0)
    optimizers.step(1.0)
    assert torch.equal(idle, before)
    assert optimizers.state()["embed.tokens.weight/step"] == 0


@pytest.mark.parametrize("limit", [0.1, 1e9, math.inf])
def test_clip_is_torch_clip(limit):
    ours, theirs = af.build(SPEC), af.build(SPEC)
    fill(ours)
    fill(theirs)
    norm = Optimizers(ours).clip(limit)
    wanted = torch.nn.utils.clip_grad_norm_(theirs.parameters(), limit)
    assert_close("single", norm, wanted)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert_close("single", a.grad, b.grad)


def test_norm_of_bf16_gradients_is_not_rounded_to_bf16():
    some = [torch.full((100,), 1.0, dtype=torch.bfloat16), torch.full((3,), 1.0, dtype=torch.bfloat16)]
    norm = total_norm(some)
    assert norm.dtype == torch.float32
    assert norm.item() == pytest.approx(103**0.5, rel=1e-6)
    assert Optimizers(af.build(SPEC)).clip(1.0).item() == 0.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", KINDS)
def test_state_loads_to_the_bit_and_training_goes_on_as_it_would_have(name, dtype):
    model = af.build(SPEC, dtype=dtype)
    optimizers = Optimizers(model, kind(name))
    fill(model)
    optimizers.step(1.0)
    state = {key: t.clone() for key, t in optimizers.state().items()}
    assert f"decoder.blocks.0.attention.body.q.weight/{'momentum' if name == 'muon' else 'exp_avg'}" in state
    other = af.build(SPEC, dtype=dtype, seed=1)
    other.load_state_dict(model.state_dict())
    resumed = Optimizers(other, kind(name))
    take(state, resumed.state())
    for one, its in ((model, optimizers), (other, resumed)):
        fill(one, 7)
        its.step(0.5)
    assert same(copies(model, optimizers), copies(other, resumed))


@pytest.mark.parametrize("name", KINDS)
def test_master_copy_keeps_steps_that_bf16_would_lose(name):
    ends = {}
    for master in (True, False):
        model = af.build(SPEC, dtype=torch.bfloat16)
        with torch.no_grad():
            for p in model.parameters():
                p.fill_(1.0)
        leaf = OptimKind.named(name)(matrices=1e-4)
        optimizers = Optimizers(
            model, Optim(leaf=leaf, tables=1e-4, vectors=1e-4, decay=Decay(matrices=0.0), master=master)
        )
        for _ in range(100):
            for p in model.parameters():
                # One direction for AdamW, and full rank for Muon.
                p.grad = torch.eye(*p.shape, dtype=p.dtype) if p.dim() == 2 else torch.ones_like(p)
            optimizers.step(1.0)
        assert all(p.dtype == torch.bfloat16 for p in model.parameters())
        ends[master] = [p.detach().float() for p in model.parameters()]
        if master:
            state = optimizers.state()
            assert all(t.dtype == torch.float32 for t in state.values())
            for p_name, p in model.named_parameters():
                assert torch.equal(state[f"{p_name}/master"].bfloat16(), p)
    # Half of what separates 1 from the next smaller number is 2^-9: steps of 1e-4 never get there on their own.
    assert all((w == 1.0).all() for w in ends[False])
    assert all((w < 1.0).any() for w in ends[True])


def by_vector(model, values):
    torch.nn.utils.vector_to_parameters(
        torch.cat([values[n].flatten() for n, _ in model.named_parameters()]), model.parameters()
    )


LOADS = {
    "load_state_dict": lambda model, values: model.load_state_dict(values),
    "data.copy_": lambda model, values: [p.data.copy_(values[n]) for n, p in model.named_parameters()],
    "data =": lambda model, values: [setattr(p, "data", values[n].clone()) for n, p in model.named_parameters()],
    "vector_to_parameters": by_vector,
}


@pytest.mark.parametrize("how", LOADS)
def test_master_copy_follows_weights_however_they_were_written(how):
    model, other = af.build(SPEC, dtype=torch.bfloat16), af.build(SPEC, dtype=torch.bfloat16, seed=7)
    optimizers = Optimizers(model, Optim(master=True))
    fill(model)
    optimizers.step(1e-6)
    LOADS[how](model, other.state_dict())
    fill(model)
    optimizers.step(0.0)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("name", KINDS)
def test_master_copy_follows_weights_that_were_loaded_since_the_last_step(name):
    model, other = af.build(SPEC, dtype=torch.bfloat16), af.build(SPEC, dtype=torch.bfloat16, seed=7)
    optimizers = Optimizers(model, Optim(leaf=OptimKind.named(name)(), master=True))
    fill(model)
    optimizers.step(1e-6)
    kept = {key: t.clone() for key, t in optimizers.state().items() if key.endswith("/master")}
    # What comes and goes, as averaged weights do, costs the copy none of its digits.
    values = {key: value.clone() for key, value in model.state_dict().items()}
    model.load_state_dict(other.state_dict())
    model.load_state_dict(values)
    optimizers.follow()
    assert all(torch.equal(optimizers.state()[key], t) for key, t in kept.items())
    model.load_state_dict(other.state_dict())
    fill(model)
    optimizers.step(0.0)
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", KINDS)
def test_gradient_in_another_layout_moves_a_weight_as_the_same_one_in_its_own(name):
    one, two = (af.build(SPEC) for _ in range(2))
    for model in (one, two):
        fill(model)
    for p in two.parameters():
        if p.dim() == 2:
            p.grad = p.grad.T.contiguous().T
    for model in (one, two):
        Optimizers(model, kind(name)).step(1.0)
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        assert torch.equal(a, b)


def test_optimizers_refuse_a_model_whose_parameters_were_replaced():
    model = af.build(SPEC)
    optimizers = Optimizers(model)
    optimizers.check(model)
    model.load_state_dict({name: p.clone() for name, p in model.state_dict().items()}, assign=True)
    with pytest.raises(TrainingError, match=r"embed.tokens.weight and \d+ more: replaced since .* assign=True"):
        optimizers.check(model)


def test_master_copy_is_not_made_for_wide_weights():
    state = Optimizers(af.build(SPEC), Optim(master=True)).state()
    assert not any(key.endswith("/master") for key in state)


def test_optim_reads_from_plain_data_and_names_all_problems():
    problems = Problems()
    optim = read(Optim, {"kind": "adamw", "matrices": 0.1, "head": 0.5, "decay": {"head": 0.1}}, "optim", problems)
    assert not problems.found
    assert optim == Optim(leaf=AdamW(matrices=0.1), head=0.5, decay=Decay(head=0.1))
    assert read(Optim, write(optim), "optim", problems) == optim
    assert read(Optim, {"momentum": 0.5}, "optim", problems) == Optim(leaf=Muon(momentum=0.5))
    assert not problems.found
    read(Optim, {"kind": "adamw", "momentum": 0.5}, "optim", problems)
    assert any("momentum" in line and "is unknown" in line for line in problems.lines)
    bad = Optim(leaf=Muon(matrices=-1.0, momentum=1.0, rounds=0), tables=-1.0, betas=(0.9, 1.0), eps=0.0)
    assert [name for name, _ in bad.problems()] == ["matrices", "momentum", "rounds", "tables", "betas", "eps"]
    assert [name for name, _ in Optim(head=-1.0, decay=Decay(tables=-0.1)).problems()] == ["head", "decay.tables"]
    assert list(Optim().problems()) == []


@pytest.fixture
def mesh(tmp_path):
    """A group of this one process."""
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh

    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    distributed.destroy_process_group()


@pytest.mark.parametrize("name", KINDS)
def test_parameters_cut_over_processes_move_as_whole_ones_do(name, mesh):
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    plain, cut = af.build(SPEC), af.build(SPEC)
    for module in cut.modules():
        for p_name, p in list(module.named_parameters(recurse=False)):
            placed = Replicate() if p_name == "bias" else Shard(0)
            module._parameters[p_name] = nn.Parameter(distribute_tensor(p.detach(), mesh, [placed]))
    both = [Optimizers(plain, kind(name)), Optimizers(cut, kind(name))]
    for seed in range(2):
        fill(plain, seed)
        for p, q in zip(plain.parameters(), cut.parameters(), strict=True):
            q.grad = distribute_tensor(p.grad.clone(), q.device_mesh, q.placements)
        norms = [each.clip(0.5) for each in both]
        assert type(norms[1]) is torch.Tensor
        assert_close("single", *norms)
        for each in both:
            each.step(1.0, None, torch.zeros(()))
    for p, q in zip(plain.parameters(), cut.parameters(), strict=True):
        assert_close("single", q.full_tensor(), p)
    # A whole state goes into the cut one.
    for key, tensor in both[1].state().items():
        put(tensor, both[0].state()[key])
    for key, t in both[1].state().items():
        assert torch.equal(t.full_tensor() if isinstance(t, DTensor) else t, both[0].state()[key])
