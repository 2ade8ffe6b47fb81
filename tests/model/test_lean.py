"""A lean model answers as the plain one does, holds nothing twice, and leaves the plain one as it was."""

import copy

import pytest
import torch
from torch.nn import functional as F

import anyformer as af
from anyformer.families.family import Family
from anyformer.model.lean import lean, lean_blocks
from anyformer.parts.linear import Linear
from tests.contract import contracts
from tests.contract.contracts import answers, cached, model_of, padded_and_packed, randomise
from tests.contract.draw import BASE, draw
from tests.contract.feed import alone, document
from tests.families.cases import cases, config_of
from tests.tolerances import assert_close

SEEDS = range(0, 96, 4)


def small(**changes):
    return randomise(af.build(af.spec(BASE, changes), dtype=torch.float64), 0).eval()


def ids_of(model, tokens=9):
    return torch.randint(0, model.spec.input_vocab, (2, tokens), generator=torch.Generator().manual_seed(0))


def step(model, ids):
    """Logits of a prompt and of one token after it."""
    cache = model.new_cache(ids.shape[0], ids.shape[1])
    first = model(ids[:, :-1], cache=cache).logits
    return torch.cat((first, model(ids[:, -1:], cache=cache).logits), 1)


def check(spec, monkeypatch):
    """Whole, cached, chunked, padded and packed: the lean model keeps the promises of the plain one."""
    plain = model_of(spec)
    shell = lean(plain)
    assert sum(1 for _ in lean_blocks(shell)) == sum(s.depth for s in spec.stacks if not s.reversible)
    with torch.no_grad():
        doc = document(spec, contracts.length_of(spec), 5)
        assert_close("promise", answers(alone(shell, doc)), answers(alone(plain, doc)))
        monkeypatch.setattr(contracts, "model_of", lambda other: lean(model_of(other)))
        cached(spec)
        padded_and_packed(spec)


@pytest.mark.parametrize("seed", SEEDS)
def test_lean_model_of_a_random_spec_answers_as_the_plain_one(seed, monkeypatch):
    check(draw(seed), monkeypatch)


@pytest.mark.parametrize("kind", [kind for kind, variant in cases() if variant == "tiny"])
def test_lean_model_of_every_family_answers_as_the_plain_one(kind):
    family = Family.named(kind)
    assert family is not None
    spec = family.spec_from(config_of(kind, "tiny"))
    plain = randomise(af.build(spec, dtype=torch.float64), 0).eval()
    shell = lean(plain)
    doc = document(spec, contracts.length_of(spec), 5)
    with torch.no_grad():
        assert_close("promise", answers(alone(shell, doc)), answers(alone(plain, doc)))
        if spec.topology == "decoder" and contracts.keeps_a_cache(spec):
            ids = ids_of(plain, 13)
            assert_close("promise", step(shell, ids), step(plain, ids))


def test_random_specs_of_these_tests_reach_every_way_of_a_lean_block():
    blocks = [block for seed in SEEDS for block in lean_blocks(lean(model_of(draw(seed))))]
    assert {block.wiring for block in blocks} == {"serial", "parallel", "parallel2"}
    assert {block.mix.together for block in blocks if block.mix} == {True, False}
    assert any(block.cross is not None for block in blocks)


def test_lean_block_calls_none_of_the_maps_that_it_merged(monkeypatch):
    model = small()
    ids = ids_of(model)
    with torch.no_grad():
        wanted = step(model, ids)
        shell = lean(model)
        monkeypatch.setattr(Linear, "forward", lambda *_: pytest.fail("a map of its own was called"))
        assert_close("promise", step(shell, ids), wanted)


def test_lean_model_holds_no_weight_twice_and_keeps_names():
    model = small(attention={"bias": "qv"})
    names, size = list(model.state_dict()), sum(p.numel() for p in model.parameters())
    shell = lean(model)
    assert list(model.state_dict()) == list(shell.state_dict()) == names
    assert all(a is b for a, b in zip(model.parameters(), shell.parameters(), strict=True))
    body = model.decoder.blocks[0].attention.body
    merged = next(lean_blocks(shell)).mix.read
    held = {p.untyped_storage().data_ptr(): p.untyped_storage().nbytes() for p in model.parameters()}
    # A key has no bias here, and its zeros lie between those of queries and values.
    assert sum(held.values()) == 8 * (size + model.spec.depth * body.k.weight.shape[0])
    assert merged.weight_OI.data_ptr() == body.q.weight.data_ptr()
    assert body.k.weight.untyped_storage().data_ptr() == body.q.weight.untyped_storage().data_ptr()


