"""af.optim.AdamW and Muon: torch's AdamW, closed forms, our own training step, and all that a torch optimizer does."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import anyformer as af
from anyformer.errors import CapabilityError, InputError
from anyformer.optim.rule import orthogonalised
from anyformer.train.optim import Optimizers
from anyformer.train.optim_config import Optim
from tests.contract.draw import BASE
from tests.tolerances import assert_close

VOCAB = 13


class Plain(nn.Module):
    """A language model of torch's own modules."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, VOCAB, bias=False)

    def forward(self, ids):
        return self.head(self.norm(self.layer(self.embed(ids))))


def plain(dtype=torch.float32, seed=0):
    torch.manual_seed(seed)
    return Plain().to(dtype)


def batch(step):
    return torch.randint(0, VOCAB, (4, 7), generator=torch.Generator().manual_seed(step))


def loss_of(model, step):
    ids = batch(step)
    return F.cross_entropy(model(ids).double().flatten(0, 1), ids.flatten())


def both(model, **how):
    """Muon for the matrices, AdamW for all else."""
    groups = af.optim.groups(model)
    rest = [{"params": groups["tables"], "lr": 0.02}, {"params": groups["head"] + groups["vectors"]}]
    return [af.optim.Muon(groups["matrices"], lr=0.02, **how), af.optim.AdamW(rest, lr=0.01, **how)]


def train(model, optimizers, steps, schedulers=()):
    losses = []
    for step in steps:
        for each in optimizers:
            each.zero_grad()
        loss = loss_of(model, step)
        loss.backward()
        for each in (*optimizers, *schedulers):
            each.step()
        losses.append(float(loss.detach()))
    return losses


def equal(a, b):
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


OPTIONS = [{}, {"lr": 0.1, "betas": (0.8, 0.95), "eps": 1e-5, "weight_decay": 0.3}]


@pytest.mark.parametrize("options", OPTIONS)
def test_adamw_equals_torchs_to_the_bit(options):
    ours, theirs = plain(), plain()
    train(ours, [af.optim.AdamW(ours.parameters(), **options)], range(5))
    train(theirs, [torch.optim.AdamW(theirs.parameters(), **options, fused=True)], range(5))
    assert equal(ours, theirs)


@pytest.mark.parametrize("options", OPTIONS)
def test_adamw_equals_torchs_plain_loop(options):
    ours, theirs = plain(torch.float64), plain(torch.float64)
    train(ours, [af.optim.AdamW(ours.parameters(), **options)], range(5))
    train(theirs, [torch.optim.AdamW(theirs.parameters(), **options, foreach=False)], range(5))
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert_close("oracle", a, b)


def test_adamw_has_torchs_defaults():
    ours, theirs = (kind([nn.Parameter(torch.ones(2))]).defaults for kind in (af.optim.AdamW, torch.optim.AdamW))
    assert {name: theirs[name] for name in ours if name != "master_weights"} == {
        k: v for k, v in ours.items() if k != "master_weights"
    }


@pytest.mark.parametrize("shape", [(6, 9), (9, 6), (3, 4, 5)])
def test_muon_steps_are_nesterov_momentum_made_orthogonal(shape):
    make = torch.Generator().manual_seed(0)
    weight = torch.randn(shape, dtype=torch.float64, generator=make)
    parameter = nn.Parameter(weight.clone())
    optimizer = af.optim.Muon([parameter], lr=0.1, momentum=0.9, weight_decay=0.5, ns_steps=4)
    momentum = torch.zeros_like(weight)
    for _ in range(3):
        gradient = torch.randn(shape, dtype=torch.float64, generator=make)
        parameter.grad = gradient.clone()
        optimizer.step()
        momentum = 0.9 * momentum + 0.1 * gradient
        ahead = 0.1 * gradient + 0.9 * momentum
        stack = ahead.reshape(-1, *shape[-2:])
        update = orthogonalised(stack, 4).view(shape) * 0.2 * max(shape[-2:]) ** 0.5
        weight = weight * (1 - 0.1 * 0.5) - 0.1 * update
        assert_close("formula", parameter, weight)


