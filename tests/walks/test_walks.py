"""Random walks on fixed seeds, and planted faults that they must find. By hand, and longer: `python -m tests.walks`."""

import functools
import threading

import pytest
import torch

import anyformer as af
import anyformer.generation.generate as generating
from anyformer.model.model import Model
from anyformer.train.optim import Optimizers
from anyformer.train.train_step import TrainStep
from tests.contract.draw import BASE
from tests.quick import few
from tests.walks.actions import ACTIONS
from tests.walks.reading import moved_by_rounded_scores
from tests.walks.specs import spec_of
from tests.walks.surroundings import staying
from tests.walks.walk import walk
from tests.walks.world import Settings, World

CHUNKS, EACH = 8, 3
"""Walks of a run of the suite: so many tests of so many. They begin on every kind of topology."""
COMPILED = (5, 17)
"""Walks that compile: one generates, one trains."""


@pytest.mark.parametrize("chunk", few(range(CHUNKS), 1))
def test_walks_over_the_public_surface_break_nothing(chunk):
    for seed in range(chunk, CHUNKS * EACH, CHUNKS):
        found = walk(seed, Settings())
        assert not found.failed, found.told()


@pytest.mark.parametrize("seed", COMPILED)
def test_walks_that_compile_break_nothing(seed):
    found = walk(seed, Settings(compiles=1), steps=8)
    assert not found.failed, found.told()
    assert {"compile_training", "generate_compiled"} & {name for name, _ in found.taken}


def test_walks_repeat_by_their_seed():
    first, second = (walk(3, Settings(), steps=8) for _ in range(2))
    assert first.taken == second.taken


def test_walks_have_sixty_specs_of_all_topologies():
    specs = {spec_of(number) for number in range(60)}
    assert len(specs) == 60
    assert {spec.topology for spec in specs} == {"decoder", "encoder", "encoder-decoder"}
    layers = [layer for spec in specs for stack in spec.stacks for layer in stack.layers]
    assert {layer.attention.mixer.kind for layer in layers} >= {"softmax", "lsh"}
    assert any(layer.ffn.kind == "moe" for layer in layers)
    assert any(stack.reversible for spec in specs for stack in spec.stacks)


def after_generate(monkeypatch, fault):
    """Something goes wrong whenever somebody generates."""
    plain = generating.generate

    @functools.wraps(plain)
    def generate(model, *args, **options):
        found = plain(model, *args, **options)
        fault(model)
        return found

    monkeypatch.setattr(generating, "generate", generate)


def elsewhere(model):
    """The fault for which the walks were made: parameters go on in other memory than their optimizer's."""
    for p in model.parameters():
        p.data = p.data.clone()


def nudged(model):
    next(model.parameters()).data.mul_(1 + 1e-6)


def hooked(model):
    model.embed.register_forward_hook(lambda *_: None)


def remembered(model):
    model.embed.last = 1


def frozen(model):
    next(model.parameters()).requires_grad_(False)


