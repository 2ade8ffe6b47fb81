"""Fused projections: their owner lays them out when it materialises, and nobody else ever moves a parameter; they answer
as map by map, and give way to whatever somebody put in their place or listens to.
"""

import copy
import io
import pickle

import pytest
import torch

import anyformer as af
from anyformer.convert.surgery import Surgery, operate
from anyformer.families.family import Family
from anyformer.kernels.activations import ACTIVATIONS
from anyformer.parts.fused_linear import Fused, FusedInputs, side_by_side, why_not
from anyformer.parts.linear import Linear
from anyformer.parts.norm import Norm
from anyformer.train.components import restaged
from anyformer.train.optim import Optimizers
from tests.contract import contracts
from tests.contract.contracts import answers, keeps_a_cache, length_of, randomise
from tests.contract.draw import BASE, draw
from tests.contract.feed import alone, document
from tests.families.cases import cases, config_of
from tests.tolerances import assert_close

BIASED = {"attention": {"heads": 6, "bias": "qv"}}


def small(**changes):
    return randomise(af.build(af.spec(BASE, changes or BIASED)), 0).eval()


def owners(model):
    return [module for module in model.modules() if isinstance(module, FusedInputs)]


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
def test_fused_inputs_that_materialise_in_any_way_lie_side_by_side(way, tmp_path):
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
def test_fused_inputs_of_a_random_spec_lie_side_by_side_and_stay_there(seed):
    model = randomise(af.build(draw(seed), dtype=torch.float64), 0).eval()
    before = places(model)
    assert set(refusals(model)) <= {None}
    with torch.no_grad():
        alone(model, document(model.spec, length_of(model.spec), 5))
    assert places(model) == before


@pytest.mark.quick
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


def test_fused_biases_leave_zeros_where_a_map_has_none():
    model = small()
    body = model.decoder.blocks[0].attention.body
    assert body.k.bias is None
    q, k, v = side_by_side(body.inputs()).bias_O.split([m.weight.shape[0] for m in (body.q, body.k, body.v)])
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
    first, *others = refusals(model)
    assert "side by side" in first
    assert set(others) == {None}
    with torch.no_grad():
        assert_close("promise", model(ids).logits, plainly(model, ids))


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


def plainly(model, ids):
    """Logits map by map: with gradients nothing is fused."""
    with torch.enable_grad():
        return model(ids).logits.detach()


def step(model, ids):
    """Logits of a prompt and of one token after it."""
    cache = model.new_cache(ids.shape[0], ids.shape[1])
    first = model(ids[:, :-1], cache=cache).logits
    return torch.cat((first, model(ids[:, -1:], cache=cache).logits), 1)


def ids_of(model, tokens=9):
    return torch.randint(0, model.spec.input_vocab, (2, tokens), generator=torch.Generator().manual_seed(0))


@pytest.fixture
def products(monkeypatch):
    """How many fused products were made."""
    made, project = [], Fused.project
    monkeypatch.setattr(
        Fused, "project", lambda *given: (made.append("ffn" if len(given) > 3 else "attention"), project(*given))[1]
    )
    return made


def unfused(monkeypatch):
    monkeypatch.setattr(FusedInputs, "fused", lambda *_: None)


@pytest.mark.parametrize("seed", range(0, 96, 4))
def test_fused_model_of_a_random_spec_keeps_its_promises_and_answers_as_map_by_map(seed, monkeypatch, products):
    spec = draw(seed)
    model = contracts.model_of(spec)
    doc = document(spec, length_of(spec), 5)
    with torch.no_grad():
        found = answers(alone(model, doc))
        assert products or all(not layer.attention.mixer.weighs for stack in spec.stacks for layer in stack.layers)
        contracts.cached(spec)
        contracts.padded_and_packed(spec)
        unfused(monkeypatch)
        assert_close("promise", found, answers(alone(model, doc)))


