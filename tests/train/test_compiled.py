"""Compilation: one graph for layers that are alike, and the same gradients."""

import copy
import pickle

import pytest
import torch

import anyformer as af
from anyformer.errors import InputError
from anyformer.train.compile import compiled, recompute
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
    wanted = [gradients(model, return_logits=False)]
    graphs = compiled(model, "model", backend="eager")
    same([gradients(model, return_logits=False)], wanted)
    assert graphs.made == 1


def test_compiled_undone_is_the_plain_pass():
    model = small()
    recompute(model, "block")
    before = [b.wrapper for b in model.decoder.blocks]
    for kind in ("block", "model"):
        compiled(model, kind, backend="eager")
        compiled(model, "none")
        assert [b.wrapper for b in model.decoder.blocks] == before
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


def by_pickle(model, folder):
    return pickle.loads(pickle.dumps(model))


def by_torch_save(model, folder):
    torch.save(model, folder / "model.pt")
    return torch.load(folder / "model.pt", weights_only=False)


def by_deepcopy(model, folder):
    return copy.deepcopy(model)


def by_save(model, folder):
    af.save(model, folder / "saved")
    return af.load(folder / "saved", dtype=torch.float64).train()


@pytest.mark.parametrize(
    ("kind", "recomputed"), [("none", "block"), ("block", "selective"), ("block", "none"), ("model", "block")]
)
def test_compiled_model_copy_has_its_weights_and_recomputation_and_compiles_nothing(kind, recomputed, tmp_path):
    model = small(depth=1)
    recompute(model, recomputed)
    wanted = [gradients(model)]
    wrappers = [block.wrapper for block in model.decoder.blocks]
    graphs = compiled(model, kind, backend="aot_eager")
    same([gradients(model)], wanted)
    made = graphs.made
    for copied in (by_deepcopy, by_pickle, by_torch_save, by_save):
        other = copied(model, tmp_path)
        same([gradients(other)], wanted)
        assert graphs.made == made, "a copy is not compiled until somebody asks for it"
        assert other._compiled_call_impl is None
        # What `save` writes are weights; how a training pass runs is not among them.
        assert [block.wrapper for block in other.decoder.blocks] == (
            [None] * len(wrappers) if copied is by_save else wrappers
        )
        again = compiled(other, kind, backend="aot_eager")
        same([gradients(other)], wanted)
        same([gradients(model)], wanted)
        assert graphs.made == made, "the model itself stays compiled"
        assert (again.made > 0) == (kind != "none"), "and the copy can be compiled in its own right"
