"""Each contract catches a leaf that was broken on purpose: a promise that can't fail promises nothing."""

import dataclasses

import pytest
import torch
from torch import nn

from anyformer.errors import AnyformerError
from anyformer.kernels.attention_mask import AttentionMask
from anyformer.parts.ffn import FeedForwardNet
from anyformer.parts.ffns.gated import Swiglu
from anyformer.parts.norm import Norm
from anyformer.parts.patterns.window import Window
from anyformer.parts.positions.learned import Learned
from anyformer.parts.positions.rope import Rope
from anyformer.specs import ModelSpec, codec
from anyformer.specs.axes import ParamSpec
from tests.contract import contracts
from tests.contract.draw import BASE


@pytest.fixture(autouse=True)
def fresh_models():
    """Models built with a broken leaf must not be met by other tests, nor sound ones here."""
    contracts.model_of.cache_clear()
    yield
    contracts.model_of.cache_clear()


def small(**changes):
    return ModelSpec.from_data(BASE | changes)


def caught(contract, spec):
    with pytest.raises((AssertionError, AnyformerError, RuntimeError, torch._dynamo.exc.Unsupported)) as info:
        contract(spec)
    return str(info.value)


def test_round_trip_catches_a_field_that_is_not_written(monkeypatch):
    spec = small(position={"kind": "rope", "theta": 77.0})
    monkeypatch.setattr("anyformer.specs.model.write", lambda value: drop(codec.write(value)))
    caught(contracts.round_trip, spec)


def drop(data):
    if isinstance(data, dict):
        return {k: drop(v) for k, v in data.items() if k != "theta"}
    return data


def test_counts_catch_work_that_is_done_twice(monkeypatch):
    plain = FeedForwardNet.forward

    def twice(self, x):
        self.down(torch.zeros(1, 1, self.down.weight.shape[1], dtype=x.dtype))
        return plain(self, x)

    monkeypatch.setattr(FeedForwardNet, "forward", twice)
    caught(contracts.counts_agree, small())


def test_counts_catch_an_undeclared_parameter(monkeypatch):
    plain = Norm.__init__

    def hoarding(self, leaf, shape):
        plain(self, leaf, shape)
        self.extra = nn.Parameter(torch.empty(3))

    monkeypatch.setattr(Norm, "__init__", hoarding)
    assert "inventory" in caught(contracts.counts_agree, small())


def test_meta_catches_a_part_that_allocates(monkeypatch):
    plain = Norm.__init__

    def eager(self, leaf, shape):
        plain(self, leaf, shape)
        self.register_buffer("real", torch.ones(3, device="cpu"))

    monkeypatch.setattr(Norm, "__init__", eager)
    caught(contracts.builds_on_meta, small())


def test_causality_catches_a_mask_that_is_one_too_wide(monkeypatch):
    monkeypatch.setattr(Window, "allows", lambda self, q, k: (k.pos <= q.pos + 1) & (q.pos - k.pos < self.size))
    assert "causality" in caught(contracts.causal, small(attention=BASE["attention"] | {"pattern": "window(5)"}))


def test_cache_catches_a_rotation_that_ignores_positions(monkeypatch):
    plain = Rope.angles

    def from_zero(self, own, pos, length, like):
        return plain(self, own, torch.arange(pos.shape[1])[None], length, like)

    monkeypatch.setattr(Rope, "angles", from_zero)
    assert "promise" in caught(contracts.cached, small(position="rope"))


def test_padding_catches_a_position_that_counts_rows(monkeypatch):
    def by_row(self, own, pos, like):
        return own["table"][torch.arange(pos.shape[1])][None].to(like.dtype)

    monkeypatch.setattr(Learned, "embed", by_row)
    assert "promise" in caught(contracts.padded_and_packed, small(position="learned"))


def test_packing_catches_a_document_mask_that_lets_everything_through(monkeypatch):
    plain = AttentionMask.pairs

    def open_walls(self, *some):
        return plain(dataclasses.replace(self, q=self.q._replace(document=0)), *some)

    monkeypatch.setattr(AttentionMask, "pairs", open_walls)
    assert "promise" in caught(contracts.padded_and_packed, small())


def test_teacher_forcing_catches_a_start_that_comes_once_a_row(monkeypatch):
    monkeypatch.setattr("anyformer.model.model.follows", lambda places: None)
    assert "promise" in caught(contracts.teacher_forced, small(topology="encoder-decoder"))


def test_gradients_catch_a_parameter_that_is_never_used(monkeypatch):
    monkeypatch.setattr(Rope, "weights", lambda self, dims: {"idle": ParamSpec(shape=(2, 2), role="relative")})
    assert "idle" in caught(contracts.gradients, small(position="rope"))


def test_training_catches_a_layer_that_is_random_in_eval_mode(monkeypatch):
    plain = Swiglu.combine
    monkeypatch.setattr(Swiglu, "combine", lambda self, *x: plain(self, *x) * torch.rand(1, dtype=x[0].dtype))
    caught(contracts.trains, small())


def test_saving_catches_a_leaf_whose_numbers_are_not_in_its_spec(monkeypatch):
    plain = Rope.constants
    drawn = iter(range(1, 100))
    monkeypatch.setattr(
        Rope, "constants", lambda self, dims: {k: [x * next(drawn) for x in v] for k, v in plain(self, dims).items()}
    )
    caught(contracts.saves_and_loads, small(position="rope"))


def test_compilation_catches_a_leaf_that_reads_values(monkeypatch):
    plain = Swiglu.combine

    def peeking(self, *inputs):
        return plain(self, *inputs) if inputs[0].sum().item() > -1e9 else inputs[0]

    monkeypatch.setattr(Swiglu, "combine", peeking)
    caught(contracts.compiles, small())
