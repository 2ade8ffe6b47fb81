"""Tools that look for torch's Linear and Embedding find those of a model, and what they do to them is kept."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize, prune

import anyformer as af
from anyformer.specs.parameters import weights
from tests.contract.draw import BASE, draw
from tests.tolerances import assert_close


class Adapted(nn.Module):
    """A low-rank adapter beside a linear map that stays as it is, as peft's LoRA has it."""

    def __init__(self, base: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        dtype = base.weight.dtype
        self.down = nn.Parameter(torch.randn(rank, base.in_features, dtype=dtype))
        self.up = nn.Parameter(torch.zeros(base.out_features, rank, dtype=dtype))

    def forward(self, x):
        return self.base(x) + x @ self.down.T @ self.up.T


def adapted(model):
    """Every Linear of a model with an adapter beside it."""
    model.requires_grad_(False)
    for path, module in list(model.named_modules()):
        if isinstance(module, nn.Linear):
            owner, _, name = path.rpartition(".")
            setattr(model.get_submodule(owner), name, Adapted(module))
    return model


def small(**changes):
    return af.build(af.spec(BASE, changes), dtype=torch.float64).eval()


IDS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])


@pytest.mark.parametrize("seed", range(0, 30, 2))
def test_tools_find_every_matrix_of_a_model_that_is_a_linear_map(seed):
    spec = draw(seed)
    with torch.device("meta"):
        model = af.Model(spec)
    found = {f"{path}.weight" for path, m in model.named_modules() if isinstance(m, nn.Linear)}
    roles = ("query", "key", "value", "attention_out", "dense", "project", "router")
    # Experts lie in one stack, and the head of tokens may be the table itself.
    wanted = {
        name for name, w in weights(spec).items() if w.role in (*roles, "ffn_in", "ffn_out") and len(w.shape) == 2
    }
    assert wanted <= found
    tables = {f"{path}.weight" for path, m in model.named_modules() if isinstance(m, nn.Embedding)}
    assert tables == {name for name, w in weights(spec).items() if w.role == "embedding"}


def test_adapters_beside_linear_maps_start_without_effect_and_are_all_that_learns():
    plain = small()
    model = adapted(copy.deepcopy(plain))
    assert_close("same", model(IDS).logits, plain(IDS).logits)
    model(IDS, labels=IDS).loss.backward()
    learning = {name for name, p in model.named_parameters() if p.grad is not None}
    assert learning
    assert all(name.endswith((".up", ".down")) for name in learning)


def test_adapters_that_learned_are_heard_in_generation():
    plain = small()
    model = adapted(copy.deepcopy(plain))
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith(".up"):
                p.normal_()
    step = af.generate(model, IDS, max_new_tokens=6)
    assert torch.equal(step, af.generate(model, IDS, max_new_tokens=6, use_cache=False))
    assert not torch.equal(step, af.generate(plain, IDS, max_new_tokens=6))


class Half(nn.Module):
    def forward(self, weight):
        return 0.5 * weight


@pytest.mark.parametrize("name", ["q", "gate"])
def test_linear_maps_parametrized_or_pruned_inside_a_model_are_moved_copied_and_generate(name):
    plain = small()
    for change in (
        lambda m: parametrize.register_parametrization(m, "weight", Half()),
        lambda m: prune.l1_unstructured(m, "weight", amount=0.5),
    ):
        model = copy.deepcopy(plain)
        for path, module in list(model.named_modules()):
            if path.endswith(f".{name}"):
                change(module)
        out = model(IDS).logits
        assert not torch.allclose(out, plain(IDS).logits)
        assert model.float()(IDS).logits.dtype == torch.float32
        model = model.double()
        assert torch.equal(
            af.generate(model, IDS, max_new_tokens=4), af.generate(model, IDS, max_new_tokens=4, use_cache=False)
        )