def test_lean_model_is_made_once_and_again_where_parameters_were_replaced():
    model = small()
    shell = lean(model)
    assert lean(model) is shell
    assert lean(shell) is shell
    ids = ids_of(model)
    other = randomise(copy.deepcopy(model), 7)
    model.load_state_dict(other.state_dict())
    with torch.no_grad():
        # Loaded in place: what was merged has the new numbers.
        assert lean(model) is shell
        assert_close("promise", shell(ids).logits, other(ids).logits)
        model.to(torch.float32)
        again = lean(model)
        assert again is not shell
        assert again(ids).logits.dtype == torch.float32
        assert_close("fused", again(ids).logits, other(ids).logits)
        model.decoder.blocks[1].ffn.body.up.weight = torch.nn.Parameter(
            torch.zeros_like(model.decoder.blocks[1].ffn.body.up.weight)
        )
        assert_close("fused", lean(model)(ids).logits, model(ids).logits)


class Doubled(torch.nn.Module):
    """A map that somebody put in the place of another one, which it still has."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return 2 * self.inner(x)


def test_lean_model_runs_a_module_that_was_exchanged_and_calls_hooks():
    model = small()
    ids = ids_of(model)
    before = step(lean(model), ids)
    body = model.decoder.blocks[0].attention.body
    plain, body.q = body.q, Doubled(body.q)
    assert_close("promise", step(lean(model), ids), step(model, ids))
    assert not torch.equal(step(lean(model), ids), before)
    body.q = plain
    for module in (body.q, model.decoder.blocks[1]):
        hook = module.register_forward_hook(lambda module, given, found: 2 * found)
        assert_close("promise", step(lean(model), ids), step(model, ids))
        assert not torch.equal(step(lean(model), ids), before)
        hook.remove()
    assert_close("promise", step(lean(model), ids), before)


def test_lean_model_merged_in_inference_mode_still_learns_as_the_plain_one():
    model = small()
    twin = copy.deepcopy(model)
    with torch.inference_mode():
        shell = lean(model)
        shell(ids_of(model))
    ids = ids_of(model)
    for each in (model, twin):
        each.train()
        optimizer = torch.optim.AdamW(each.parameters(), lr=1e-2)
        for _ in range(2):
            optimizer.zero_grad()
            each(ids, labels=ids).loss.backward()
            optimizer.step()
        each.eval()
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(a, b)
    with torch.no_grad():
        assert lean(model) is shell
        assert_close("promise", shell(ids).logits, twin(ids).logits)


def test_lean_model_of_one_made_in_inference_mode_leaves_its_parameters_alone():
    with torch.inference_mode():
        model = small()
        ids = ids_of(model)
        answer = step(lean(model), ids)
        assert_close("promise", answer, step(model, ids))


def test_lean_model_with_gradients_or_in_training_runs_the_plain_blocks():
    model = small(attention={"dropout": 0.5})
    shell, ids = lean(model), ids_of(model)
    shell(ids, labels=ids).loss.backward()
    assert all(p.grad is not None for p in model.parameters())
    model.train()
    with torch.no_grad():
        assert not torch.equal(shell(ids).logits, shell(ids).logits)
        model.eval()
        assert torch.equal(shell(ids).logits, shell(ids).logits)


def test_lean_model_leaves_parameters_that_several_modules_use():
    model = small()
    first, second = (block.attention.body for block in model.decoder.blocks)
    second.q.weight = first.q.weight
    ids = ids_of(model)
    with torch.no_grad():
        wanted = model(ids).logits
        shell = lean(model)
        refused = "its weights don't lie side by side: a parameter was replaced, or several modules use it"
        assert [block.refusals for block in lean_blocks(shell)] == [{}, {"attention": refused}]
        assert second.q.weight is first.q.weight
        assert_close("promise", shell(ids).logits, wanted)


def test_lean_model_of_a_reversible_or_global_spec_stays_plain_where_it_must():
    reversible = small(block={"wiring": "reversible"})
    assert list(lean_blocks(lean(reversible))) == []
    marked = small(attention={"pattern": "causal & (window(3) | global_tokens(first=1))", "global_projections": True})
    for block in lean_blocks(lean(marked)):
        assert block.refusals == {"attention": "its global tokens have projections of their own"}
        assert block.feed is not None


@pytest.mark.parametrize("format", ["anyformer", "hf"])
def test_lean_model_is_saved_as_the_plain_one(format, tmp_path):
    model = small(head={"kind": "lm", "tied": True})
    before = {name: value.clone() for name, value in model.state_dict().items()}
    for each in (model, lean(model)):
        af.save(each, tmp_path, format=format)
        again = af.load(tmp_path, dtype=torch.float64).state_dict()
        assert all(torch.equal(again[name], value) for name, value in before.items())


def test_lean_feed_forward_keeps_to_its_chunk(monkeypatch):
    model = small(ffn={"kind": "swiglu", "width": 20, "chunk": 4})
    ids, rows, plain = ids_of(model), [], F.silu
    shell = lean(model)
    monkeypatch.setattr(F, "silu", lambda x: (rows.append(x.shape[:-1].numel()), plain(x))[1])
    with torch.no_grad():
        step(shell, ids)
    assert max(rows) == 4
    assert min(rows) == 2
