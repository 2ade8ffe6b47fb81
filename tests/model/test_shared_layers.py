"""Layers that share their parameters: one block run several times, with a cache for each of its layers."""

import pytest
import torch

import anyformer as af
from anyformer.errors import SpecError
from anyformer.model.model import Model
from anyformer.specs import ModelSpec
from anyformer.verify.shrink import small
from tests.tolerances import assert_close

BASE = {
    "vocab": 37, "width": 16, "depth": 4, "context": 32, "attention": {"heads": 4, "kv_heads": 2},
    "ffn": {"kind": "swiglu", "width": 20},
}  # fmt: skip
IDS = torch.randint(0, 37, (2, 12), generator=torch.Generator().manual_seed(0))


def spec_with(shared, **changes) -> ModelSpec:
    return af.spec(BASE, changes | {"layers.shared": shared})


def pair(shared, **changes) -> tuple[Model, Model]:
    """A model whose layers share, and one with a copy of the same numbers for each layer."""
    spec = spec_with(shared, **changes)
    model, plain = (af.build(s, dtype=torch.float64) for s in (spec, spec.vary({"layers.shared": ""})))
    stack, own = spec.stacks[-1], dict(model.named_parameters())
    with torch.no_grad():
        for name, parameter in plain.named_parameters():
            parts = name.split(".")
            if parts[1] == "blocks":
                parts[2] = str(stack.uses[int(parts[2])])
            parameter.copy_(own[".".join(parts)])
    return model, plain


@pytest.mark.parametrize(
    ("shared", "uses"),
    [
        ("all", (0, 0, 0, 0)),
        ("a, b", (0, 1, 0, 1)),
        ("1 a, rest b", (0, 1, 1, 1)),
        (["x", "y", "y", "z"], (0, 1, 1, 2)),
    ],
)
def test_order_of_shared_sets_says_which_block_each_layer_runs(shared, uses):
    spec = spec_with(shared)
    assert spec.stacks[0].uses == uses
    assert len(spec.stacks[0].blocks) == len(set(uses))
    assert ModelSpec.from_toml(spec.to_toml()) == spec
    assert len(af.build(spec, device="meta").decoder.blocks) == len(set(uses))
    assert small(spec).stacks[0].shared


def test_sets_with_one_layer_each_share_nothing():
    assert spec_with(["a", "b", "c", "d"]).stacks[0].shared == ()


def test_list_of_another_length_is_refused():
    with pytest.raises(SpecError, match=r"layers.shared: lists 2 layers but depth is 4"):
        spec_with(["a", "b"])


@pytest.mark.parametrize("wiring", ["serial", "parallel", "reversible"])
@pytest.mark.parametrize("shared", ["all", "a, b"])
def test_shared_gradient_is_the_sum_over_the_layers_that_share(shared, wiring):
    model, plain = pair(shared, **{"block.wiring": wiring})
    for each in (model, plain):
        each(IDS, labels=IDS).loss.backward()
    total: dict[str, torch.Tensor] = {}
    for name, parameter in plain.named_parameters():
        parts = name.split(".")
        if parts[1] == "blocks":
            parts[2] = str(model.spec.stacks[0].uses[int(parts[2])])
        total[".".join(parts)] = total.get(".".join(parts), 0) + parameter.grad
    assert total.keys() == dict(model.named_parameters()).keys()
    for name, parameter in model.named_parameters():
        assert_close("formula", parameter.grad, total[name])


def test_shared_parameters_are_stored_and_counted_once(tmp_path):
    model, _ = pair("all")
    assert set(model.state_dict()) == set(model.spec.count().weights)
    assert model.spec.count().params == sum(p.numel() for p in model.parameters())
    af.save(model, tmp_path / "kept")
    again = af.load(tmp_path / "kept")
    assert again.spec == model.spec
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


@pytest.mark.parametrize("mixer", ["softmax", "linear"])
def test_each_run_of_a_block_has_a_cache_of_its_own(mixer):
    model, plain = (each.eval() for each in pair("all", **{"attention.mixer.kind": mixer}))
    cache, other = model.new_cache(2, 16), plain.new_cache(2, 16)
    assert cache.nbytes == other.nbytes == model.spec.count().kv_bytes(16, "float64", 2)
    for part in IDS.split((5, 1, 1, 5), 1):
        assert_close("formula", model(part, cache=cache).logits, plain(part, cache=other).logits)


def test_trace_shows_every_layer_of_a_shared_block():
    model, plain = (each.eval() for each in pair("all"))
    found, wanted = (each.trace(IDS, attention="all", logits="all") for each in (model, plain))
    assert found.keys() == wanted.keys()
    for name in wanted:
        assert_close("formula", found[name], wanted[name])


def test_generated_text_of_shared_layers_is_that_of_their_copies():
    made = [af.generate(each, IDS[:1, :4], max_new_tokens=8, temperature=0.0) for each in pair("a, b")]
    assert torch.equal(*made)