@pytest.mark.parametrize("kind", [kind for kind, variant in cases() if variant == "tiny"])
def test_fused_model_of_every_family_answers_as_map_by_map(kind, monkeypatch):
    family = Family.named(kind)
    assert family is not None
    spec = family.spec_from(config_of(kind, "tiny"))
    model = randomise(af.build(spec, dtype=torch.float64), 0).eval()
    doc, steps = document(spec, length_of(spec), 5), spec.topology == "decoder" and keeps_a_cache(spec)
    ids = ids_of(model, 13) if steps else None
    with torch.no_grad():
        found = [answers(alone(model, doc)), *([step(model, ids)] if steps else [])]
        unfused(monkeypatch)
        for got, want in zip(found, [answers(alone(model, doc)), *([step(model, ids)] if steps else [])], strict=True):
            assert_close("promise", got, want)


def test_fused_block_calls_none_of_its_maps_and_norms(monkeypatch):
    model = small(attention={"heads": 6}).double()
    ids = ids_of(model)
    wanted = plainly(model, ids)
    monkeypatch.setattr(Linear, "forward", lambda *_: pytest.fail("a map of its own was called"))
    norms = [model.decoder.final_norm]
    norm = Norm.forward
    monkeypatch.setattr(
        Norm, "forward", lambda self, x: norm(self, x) if self in norms else pytest.fail("a norm was called")
    )
    with torch.no_grad():
        assert_close("promise", model(ids).logits, wanted)


def test_fused_products_are_for_passes_in_which_nothing_learns_compiles_or_is_cast(products):
    model = small(attention={"heads": 6})
    ids = ids_of(model)
    model(ids)
    with torch.no_grad():
        model.train()(ids)
        model.eval()
        torch.compile(model, backend="eager")(ids)
        with torch.autocast("cpu", torch.bfloat16, enabled=True):
            assert all(owner.fused(torch.zeros(1)) is None for owner in owners(model))
        assert products == []
        model(ids)
    assert products == ["attention", "ffn"] * model.spec.depth


PARTS = {
    "q": lambda block: block.attention.body.q,
    "k": lambda block: block.attention.body.k,
    "v": lambda block: block.attention.body.v,
    "o": lambda block: block.attention.body.o,
    "norm of attention": lambda block: block.attention.inner,
    "attention": lambda block: block.attention.body,
    "gate": lambda block: block.ffn.body.gate,
    "up": lambda block: block.ffn.body.up,
    "down": lambda block: block.ffn.body.down,
    "norm of the feed-forward": lambda block: block.ffn.inner,
    "feed-forward": lambda block: block.ffn.body,
    "block": lambda block: block,
}


@pytest.mark.parametrize("part", PARTS)
def test_hook_on_any_part_fires_with_what_the_part_reads_and_gives(part):
    model = small(attention={"heads": 6}).double()
    ids, module = ids_of(model), PARTS[part](model.decoder.blocks[1])
    seen = []
    keep = module.register_forward_hook(lambda _, given, found: seen.append((given[0].clone(), found.clone())))
    wanted = plainly(model, ids)
    with torch.no_grad():
        assert_close("promise", model(ids).logits, wanted)
        af.generate(model, ids, max_new_tokens=2)
    assert len(seen) >= 4
    for got, want in zip(seen[1], seen[0], strict=True):
        assert_close("promise", got, want)
    keep.remove()
    change = module.register_forward_hook(lambda _, given, found: 2 * found)
    with torch.no_grad():
        assert_close("promise", model(ids).logits, plainly(model, ids))
        assert not torch.equal(model(ids).logits, wanted)
        change.remove()
        before = module.register_forward_pre_hook(lambda _, given: (2 * given[0], *given[1:]))
        assert_close("promise", model(ids).logits, plainly(model, ids))
        before.remove()
        assert_close("promise", model(ids).logits, wanted)


