"""Compilation: one graph for layers that are alike, and the same gradients."""

import pytest
import torch

from anyformer.errors import InputError
from anyformer.train.activation_checkpointing import recompute
from anyformer.train.compile import compiled
from tests.tolerances import assert_close
from tests.train.small import SEGMENTS, VARIANTS, gradients, small

TRACED = ["plain", "dropout", "window", "t5", "linear"]
"""Those that differ for a tracer: nothing, random numbers, a mask, a bias that the stack made, a mixer of its own."""

# torch's tracer asks each input for its gradient, and warns itself; outside of tests nobody sees it.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def same(found, wanted):
    for (loss, grads), (other, others) in zip(found, wanted, strict=True):
        assert_close("formula", loss, other)
        for a, b in zip(grads, others, strict=True):
            assert_close("kernel", a, b)


@pytest.mark.parametrize("variant", TRACED)
def test_compiled_blocks_that_are_alike_share_one_graph(variant):
    model = small(VARIANTS[variant])
    wanted = gradients(model), gradients(model, segments=SEGMENTS)
    graphs = compiled(model, "block", backend="eager")
    found = [gradients(model)]
    assert graphs.made == 1
    found.append(gradients(model, segments=SEGMENTS))
    assert graphs.made == 2, "packed rows are one more"
    same(found, wanted)
    gradients(model)
    gradients(model, segments=SEGMENTS)
    assert graphs.made == 2, "and nothing is compiled again"


@pytest.mark.parametrize("kind", ["block", "selective"])
def test_compiled_blocks_are_recomputed_too(kind):
    model = small()
    wanted = [gradients(model)]
    recompute(model, kind)
    graphs = compiled(model, "block", backend="aot_eager")
    same([gradients(model)], wanted)
    assert graphs.made == 1


def test_compiled_layers_of_two_kinds_take_two_graphs():
    model = small(
        depth=4, layers={"order": "near, far", "near": {"attention": {"pattern": "causal & window(6)"}}, "far": {}}
    )
    wanted = [gradients(model)]
    graphs = compiled(model, "block", backend="eager")
    same([gradients(model)], wanted)
    assert graphs.made == 2


def test_compiled_model_without_logits_is_one_graph():
    model = small(depth=1)
    wanted = [gradients(model)]
    model.return_logits = False
    graphs = compiled(model, "model", backend="eager")
    same([gradients(model)], wanted)
    assert graphs.made == 1


def test_compiled_undone_is_the_plain_pass():
    model = small()
    recompute(model, "block")
    before = [b.way for b in model.decoder.blocks]
    for kind in ("block", "model"):
        compiled(model, kind, backend="eager")
        compiled(model, "none")
        assert [b.way for b in model.decoder.blocks] == before
        assert model._compiled_call_impl is None


def test_compiled_evaluation_runs_plain():
    model = small()
    graphs = compiled(model, "block", backend="eager")
    model.eval()
    gradients(model)
    assert graphs.made == 0


def test_compiled_blocks_of_a_reversible_stack_stay_plain_with_a_warning():
    model = small(block={"wiring": "reversible"})
    with pytest.warns(UserWarning, match="reversible"):
        graphs = compiled(model, "block", backend="eager")
    gradients(model)
    assert graphs.made == 0


def test_compiled_unknown_kind_is_named():
    with pytest.raises(InputError, match="'layer' is unknown"):
        compiled(small(), "layer")
