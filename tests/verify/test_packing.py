"""Packed documents: what passes, and that a leak, a wrong loss and wrong positions are each found."""

import pytest
import torch

import anyformer as af
from anyformer.errors import InputError
from anyformer.model import model as models
from anyformer.model import token_layout
from anyformer.specs.stacks import LAYER_NODES
from anyformer.verify.packing import Packing, check_packs, packing, randomise
from anyformer.verify.shrink import PARAMS, is_large, small, span
from tests.contract.draw import BASE


def model_of(changes: dict) -> af.Model:
    return randomise(af.build(af.spec(BASE, changes), dtype=torch.float64), 0)


def checked(changes: dict, **more) -> Packing:
    return packing(model_of(changes), **more)


@pytest.mark.parametrize(
    "changes",
    [
        {"attention.pattern": "causal & chunked(6)", "position.kind": "alibi"},
        {"attention.pattern": "window(5)", "attention.mixer": {"kind": "softmax", "sinks": True}},
        {"topology": "encoder", "attention.pattern": "symmetric_window(3) | global_tokens(1)", "position.kind": "learned"},
        {"topology": "encoder-decoder", "position.kind": "t5", "embed.token_types": 3},
        {"position": {"kind": "rope", "scaling": {"kind": "dynamic", "original": 8, "factor": 3.0}}},
        {"attention.mixer": "linear"},
        {"head.kind": "none", "position.kind": "xl"},
        {"topology": "encoder", "embed": {"kind": "series", "channels": 2}, "head": {"kind": "token", "labels": 5}},
    ],
    ids=lambda changes: " ".join(map(str, changes)),
)  # fmt: skip
def test_packing_of_a_right_model_passes(changes):
    found = checked(changes, documents=3, seed=1)
    assert found.passed, found
    assert found.exact
    assert [found.moved[i][j] for i in range(3) for j in range(3) if i != j] == [0.0] * 6
    assert min(found.moved[i][i] for i in range(3)) > 0.01
    assert max(found.answers) < 1e-12


def test_packing_without_walls_between_documents_is_found_by_the_leak(monkeypatch):
    def open_(some: token_layout.TokenLayout):
        return honest(some)._replace(document=0)

    honest = token_layout.tokens_of
    monkeypatch.setattr(token_layout, "tokens_of", open_)
    found = checked({"position.kind": "none"}, documents=3)
    assert not found.passed
    # Positions start again in each document, so a token sees those of all that stand at its own place or before.
    assert found.leaks == tuple((i, j) for i in range(3) for j in range(3) if i != j)
    assert not found.same


def test_packing_with_a_loss_across_the_border_is_found_by_the_loss(monkeypatch):
    monkeypatch.setattr(models, "follows", lambda some: None)
    found = checked({}, documents=3)
    assert not found.passed
    assert found.leaks == ()
    assert max(found.answers) < 1e-12
    assert found.loss > 1e-3
    assert found.gradient > 1e-3


def test_packing_with_positions_that_go_on_is_found_by_the_answers(monkeypatch):
    def counted_on(*args, **named):
        made = honest(*args, **named)
        made.pos_BT = torch.arange(args[1])[None].expand(args[0], -1)
        return made

    honest = models.place
    monkeypatch.setattr(models, "place", counted_on)
    found = checked({"position.kind": "sinusoidal"}, documents=3)
    assert not found.passed
    assert found.leaks == ()
    assert found.answers[0] < 1e-12 < 1e-3 < found.answers[1]


def test_packing_of_a_model_that_answers_to_nothing_does_not_pass():
    model = model_of({})
    with torch.no_grad():
        model.head.weight.zero_()
    found = packing(model, documents=2)
    assert found.deaf == (0, 1)
    assert not found.passed


def test_packing_of_a_model_that_is_not_finite_does_not_pass():
    model = model_of({})
    with torch.no_grad():
        model.decoder.blocks[1].ffn.body.up.weight[0] = torch.inf
    found = packing(model, documents=2)
    assert not found.same
    assert not found.passed
    assert found.answers[0] == float("inf")


def test_packing_of_an_approximate_mixer_is_held_to_no_leak_and_the_same_twice():
    mixer = {"kind": "lsh", "chunk": 8, "rounds": 2}
    found = checked({"attention": {"kv_heads": 6, "mixer": mixer}}, length=40)
    assert not found.exact
    assert found.passed, found
    assert found.leaks == ()
    assert found.repeated == 0
    # It does differ from alone, so that being held to that would fail.
    assert not found.same