def test_hook_on_all_modules_fires_for_every_map():
    model = small(attention={"heads": 6})
    seen = []
    handle = torch.nn.modules.module.register_module_forward_hook(lambda module, *_: seen.append(type(module).__name__))
    try:
        with torch.no_grad():
            model(ids_of(model))
    finally:
        handle.remove()
    assert seen.count("Linear") == 7 * model.spec.depth


def test_what_a_hook_on_a_block_keeps_is_not_written_over():
    model = small(attention={"heads": 6})
    kept = []
    for block in model.decoder.blocks:
        block.register_forward_hook(lambda _, given, found: kept.append((found, found.clone())))
    with torch.no_grad():
        model(ids_of(model))
        af.generate(model, ids_of(model), max_new_tokens=3)
    assert all(torch.equal(a, b) for a, b in kept)


class Doubled(torch.nn.Module):
    """A map that somebody put in the place of another one, which it still has."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x, *rest):
        return 2 * self.inner(x, *rest)


@pytest.mark.parametrize("part", ["q", "o", "norm of attention", "attention", "up", "down", "feed-forward"])
def test_module_that_was_put_in_the_place_of_a_part_runs(part):
    model = small(attention={"heads": 6}).double()
    ids, block = ids_of(model), model.decoder.blocks[0]
    module = PARTS[part](block)
    name = next(name for name, each in model.named_modules() if each is module)
    with torch.no_grad():
        wanted = model(ids).logits
        model.set_submodule(name, Doubled(module))
        assert_close("promise", model(ids).logits, plainly(model, ids))
        assert not torch.equal(model(ids).logits, wanted)
        model.set_submodule(name, module)
        assert_close("promise", model(ids).logits, wanted)


@pytest.mark.quick
def test_fused_products_follow_weights_however_they_are_written():
    model = small(attention={"heads": 6}).double()
    ids, other = ids_of(model), randomise(af.build(af.spec(BASE, {"attention": {"heads": 6}}), dtype=torch.float64), 7)
    ways = {
        "load_state_dict": lambda: model.load_state_dict(other.state_dict()),
        "assign": lambda: model.load_state_dict({n: v.clone() for n, v in other.state_dict().items()}, assign=True),
        "data =": lambda: [setattr(p, "data", q.detach().clone()) for p, q in zip(model.parameters(), other.parameters(), strict=True)],
        "copy_": lambda: [p.data.copy_(q) for p, q in zip(model.parameters(), other.parameters(), strict=True)],
    }  # fmt: skip
    with torch.no_grad():
        for seed, way in enumerate(ways.values()):
            randomise(other, 10 + seed)
            model(ids)
            way()
            assert_close("promise", model(ids).logits, plainly(other, ids))


def test_fused_model_that_read_in_inference_mode_still_learns():
    model = small(attention={"heads": 6})
    twin, ids = copy.deepcopy(model), ids_of(model)
    with torch.inference_mode():
        model(ids)
    for each in (model, twin):
        each.train()
        optimizer = torch.optim.AdamW(each.parameters(), lr=1e-2)
        for _ in range(2):
            optimizer.zero_grad()
            each(ids, labels=ids).loss.backward()
            optimizer.step()
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(a, b)


def test_parameter_that_several_modules_use_stays_one():
    model = small(attention={"heads": 6})
    first, second = (block.attention.body for block in model.decoder.blocks)
    second.q.weight = first.q.weight
    ids = ids_of(model)
    with torch.no_grad():
        assert_close("fused", model(ids).logits, plainly(model, ids))
    assert second.q.weight is first.q.weight
    assert second.fused(torch.zeros(1)) is None


def test_fused_feed_forward_keeps_to_its_chunk(monkeypatch):
    model = small(ffn={"kind": "swiglu", "width": 20, "chunk": 4})
    rows, silu = [], ACTIVATIONS["silu"]
    monkeypatch.setitem(ACTIVATIONS, "silu", lambda x: (rows.append(x.shape[:-1].numel()), silu(x))[1])
    with torch.no_grad():
        step(model, ids_of(model))
    assert (min(rows), max(rows)) == (2, 4)
