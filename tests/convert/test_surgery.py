"""Checkpoint surgery: what is kept to the last bit, what is pooled how, and what is refused."""

import pytest
import torch

import anyformer as af
from anyformer.convert.surgery import Surgery, operate
from anyformer.errors import InputError, SpecError
from tests.contract.contracts import randomise
from tests.contract.draw import BASE
from tests.tolerances import assert_close

SPEC = {**BASE, "attention": {"heads": 4}, "position": {"kind": "rope"}}


def made(changes=None, base=SPEC):
    return randomise(af.build(af.spec(base, changes or {}), dtype=torch.float64), 0).eval()


def ids(model, length=12):
    return torch.randint(0, model.spec.input_vocab, (2, length), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def equalise(model, groups):
    """Make all key and value heads of a group the same."""
    for name, p in model.named_parameters():
        # A gain that all heads share has the size of one.
        if name.split(".")[-2] in ("k", "v", "k_norm", "v_norm") and p.shape != (model.spec.width // 4,):
            each = p.view(groups, 4 // groups, -1)
            each.copy_(each[:, :1].clone().expand_as(each))


ATTENTIONS = {
    "plain": {},
    "biased": {"attention.bias": "qkv"},
    "norm of each head": {"attention.qk_norm": {"scope": "heads"}},
    "norm of the vector": {"attention.qk_norm": {"scope": "whole"}},
    "one gain for all heads": {"attention.qk_norm": {"scope": "head"}},
    "alibi": {"position.kind": "alibi"},
}


@pytest.mark.parametrize("pool", ["mean", "first"])
@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("changes", ATTENTIONS.values(), ids=list(ATTENTIONS))
@torch.no_grad()
def test_pooling_equal_heads_leaves_the_logits(changes, heads, pool):
    model = made(changes)
    equalise(model, heads)
    fewer = operate(model, Surgery(kv_heads=heads, pool=pool))
    assert fewer.spec.attention.kv_heads == heads
    assert fewer.spec.count().params < model.spec.count().params
    assert_close("formula", fewer(ids(model)).logits, model(ids(model)).logits)


@torch.no_grad()
def test_pooling_takes_the_mean_of_neighbouring_heads():
    model = made()
    fewer = operate(model, Surgery(kv_heads=2))
    name = "decoder.blocks.0.attention.body.k.weight"
    old, new = dict(model.named_parameters())[name], dict(fewer.named_parameters())[name]
    size = old.shape[0] // 4
    assert_close("formula", new[:size], (old[:size] + old[size : 2 * size]) / 2)
    assert_close("formula", new[size:], (old[2 * size : 3 * size] + old[3 * size :]) / 2)


@torch.no_grad()
def test_pooling_in_two_steps_is_pooling_in_one():
    model = made()
    once = operate(model, Surgery(kv_heads=1))
    twice = operate(operate(model, Surgery(kv_heads=2)), Surgery(kv_heads=1))
    assert_close("formula", twice(ids(model)).logits, once(ids(model)).logits)


def test_pooling_at_random_draws_new_heads_by_the_seed():
    model = made()
    name = "decoder.blocks.0.attention.body.v.weight"
    first, again, other = (
        dict(operate(model, Surgery(kv_heads=2, pool="random", seed=s)).named_parameters())[name] for s in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    kept = dict(operate(model, Surgery(kv_heads=2, pool="random")).named_parameters())
    query = "decoder.blocks.0.attention.body.q.weight"
    assert torch.equal(kept[query], dict(model.named_parameters())[query])


def test_pooling_into_a_number_that_does_not_divide_is_refused():
    with pytest.raises(InputError, match=r"the 4 of layer 0 of the decoder can't be pooled into 3; pick from 1, 2, 4"):
        operate(made(), Surgery(kv_heads=3))


@pytest.mark.parametrize("topology", ["decoder", "encoder-decoder"])
@torch.no_grad()
def test_window_as_long_as_the_text_changes_nothing(topology):
    model = made({"topology": topology, "ids.start": 0})
    given = {"input_ids": ids(model)} | ({"decoder_input_ids": ids(model)} if topology != "decoder" else {})
    whole = model(**given).logits
    assert_close("formula", operate(model, Surgery(window=12))(**given).logits, whole)
    short = operate(model, Surgery(window=3))(**given).logits
    assert not torch.allclose(short, whole)
    assert_close("formula", short[:, :3], whole[:, :3])


def test_window_touches_only_layers_with_full_attention():
    model = made({"depth": 3, "layers": {"order": "a, b, a", "a": {"attention.pattern": "window(5)"}, "b": {}}})
    layers = operate(model, Surgery(window=7)).spec.stacks[0].layers
    assert [str(layer.attention.pattern) for layer in layers] == ["window(5)", "window(7)", "window(5)"]
    with pytest.raises(InputError, match="no layer of this model has full causal attention"):
        operate(made({"attention.pattern": "window(5)"}), Surgery(window=7))


@pytest.mark.parametrize("offset", [0, 2])
@torch.no_grad()
def test_more_positions_by_repeating_keep_the_logits_of_old_lengths(offset):
    model = made({"position": {"kind": "learned", "offset": offset}, "context": 12})
    longer = operate(model, Surgery(positions=30))
    assert longer.spec.context == 30
    assert torch.equal(longer(ids(model)).logits, model(ids(model)).logits)
    table = dict(longer.named_parameters())["decoder.positions.0.table"]
    assert torch.equal(table[offset + 12 : offset + 24], table[offset : offset + 12])
    assert longer(ids(model, 30)).logits.isfinite().all()


@torch.no_grad()
def test_more_positions_by_interpolation_keep_both_ends():
    model = made({"position": {"kind": "learned", "offset": 2}, "context": 12})
    old = dict(model.named_parameters())["decoder.positions.0.table"]
    new = dict(operate(model, Surgery(positions=23, extend="interpolate")).named_parameters())[
        "decoder.positions.0.table"
    ]
    assert torch.equal(new[:2], old[:2])
    assert_close("formula", new[2::2], old[2:])
    assert_close("formula", new[3], (old[2] + old[3]) / 2)


def test_fewer_positions_are_refused():
    with pytest.raises(InputError, match="positions: 3 is less than"):
        operate(made(), Surgery(positions=3))


@torch.no_grad()
def test_rope_theta_of_its_own_value_changes_nothing_and_another_does():
    model = made({"position.theta": 500.0})
    whole = model(ids(model)).logits
    assert torch.equal(operate(model, Surgery(theta=500.0))(ids(model)).logits, whole)
    assert not torch.allclose(operate(model, Surgery(theta=5000.0))(ids(model)).logits, whole)


def test_rope_theta_reaches_rope_layers_only():
    mixed = {
        "depth": 3,
        "position": {"kind": "none"},
        "layers": {"order": "a, b, a", "a": {"position": {"kind": "rope"}}, "b": {}},
    }
    layers = operate(made(mixed), Surgery(theta=7.0)).spec.stacks[0].layers
    assert [getattr(layer.position, "theta", None) for layer in layers] == [7.0, None, 7.0]
    with pytest.raises(InputError, match="no layer of this model has RoPE; its positions are alibi"):
        operate(made({"position.kind": "alibi"}), Surgery(theta=7.0))


@pytest.mark.parametrize("kind", ["linear", "dynamic", "yarn", "llama3"])
@torch.no_grad()
def test_rope_scaling_is_set_from_the_context_and_can_be_taken_back(kind):
    model = made({"context": 40})
    scaled = operate(model, Surgery(scaling=(kind, 4.0), positions=160))
    scaling = scaled.spec.position.scaling
    assert (scaling.kind, scaling.factor) == (kind, 4.0)
    assert getattr(scaling, "original", 40) == 40
    again = operate(scaled, Surgery(scaling=(kind, 8.0)))
    assert getattr(again.spec.position.scaling, "original", 40) == 40, "the first length counts, not the longer one"
    back = operate(scaled, Surgery(scaling=("none", 1.0)))
    assert torch.equal(back(ids(model)).logits, model(ids(model)).logits)


def test_rope_scaling_that_needs_more_than_a_factor_is_refused():
    with pytest.raises(
        InputError, match=r"'longrope' is none of dynamic, linear, llama3, yarn, none; for others use --set"
    ):
        operate(made(), Surgery(scaling=("longrope", 4.0)))


@torch.no_grad()
def test_other_changes_are_made_if_no_weight_needs_to_change():
    model = made()
    capped = operate(model, Surgery(changes={"attention.softcap": 1.0}))
    assert capped.spec.attention.softcap == 1.0
    assert not torch.allclose(capped(ids(model)).logits, model(ids(model)).logits)
    with pytest.raises(InputError, match=r"don't fit the changed spec:\n  .*q\.bias: would be new, and has no weights"):
        operate(model, Surgery(changes={"attention.bias": "q"}))
    with pytest.raises(InputError, match=r"would be left over"):
        operate(made({"attention.bias": "q"}), Surgery(changes={"attention.bias": ""}))
    with pytest.raises(SpecError, match=r"attention\.softcap"):
        operate(model, Surgery(changes={"attention.softcap": -1.0}))


def test_surgery_leaves_the_given_model_alone():
    model = made()
    before = {name: p.clone() for name, p in model.named_parameters()}
    operate(model, Surgery(kv_heads=1, window=4, theta=3.0))
    assert all(torch.equal(before[name], p) for name, p in model.named_parameters())


@pytest.mark.parametrize("scaling", [("linear", 2.0), ("none", 1.0)])
def test_rope_scaling_of_a_model_without_rope_is_refused(scaling):
    with pytest.raises(InputError, match="rope-scaling: no layer of this model has RoPE; its positions are alibi"):
        operate(made({"position.kind": "alibi"}), Surgery(scaling=scaling))
