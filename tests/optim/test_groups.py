"""af.optim.groups, schedules as functions and clipping: every model's roles, and modules of torch."""

import pytest
import torch
from torch import nn

import anyformer as af
from anyformer.errors import InputError
from anyformer.optim.grouping import group_of
from anyformer.optim.schedule import Schedule
from anyformer.specs.parameters import weights
from tests.contract.draw import draw
from tests.optim.test_optimizers import Plain, plain
from tests.tolerances import assert_close


def named(module, **how):
    """Names of each group."""
    names = {}
    for name, parameter in module.named_parameters():
        names.setdefault(parameter, name)
    return {group: [names[p] for p in some] for group, some in af.optim.groups(module, **how).items()}


@pytest.mark.parametrize("seed", range(0, 60, 3))
def test_groups_of_a_model_are_its_roles(seed):
    spec = draw(seed)
    with torch.device("meta"):
        model = af.Model(spec)
    found = {name: group for group, names in named(model).items() for name in names}
    assert found == {name: group_of(weight.role) for name, weight in weights(spec).items()}


@pytest.mark.parametrize(
    "make",
    [
        lambda: af.nn.Block(8, 2, position="t5", ffn="moe", norm="layernorm", bias=True),
        lambda: af.nn.Attention(8, 2, position="shaw", qk_norm=True),
        lambda: af.nn.FeedForward(8, "moe"),
        lambda: af.nn.PositionEmbedding(8, context=4),
    ],
)
def test_groups_of_a_part_are_its_roles_also_inside_another_module(make):
    part = make()
    found = {name: group for group, names in named(nn.ModuleDict({"part": part})).items() for name in names}
    assert found == {f"part.{name}": group_of(weight.role) for name, weight in part.inventory().items()}
    assert len(found) == len(list(part.parameters()))


def test_groups_of_a_module_of_torch_go_by_kind_and_shape():
    found = named(Plain())
    assert found["tables"] == ["embed.weight"]
    assert found["head"] == ["head.weight"]
    assert found["matrices"] == [
        "layer.self_attn.in_proj_weight", "layer.self_attn.out_proj.weight", "layer.linear1.weight", "layer.linear2.weight",
    ]  # fmt: skip
    assert all("bias" in name or "norm" in name for name in found["vectors"])
    assert sum(map(len, found.values())) == len(list(Plain().parameters()))


@pytest.mark.parametrize("first", ["embed", "head"])
def test_groups_of_a_tied_head_hold_it_once_as_a_table(first):
    model = nn.ModuleDict({"embed": nn.Embedding(5, 3), "head": nn.Linear(3, 5, bias=False)})
    model["head"].weight = model["embed"].weight
    model = nn.ModuleDict({name: model[name] for name in sorted(model, reverse=first == "head")})
    found = af.optim.groups(model)
    assert [len(found[group]) for group in ("matrices", "tables", "head", "vectors")] == [0, 1, 0, 0]


def test_groups_without_a_vocabulary_have_no_head_and_convolutions_are_vectors():
    found = named(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Linear(4, 4), nn.Linear(4, 4)))
    assert found == {"matrices": ["1.weight", "2.weight"], "tables": [], "head": [],
                     "vectors": ["0.weight", "0.bias", "1.bias", "2.bias"]}  # fmt: skip


def test_groups_moved_by_name():
    found = named(Plain(), move={"layer.linear2.weight": "vectors"})
    assert "layer.linear2.weight" in found["vectors"]
    with pytest.raises(InputError) as caught:
        af.optim.groups(Plain(), move={"layer.liner2.weight": "vectors", "head.weight": "heads"})
    assert "did you mean 'layer.linear2.weight'" in str(caught.value)
    assert "'heads' is no group; did you mean 'head'" in str(caught.value)


@pytest.mark.parametrize("kind", Schedule.kinds())
def test_schedule_function_of_a_kind_equals_the_runs(kind):
    function = getattr(af.optim, kind)
    for warmup in (0.0, 0.1, 7):
        leaf = Schedule.named(kind)(warmup=warmup)
        assert [function(step, 50, warmup=warmup) for step in range(50)] == [
            leaf.factor(step, 50) for step in range(50)
        ]
    assert function(3, 50) == Schedule.named(kind)().factor(3, 50)


def test_schedule_functions_take_the_options_of_their_kind():
    assert af.optim.cosine(99, 100, warmup=0, floor=0.25) == pytest.approx(0.25, abs=1e-3)
    assert af.optim.linear(50, 100, warmup=0, floor=0.0) == 0.5
    assert af.optim.wsd(89, 100, warmup=0, decay=10) == 1.0
    assert af.optim.wsd(95, 100, warmup=0, decay=10) == 0.5
    with pytest.raises(InputError) as caught:
        af.optim.cosine(-1, 0, warmup=-2.0, floor=3.0)
    assert len(str(caught.value).splitlines()) == 5


@pytest.mark.parametrize("limit", [0.01, 1e6])
@pytest.mark.parametrize("dtypes", [[torch.float32] * 3, [torch.float32, torch.float64, torch.bfloat16]])
def test_clipping_equals_its_formula_and_torchs(limit, dtypes):
    def made():
        make = torch.Generator().manual_seed(0)
        params = [nn.Parameter(torch.zeros(4, i + 1, dtype=t)) for i, t in enumerate(dtypes)]
        for p in params:
            p.grad = torch.randn(p.shape, generator=make).to(p.dtype)
        return params

    ours, before = made(), made()
    norm = _norm(before)
    assert_close("single", af.optim.clip_grad_norm_(ours, limit), norm)
    for a, b in zip(ours, before, strict=True):
        row = "bf16" if a.dtype == torch.bfloat16 else "single"
        assert_close(row, a.grad, b.grad.double() * min(1.0, limit / (float(norm) + 1e-6)))
    if len(set(dtypes)) == 1:
        # Of bf16 gradients torch rounds the norm too.
        nn.utils.clip_grad_norm_(before, limit)
        assert all(torch.equal(a.grad, b.grad) for a, b in zip(ours, before, strict=True))


def _norm(params):
    return torch.stack([p.grad.double().square().sum() for p in params]).sum().sqrt()


def test_clipping_without_gradients_or_limit():
    model = plain()
    assert float(af.optim.clip_grad_norm_(model.parameters(), 1.0)) == 0
    parameter = nn.Parameter(torch.ones(3))
    parameter.grad = torch.ones(3)
    assert float(af.optim.clip_grad_norm_(parameter)) == pytest.approx(3**0.5)
    assert torch.equal(parameter.grad, torch.ones(3))
    with pytest.raises(InputError, match="max_norm 0 is not above 0"):
        af.optim.clip_grad_norm_(parameter, 0)