def test_muon_update_has_the_singular_values_of_the_quintic():
    gradient = torch.randn(5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    parameter = nn.Parameter(torch.zeros(5, 7, dtype=torch.float64))
    parameter.grad = gradient.clone()
    af.optim.Muon([parameter], lr=1.0, momentum=0.0, weight_decay=0.0).step()
    u, s, vh = torch.linalg.svd(gradient, full_matrices=False)
    x = s / (gradient.norm() + 1e-7)
    for _ in range(5):
        x = 3.4445 * x - 4.7750 * x**3 + 2.0315 * x**5
    assert_close("kernel", parameter, -0.2 * 7**0.5 * (u * x) @ vh)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_both_equal_the_step_of_our_own_training(dtype):
    spec = af.spec(BASE, {"depth": 3})
    ours, theirs = af.build(spec, dtype=dtype), af.build(spec, dtype=dtype)
    optim, groups = Optim(), af.optim.groups(ours)
    muon = af.optim.Muon(groups["matrices"], lr=optim.rate("matrices"), weight_decay=optim.decay.matrices)
    rest = [
        {"params": groups[name], "lr": optim.rate(name), "weight_decay": getattr(optim.decay, name)}
        for name in ("tables", "head", "vectors")
    ]
    adamw, training = af.optim.AdamW(rest, betas=optim.betas, eps=optim.eps), Optimizers(theirs, optim)
    make = torch.Generator().manual_seed(0)
    for _ in range(3):
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            a.grad = torch.randn(a.shape, generator=make).to(dtype)
            b.grad = a.grad.clone()
        af.optim.clip_grad_norm_(ours.parameters(), 1.0)
        training.clip(1.0)
        muon.step()
        adamw.step()
        training.step(1.0)
        assert equal(ours, theirs)


def test_both_train_a_model_of_torch():
    model = plain()
    losses = train(model, both(model), [0] * 30)
    assert losses[-1] < 0.2 * losses[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("order", ["model first", "optimizers first"])
def test_both_resumed_through_state_dicts_equal_an_unbroken_run(dtype, order):
    # Gradients are given, so that no product of bf16 is asked of this processor.
    def steps(model, optimizers, which):
        for step in which:
            make = torch.Generator().manual_seed(step)
            for p in model.parameters():
                p.grad = torch.randn(p.shape, generator=make).to(p.dtype)
            for each in optimizers:
                each.step()

    whole = plain(dtype)
    steps(whole, both(whole), range(6))
    first = plain(dtype)
    kept = both(first)
    steps(first, kept, range(3))
    file = io.BytesIO()
    torch.save([first.state_dict(), *(each.state_dict() for each in kept)], file)
    file.seek(0)
    weights, *states = torch.load(file)
    second = plain(dtype, seed=1)
    optimizers = both(second)
    if order == "model first":
        second.load_state_dict(weights)
    for each, state in zip(optimizers, states, strict=True):
        each.load_state_dict(state)
    if order != "model first":
        second.load_state_dict(weights)
    steps(second, optimizers, range(3, 6))
    assert equal(second, whole)


def test_master_weights_learn_what_bf16_would_lose():
    moved = {}
    for master in (True, False):
        parameter = nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
        optimizer = af.optim.AdamW([parameter], lr=1e-4, weight_decay=0.0, master_weights=master)
        for _ in range(100):
            parameter.grad = torch.ones_like(parameter)
            optimizer.step()
        moved[master] = float(1 - parameter[0].detach())
        assert optimizer.state[parameter]["exp_avg"].dtype == (torch.float32 if master else torch.bfloat16)
    assert moved[True] == pytest.approx(0.01, rel=0.3)
    assert moved[False] == 0


def test_master_weights_follow_what_is_written_into_a_parameter():
    parameter = nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
    optimizer = af.optim.AdamW([parameter], lr=0.1, weight_decay=0.0)
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    with torch.no_grad():
        parameter.fill_(5.0)
    optimizer.step()
    assert float(parameter[0].detach()) == pytest.approx(4.9, rel=0.01)


def test_schedulers_of_torch_set_the_learning_rate():
    model = plain()
    optimizers = both(model)
    schedulers = [
        torch.optim.lr_scheduler.LambdaLR(each, lambda step: af.optim.cosine(step, 10, warmup=4, floor=0.1))
        for each in optimizers
    ]
    rates = []
    for step in range(10):
        rates.append([group["lr"] for each in optimizers for group in each.param_groups])
        train(model, optimizers, [step], schedulers)
    for i, rate in enumerate(rates):
        factor = af.optim.cosine(i, 10, warmup=4, floor=0.1)
        assert rate == pytest.approx([0.02 * factor, 0.02 * factor, 0.01 * factor])


@pytest.mark.parametrize(
    "make",
    [
        lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=10),
        lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10),
        lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 2),
    ],
)
def test_schedulers_of_torch_move_ours_as_they_move_torchs(make):
    ours, theirs = plain(), plain()
    first = af.optim.AdamW(ours.parameters(), lr=0.05)
    second = torch.optim.AdamW(theirs.parameters(), lr=0.05, fused=True)
    train(ours, [first], range(5), [make(first)])
    train(theirs, [second], range(5), [make(second)])
    assert equal(ours, theirs)


