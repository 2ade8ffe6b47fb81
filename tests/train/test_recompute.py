"""Recomputation: the same gradients from fewer kept tensors."""

import copy

import pytest
import torch

from anyformer.errors import InputError
from anyformer.model.reversible import replays_dropout
from anyformer.train.compile import recompute
from tests.kernels.alive import Alive
from tests.train.small import IDS, SEGMENTS, VARIANTS, gradients, small


@pytest.mark.parametrize("kind", ["block", "selective"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_recompute_gradients_equal_those_of_the_plain_pass_to_the_bit(variant, kind):
    model = small(VARIANTS[variant])
    wanted = gradients(model), gradients(model, segments=SEGMENTS)
    recompute(model, kind)
    found = gradients(model), gradients(model, segments=SEGMENTS)
    for (loss, grads), (other, others) in zip(found, wanted, strict=True):
        assert torch.equal(loss, other)
        assert all(torch.equal(a, b) for a, b in zip(grads, others, strict=True))


def kept(kind, every=1):
    """Bytes that a forward pass leaves for the backward pass."""
    model = small(depth=6)
    recompute(model, kind, every=every)
    with Alive() as held:
        loss = model(IDS, labels=IDS).loss
        torch.ones(1) + 1
        left = sum(size for _, size in held.held.values())
    assert loss.requires_grad
    return left


def test_recompute_keeps_less_the_more_is_recomputed():
    none, selective, half, block = kept("none"), kept("selective"), kept("block", 2), kept("block")
    assert block < half < none
    assert block < selective < 0.8 * none
    assert block < 0.35 * none


def test_recompute_every_other_block_leaves_the_others_plain():
    model = small(depth=5)
    recompute(model, "block", every=2)
    assert [b.wrapper is not None for b in model.decoder.blocks] == [True, False, True, False, True]
    recompute(model, "none")
    assert all(b.wrapper is None for b in model.decoder.blocks)


def test_recompute_copy_of_a_model_learns_by_itself():
    model = small()
    recompute(model, "block")
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.embed.tokens.weight.mul_(2)
    loss, _ = gradients(other)
    recompute(other, "none")
    assert torch.equal(loss, gradients(other)[0])
    assert not torch.equal(loss, gradients(model)[0])


def test_recompute_with_dropout_is_not_shared_by_threads():
    model = small(VARIANTS["dropout"])
    assert not replays_dropout(model)
    recompute(model, "block")
    assert replays_dropout(model)


def test_recompute_of_a_reversible_stack_is_refused():
    model = small(block={"wiring": "reversible"})
    with pytest.raises(InputError, match="recomputes every block already"):
        recompute(model, "block")
    recompute(model, "none")


def test_recompute_unknown_kind_is_named():
    with pytest.raises(InputError, match="'all' is unknown"):
        recompute(small(), "all")
    with pytest.raises(InputError, match="every 0 is not at least 1"):
        recompute(small(), "block", every=0)