GENERATE = [("generate_likeliest", 0)]
PLANTED = {
    "storage": (elsewhere, GENERATE, "storage"),
    "a value": (nudged, GENERATE, "values"),
    "a mode": (lambda model: model.eval(), GENERATE, "modes"),
    "one module's mode": (lambda model: model.embed.eval(), GENERATE, "modes"),
    "requires_grad": (frozen, GENERATE, "requires_grad"),
    "a gradient": (lambda model: model.zero_grad(), [("leave_gradients", 1), *GENERATE], "grads"),
    "a hook": (hooked, GENERATE, "hooks"),
    "an attribute": (remembered, GENERATE, "attributes"),
    "torch's generator": (lambda _: torch.rand(1), GENERATE, "surroundings"),
    "the default dtype": (lambda _: torch.set_default_dtype(torch.float64), GENERATE, "surroundings"),
    "threads": (lambda _: torch.set_num_threads(2), GENERATE, "surroundings"),
    "grad mode": (lambda _: torch.set_grad_enabled(False), [("generate_drawn", 0)], "surroundings"),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_walks_find_what_generation_breaks(monkeypatch, planted):
    fault, taken, kind = PLANTED[planted]
    after_generate(monkeypatch, fault)
    try:
        found = walk(SPEAKS, Settings(backend=None), taken=taken)
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_num_threads(1)
        torch.set_grad_enabled(True)
    assert kind in found.kinds, found.told()
    assert len(found.taken) == len(taken)


SPEAKS = 14
"""A walk on a plain decoder, which can be trained in threads."""


def test_walks_without_a_planted_fault_find_nothing_in_the_same_actions():
    for _, taken, _ in PLANTED.values():
        found = walk(SPEAKS, Settings(backend=None), taken=taken)
        assert not found.failed, found.told()
        assert len(found.taken) == len(taken)


def test_walks_find_a_parameter_that_no_step_moves(monkeypatch):
    step = Optimizers.step

    def lazy(self, *args, **more):
        next(self.parameters()).grad = None
        step(self, *args, **more)

    monkeypatch.setattr(Optimizers, "step", lazy)
    assert "frozen" in walk(SPEAKS, Settings(backend=None), taken=[("train_plainly", 0)]).kinds


def test_walks_find_a_step_that_takes_other_pieces_in_threads(monkeypatch):
    by_workers = TrainStep._by_workers
    monkeypatch.setattr(TrainStep, "_by_workers", lambda self, parts, *rest: by_workers(self, parts[:-1], *rest))
    found = walk(SPEAKS, Settings(backend=None), taken=[("train_in_threads", 0)])
    assert found.kinds & {"values", "gradients", "loss", "step"}, found.told()


def test_walks_find_a_pass_that_answers_otherwise_after_a_trace(monkeypatch):
    trace = Model.trace

    def leaving(self, *args, **more):
        found = trace(self, *args, **more)
        self.embed.forward = lambda *given, plain=type(self.embed).forward, own=self.embed: 2 * plain(own, *given)
        return found

    monkeypatch.setattr(Model, "trace", leaving)
    assert "attributes" in walk(SPEAKS, Settings(backend=None), taken=[("trace", 0)]).kinds


def test_walks_have_an_action_for_each_spec_and_a_spec_for_each_action():
    """An action that applies to no spec looks at nothing."""
    settings = Settings(compiles=1, captured=True, backend="eager")
    never = set(ACTIONS) - {"generate_from_a_former_stage"}
    for number in range(1, 60, 5):
        world = World(number, settings)
        never -= {action.name for action in ACTIONS.values() if action.when(world)}
        world.close()
    assert not never


def test_walks_know_how_far_rounded_scores_move_an_answer():
    """Clipped queries and keys are often orthogonal to the last bit, and normalised ReLU then divides rounding by eps."""
    moved = []
    for mixer in ("relu", "softmax"):
        spec = af.spec(BASE, {"attention.mixer.kind": mixer, "attention.clip_qkv": 0.6, "position.kind": "rope"})
        model = af.build(spec, seed=0).eval()
        with torch.no_grad():
            for name in ("q", "k"):
                model.get_parameter(f"decoder.blocks.0.attention.body.{name}.weight").mul_(1000)
        ids = torch.arange(12).view(2, 6)
        moved.append(moved_by_rounded_scores(model, lambda made, ids=ids: made(ids).logits))
    assert moved[0] > 1e-4
    assert moved[1] < 1e-6


def test_walks_wait_for_a_thread_that_is_ending_and_name_one_that_stays():
    stop = threading.Event()
    ending = threading.Thread(target=lambda: stop.wait(0.2), name="ending")
    staying_on = threading.Thread(target=lambda: stop.wait(60), name="staying on", daemon=True)
    for thread in (ending, staying_on):
        thread.start()
    try:
        assert staying({ending}) == []
        assert staying({ending, staying_on}, 0.1) == [f"staying on ({staying_on.ident})"]
    finally:
        stop.set()
        staying_on.join()
