"""Merged projections: their owner lays them out when it materialises, and nobody else ever moves a parameter."""

import copy
import io
import pickle

import pytest
import torch

import anyformer as af
from anyformer.convert.surgery import Surgery, operate
from anyformer.model.lean import lean, lean_blocks
from anyformer.parts.merged import MergedInputs, why_not
from anyformer.train.optim import Optimizers
from anyformer.train.stages import restaged
from tests.contract.contracts import randomise
from tests.contract.draw import BASE, draw
from tests.tolerances import assert_close

BIASED = {"attention": {"heads": 6, "bias": "qv"}}


def small(**changes):
    return randomise(af.build(af.spec(BASE, changes or BIASED)), 0).eval()


def owners(model):
    return [module for module in model.modules() if isinstance(module, MergedInputs)]


def refusals(model):
    return [why_not(owner.inputs()) for owner in owners(model)]


def places(model):
    return {name: (id(p), p.data_ptr(), p.storage_offset()) for name, p in model.named_parameters()}


def saved_and_loaded(model, folder, format):
    af.save(model, folder, format=format)
    return af.load(folder)


def torch_saved(model):
    held = io.BytesIO()
    torch.save(model, held)
    held.seek(0)
    return torch.load(held, weights_only=False)


def moved_to_meta_and_back(model):
    values = {name: value.clone() for name, value in model.state_dict().items()}
    model.to("meta").to_empty(device="cpu")
    model.load_state_dict(values)
    return model


WAYS = {
    "built": lambda model, folder: model,
    "deepcopy": lambda model, folder: copy.deepcopy(model),
    "pickle": lambda model, folder: pickle.loads(pickle.dumps(model)),
    "torch.save": lambda model, folder: torch_saved(model),
    "cast": lambda model, folder: model.double(),
    "cast twice": lambda model, folder: model.double().float(),
    "meta": lambda model, folder: moved_to_meta_and_back(model),
    "our format": lambda model, folder: saved_and_loaded(model, folder, "anyformer"),
    "published": lambda model, folder: saved_and_loaded(model, folder, "hf"),
    "surgery": lambda model, folder: operate(model, Surgery(window=3)),
    "stage": lambda model, folder: restaged(model, model.spec.vary({"attention.pattern": "window(3)"})),
}


@pytest.mark.parametrize("way", WAYS)
def test_merged_inputs_that_materialise_in_any_way_lie_side_by_side(way, tmp_path):
    model = small(attention={"heads": 6}, position={"kind": "rope"}, ffn={"kind": "swiglu"}, norm={"kind": "rmsnorm"})
    values = {name: value.clone() for name, value in model.state_dict().items()}
    made = WAYS[way](model, tmp_path)
    assert owners(made)
    assert refusals(made) == [None] * len(owners(made))
    for name, value in made.state_dict().items():
        assert torch.equal(value.float(), values[name]), name
    # Nothing is held twice.
    held = {p.untyped_storage().data_ptr(): p.untyped_storage().nbytes() for p in owners(made)[0].parameters()}
    assert sum(held.values()) == sum(p.nbytes for p in owners(made)[0].parameters())


@pytest.mark.parametrize("seed", range(0, 60, 5))
def test_merged_inputs_of_a_random_spec_lie_side_by_side_and_stay_there(seed):
    model = randomise(af.build(draw(seed)), 0).eval()
    before = places(model)
    assert set(refusals(model)) <= {None}
    shell = lean(model)
    assert all("side by side" not in why for block in lean_blocks(shell) for why in block.refusals.values())
    assert places(model) == before


def test_generate_trace_and_evaluation_move_no_parameter():
    model = small()
    before, ids = places(model), torch.tensor([[1, 2, 3, 4]])
    for options in ({}, {"num_beams": 2}, {"use_cache": False}, {"temperature": 1.0, "seed": 0}):
        af.generate(model, ids, max_new_tokens=3, **options)
    model.trace(ids)
    with torch.no_grad():
        model(ids)
    assert places(model) == before