def test_step_answers_what_its_closure_gives_and_runs_it_with_gradients():
    model = plain()
    optimizer = af.optim.AdamW(model.parameters())
    before = copy.deepcopy(model)

    def closure():
        optimizer.zero_grad()
        loss = loss_of(model, 0)
        loss.backward()
        return loss

    with torch.no_grad():
        loss = optimizer.step(closure)
    assert float(loss.detach()) == float(loss_of(before, 0).detach())
    assert not equal(model, before)


def test_parameters_without_a_gradient_stay_and_get_no_state():
    still, moving = nn.Parameter(torch.ones(3, 3)), nn.Parameter(torch.ones(3, 3))
    moving.grad = torch.eye(3)
    for kind in (af.optim.AdamW, af.optim.Muon):
        optimizer = kind([still, moving])
        optimizer.step()
        assert torch.equal(still, torch.ones(3, 3))
        assert not optimizer.state.get(still)
        assert optimizer.state[moving]


def test_optimizers_are_copied_and_pickled_with_their_model():
    model = plain()
    optimizers = both(model)
    train(model, optimizers, range(2))
    twin, twins = copy.deepcopy((model, optimizers))
    again, those = pickle.loads(pickle.dumps((model, optimizers)))
    for m, o in ((model, optimizers), (twin, twins), (again, those)):
        train(m, o, range(2, 4))
    assert equal(model, twin)
    assert equal(model, again)


def test_optimizer_of_parameters_of_several_dtypes_moves_each_as_alone():
    def made():
        make = torch.Generator().manual_seed(0)
        params = [
            nn.Parameter(torch.randn(4, 6, generator=make).to(t))
            for t in (torch.float32, torch.float64, torch.bfloat16)
        ]
        for p in params:
            p.grad = torch.randn(4, 6, generator=make).to(p.dtype)
        return params

    for kind in (af.optim.AdamW, af.optim.Muon):
        together, alone = made(), made()
        kind(together).step()
        for p in alone:
            kind([p]).step()
        assert all(torch.equal(a, b) for a, b in zip(together, alone, strict=True))


def test_optimizer_takes_named_parameters_and_tensors_for_learning_rates():
    model = plain()
    optimizer = af.optim.AdamW(model.named_parameters(), lr=torch.tensor(0.01))
    train(model, [optimizer], range(2))
    other = plain()
    train(other, [af.optim.AdamW(other.parameters(), lr=0.01)], range(2))
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert_close("single", a, b)


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: af.optim.AdamW(plain().parameters(), lr=-1.0), InputError, "lr: -1.0 is not at least 0"),
        (lambda: af.optim.AdamW(plain().parameters(), betas=(0.9, 1.0)), InputError, "betas"),
        (lambda: af.optim.AdamW(plain().parameters(), eps=0.0), InputError, "eps: 0.0 is not above 0"),
        (lambda: af.optim.AdamW([{"params": plain().parameters(), "l_r": 1.0}]), InputError, "l_r is no option of a group"),
        (lambda: af.optim.AdamW(plain().parameters(), amsgrad=True), TypeError, "amsgrad"),
        (lambda: af.optim.Muon(plain().parameters()), InputError, r"groups\(module\)\['matrices'\]"),
        (lambda: af.optim.Muon([nn.Parameter(torch.ones(2, 2))], momentum=1.0), InputError, "momentum: 1.0 is not from 0"),
        (lambda: af.optim.Muon([nn.Parameter(torch.ones(2, 2))], ns_steps=0), InputError, "ns_steps: 0 is not"),
    ],
)  # fmt: skip
def test_optimizer_misuse_says_what_to_do(make, error, text):
    with pytest.raises(error, match=text):
        make()


def test_sparse_gradients_are_refused_with_advice():
    table = nn.Embedding(5, 3, sparse=True)
    table(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(CapabilityError, match="sparse=False"):
        af.optim.AdamW(table.parameters()).step()


@pytest.mark.cuda
@pytest.mark.parametrize("kind", [af.optim.AdamW, af.optim.Muon])
def test_optimizers_on_cuda_move_parameters_and_resume(kind):
    parameter = nn.Parameter(torch.randn(8, 16, device="cuda", dtype=torch.bfloat16))
    parameter.grad = torch.randn_like(parameter)
    optimizer = kind([parameter], lr=0.1)
    optimizer.step()
    twin = nn.Parameter(parameter.detach().clone())
    other = kind([twin], lr=0.1)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    twin.grad = parameter.grad.clone()
    optimizer.step()
    other.step()
    assert torch.equal(parameter, twin)