def test_packing_of_a_mixer_that_draws_anew_in_each_pass_draws_the_same_here():
    mixer = {"kind": "lsh", "chunk": 8, "seed": False}
    assert checked({"attention": {"kv_heads": 6, "mixer": mixer}}, length=40).repeated == 0


def test_packing_documents_reach_past_what_patterns_span():
    found = checked({"attention.pattern": "window(9)"})
    assert [lengths[0] for lengths in found.lengths] == [9, 29, 1, 17]
    assert found.notes == ()
    short = checked({"attention.pattern": "window(9)"}, length=8)
    assert short.notes == ("patterns span 9 tokens, more than the longest document has; --length 10 reaches past it",)


def test_packing_of_bad_input_says_what_is_wrong():
    with pytest.raises(InputError, match="'sequence' head gives one answer for a whole row"):
        check_packs(af.spec(BASE, {"topology": "encoder", "head": {"kind": "sequence", "labels": 3}}))
    with pytest.raises(InputError, match="reads pixel_values"):
        check_packs(af.spec("vit-b-16"))
    model = model_of({"position.kind": "learned"})
    with pytest.raises(InputError, match="length: 65 is more than the 64 positions"):
        packing(model, length=65)
    with pytest.raises(InputError, match="documents: 1 can't show"):
        packing(model, documents=1)


PRESETS = (
    "llama-3.1-8b", "gemma-3-4b", "t5-small", "bigbird-base", "led-base", "phi-3-small-8k", "phi-3-mini-128k", "gpt-j-6b",
    "opt-350m", "sparse-transformer-enwik8", "longformer-base", "qwen-7b",
)  # fmt: skip


@pytest.mark.parametrize("name", PRESETS)
def test_small_keeps_every_axis_of_a_preset(name):
    whole = af.spec(name)
    assert is_large(whole)
    made = small(whole)
    assert made.count().params < PARAMS / 4
    assert made.vocab == 101
    assert span(made) <= 16
    assert not is_large(made)
    assert (made.topology, made.head, made.embed.kind) == (whole.topology, whole.head, whole.embed.kind)
    for big, little in zip(whole.stacks, made.stacks, strict=True):
        assert (big.norm.has_final(), big.norm.embedding) == (little.norm.has_final(), little.norm.embedding)
        assert big.cross == little.cross
        assert {kinds(layer) for layer in big.layers} == {kinds(layer) for layer in little.layers}
        assert little.depth >= 2


def kinds(layer) -> tuple:
    """What a layer is, but for its sizes."""
    a = layer.attention
    pattern = None if a.pattern is None else "".join(c for c in str(a.pattern) if not c.isdigit())
    shared = "mha" if a.kv_heads in (None, a.heads) else "mqa" if a.kv_heads == 1 else "gqa"
    scaling = getattr(layer.position, "scaling", None)
    return (
        shared, pattern, a.mixer.kind, a.bias, a.scale, a.softcap, a.qk_norm, a.clip_qkv, a.temperature is None,
        layer.position.kind, scaling and scaling.kind, layer.ffn.kind, layer.norm, layer.block,
        *(getattr(layer, node) is None for node in LAYER_NODES),
    )  # fmt: skip


def test_small_of_a_spec_that_can_not_be_narrowed_keeps_what_it_must():
    first = af.spec(BASE, {"attention": {"heads": 8, "kv_heads": 8, "pattern": "heads(0, 6) & window(400) | causal"}})
    made = small(first)
    assert made.attention.heads == 8
    assert made.stacks[0].layers[0].attention.heads == 8
    assert span(made) <= 16


def test_packing_leaves_the_modes_and_gradients_of_the_model_as_they_were():
    model = model_of({"block.dropout": 0.1, "loss.z": 1e-3}).train()
    model.decoder.blocks[0].eval().requires_grad_(False)
    model.head.weight.grad = torch.ones_like(model.head.weight)
    modes = [module.training for module in model.modules()]
    assert packing(model, documents=2).passed
    assert [module.training for module in model.modules()] == modes
    assert [name for name, p in model.named_parameters() if p.grad is not None] == ["head.weight"]
    assert torch.equal(model.head.weight.grad, torch.ones_like(model.head.weight))