def test_shallow_copy_of_an_owner_moves_no_parameter():
    model = small()
    # Parameters that were replaced lie apart, and stay there.
    model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()}, assign=True)
    before, ids = places(model), torch.tensor([[1, 2, 3, 4]])
    for owner in owners(model):
        assert copy.copy(owner).inputs() == owner.inputs()
    model.trace(ids)
    af.generate(model, ids, max_new_tokens=2)
    assert places(model) == before


def test_cast_to_what_they_are_moves_no_parameter():
    model = small()
    model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()}, assign=True)
    before = places(model)
    model.to(torch.float32).to("cpu").float()
    assert places(model) == before
    assert set(refusals(model.double())) == {None}


def test_merged_biases_leave_zeros_where_a_map_has_none():
    model = small()
    block = next(lean_blocks(lean(model)))
    body = model.decoder.blocks[0].attention.body
    assert body.k.bias is None
    q, k, v = block.mix.read.bias_O.split([m.weight.shape[0] for m in (body.q, body.k, body.v)])
    assert torch.equal(q, body.q.bias)
    assert torch.equal(v, body.v.bias)
    assert not k.any()


def test_optimizers_move_parameters_that_were_moved_in_memory_since_they_were_made():
    model = small().train()
    optimizers = Optimizers(model)
    ids = torch.tensor([[1, 2, 3, 4, 5]])
    # As `.to(...)` of a device and back does it: the parameters are the same objects, their memory is not.
    model._apply(torch.clone)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    model(ids, labels=ids).loss.backward()
    optimizers.step(1.0)
    assert [name for name, p in model.named_parameters() if torch.equal(p, before[name])] == []


def test_surgery_leaves_the_given_model_alone_when_its_result_is_trained():
    model = small(attention={"heads": 6})
    values = {name: value.clone() for name, value in model.state_dict().items()}
    made = operate(model, Surgery(window=3))
    with torch.no_grad():
        for p in made.parameters():
            p.add_(1)
    assert all(torch.equal(value, values[name]) for name, value in model.state_dict().items())


def test_replaced_parameter_switches_to_plain_products_with_the_same_answer():
    model = small(attention={"heads": 6}).double()
    ids = torch.tensor([[1, 2, 3, 4]])
    body = model.decoder.blocks[0].attention.body
    body.q.weight = torch.nn.Parameter(body.q.weight.detach() * 2)
    first, *others = lean_blocks(lean(model))
    assert "side by side" in first.refusals["attention"]
    assert all(block.refusals == {} for block in others)
    with torch.no_grad():
        assert_close("promise", lean(model)(ids).logits, model(ids).logits)


def test_owner_keeps_values_that_a_function_gives_to_parameters_on_the_meta_device():
    model = af.build(af.spec(BASE), device="meta")
    model._apply(lambda t: torch.full_like(t, 2.0, device="cpu"))
    assert all((p == 2).all() for p in model.parameters())
    part = af.build(af.spec(BASE), device="meta")
    body = part.decoder.blocks[0].attention.body
    body.q.weight = torch.nn.Parameter(torch.full(body.q.weight.shape, 3.0))
    part._apply(lambda t: torch.zeros_like(t, device="cpu") if t.is_meta else t)
    assert (body.q.weight == 3).all()
    assert (body.k.weight == 0).all()


def test_owner_whose_map_was_pruned_is_moved_and_runs():
    from torch.nn.utils import prune

    model = small()
    prune.random_unstructured(model.decoder.blocks[0].attention.body.q, "weight", 0.5)
    ids = torch.arange(6)[None]
    with torch.no_grad():
        wanted = model(ids).logits
        assert_close("fused", model.to(torch.float64)(ids).logits.float(), wanted)
    assert af.generate(model, ids, max_new_tokens=2).shape == (1, 8)


def test_owner_that_lays_out_anew_keeps_shared_memory_shared():
    model = small()
    body = model.decoder.blocks[0].attention.body
    body.q.weight = torch.nn.Parameter(body.q.weight.detach().clone())
    model.share_memory()
    assert all(p.is_shared() for p in model.parameters())
