"""Steps by replay: the learner's own on a CUDA device; and a reason where they can't be recorded."""

import gc
import math
import warnings
import weakref

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import anyformer as af
from anyformer.data.dataset import Batch
from anyformer.data.objectives import Objective
from anyformer.errors import CapabilityError
from anyformer.kernels.cuda_graph import Recorder, fixed_shapes, hold, recording
from anyformer.kernels.linear_cross_entropy import linear_cross_entropy
from anyformer.train import cuda_graph
from anyformer.train.cuda_graph import Captured, why_not
from anyformer.train.optim import Optimizers
from anyformer.train.ranks import Ranks
from anyformer.train.train_step import Precision, SpikeGuard, TrainStep
from tests.contract.draw import BASE
from tests.kernels.recording import FAULTS, FakeDevice, untouched
from tests.quick import few
from tests.tolerances import assert_close
from tests.walks.world import Settings, World, objective_for

needs_cuda = pytest.mark.cuda
SPEC = af.spec(BASE | {"vocab": 16, "context": 16})
CUDA = torch.device("cuda")


@pytest.fixture(scope="module", autouse=True)
def frozen():
    """A recording that fails collects garbage, for which it need not look through all that other tests have imported."""
    gc.collect()
    gc.freeze()


def learner(device="cpu", spec=SPEC, **more):
    model = af.build(spec, device=device).train()
    parts = {"objective": Objective.named("causal")(), "precision": Precision(), "guard": SpikeGuard()}
    return TrainStep(model=model, optimizers=Optimizers(model), **(parts | more))


def batch(step, length=16):
    ids_BT = np.random.default_rng(step).integers(16, size=(4, length))
    counts = np.full(4, length)
    return Batch({"input_ids": ids_BT, "labels": ids_BT}, step, counts, counts - 1)


def test_captured_step_on_a_cpu_is_refused_with_the_way_out():
    with pytest.raises(CapabilityError, match=r"compute\.capture: only steps on a CUDA device .* on cpu; .* = false"):
        Captured(learner()).step(batch(0), seed=0, step=0, factor=1.0)


def test_captured_step_names_why_it_can_not_be_recorded():
    assert "there are 2; run one" in why_not(learner(ranks=Ranks(world=2)), batch(0), CUDA)
    assert "leave compute.micro (2) out" in why_not(learner(micro=2), batch(0), CUDA)
    rolled = SPEC.vary({"block.wiring": "reversible", "block.dropout": 0.1})
    assert "leave dropout out" in why_not(learner(spec=rolled), batch(0), CUDA)
    assert why_not(learner(micro=4), batch(0), CUDA) == ""


@needs_cuda
def test_captured_steps_are_the_steps_of_the_learner_and_repeat_to_the_bit():
    spec = SPEC.vary({"block.dropout": 0.2})
    plain, *others = (learner("cuda", spec) for _ in range(3))
    replays = [Captured(each) for each in others]
    # Two shapes, weights that are not finite from step 3 on, and a factor that changes.
    for step, length in enumerate([16, 16, 12, 16, 12]):
        if step == 3:
            for each in others:
                with torch.no_grad():
                    each.model.get_parameter("decoder.final_norm.weight").fill_(float("nan"))
        # Without their graphs: one that lives would tie a parameter to the default stream.
        before = [t.detach().clone() for t in (*others[0].model.parameters(), *others[0].optimizers.state().values())]
        found = [each.step(batch(step, length), seed=3, step=step, factor=0.5**step).read() for each in replays]
        assert [each.skipped for each in found] == [step >= 3] * 2
        after = [[*each.model.parameters(), *each.optimizers.state().values()] for each in others]
        assert all(torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0)) for a, b in zip(*after, strict=True))
        if step >= 3:
            assert all(torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0)) for a, b in zip(before, after[0], strict=True))
        else:
            assert found[0] == found[1]
        if step == 0:
            # The same drops, so the same loss; only the rate is a float32 here, and a double there.
            assert plain.step(batch(0), seed=3, step=0, factor=1.0).read().loss == found[0].loss
            for a, b in zip(plain.model.parameters(), others[0].model.parameters(), strict=True):
                assert_close("single", a, b)


def states(each):
    return [*each.model.parameters(), *each.model.buffers(), *each.optimizers.state().values()]


def go_on(plain, tried, stepper, lengths):
    """Steps of a learner that never tried and of one that did; both must be the same to the bit, host draws included."""
    for step, length in enumerate(lengths):
        found = []
        for each, one in ((plain, plain), (tried, stepper)):
            torch.manual_seed(step)
            found.append((one.step(batch(step, length), seed=3, step=step, factor=0.5).read(), torch.rand(2)))
            assert all(p.grad is None for p in each.model.parameters())
        assert found[0][0] == found[1][0]
        assert torch.equal(found[0][1], found[1][1])
        assert all(torch.equal(a, b) for a, b in zip(states(plain), states(tried), strict=True))


class FailingRecorder(Recorder):
    """One whose work fails where its device says so."""

    def record(self, work):
        return super().record(self.on.failing(work))


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("fault", FAULTS)
def test_captured_step_that_fails_is_done_without_and_says_so_once(fault, nth, monkeypatch):
    monkeypatch.setattr(cuda_graph, "why_not", lambda *_: "")
    spec = SPEC.vary({"block.dropout": 0.2})
    plain, tried = learner(spec=spec), learner(spec=spec)
    devices = []

    def recorder(_):
        # Every attempt fails, in the first graph or in the second.
        devices.append(FakeDevice(fault, nth))
        return FailingRecorder(devices[-1])

    stepper = Captured(tried, recorder)
    if fault == "interrupt":
        before = [t.clone() for t in states(tried)]
        with pytest.raises(KeyboardInterrupt):
            stepper.step(batch(0), seed=3, step=0, factor=0.5)
        assert all(torch.equal(a, b) for a, b in zip(before, states(tried), strict=True))
    else:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            go_on(plain, tried, stepper, [16, 16, 12, 16, 12])
        lines = [str(each.message) for each in caught]
        assert len(lines) == 2, "one for each shape of batches"
        for line in lines:
            assert line.startswith(
                "compute.capture: a step of this model can't be recorded as a CUDA graph (CUDA error: "
            )
            assert line.endswith("training goes on without. Set compute.capture = false to not try it")
            assert "more lines" not in line
    assert all(untouched(device) and device.held == 0 for device in devices)


def froze(learner):
    learner.model.embed.requires_grad_(False)


def clipped(learner):
    learner.clip = 0.125


def evaluated(learner):
    learner.model.eval()


def renewed(learner):
    learner.optimizers = Optimizers(learner.model)


@pytest.mark.parametrize("change", [froze, clipped, evaluated, renewed])
def test_captured_step_is_recorded_anew_where_what_is_baked_in_has_changed(change, monkeypatch):
    monkeypatch.setattr(cuda_graph, "why_not", lambda *_: "")
    made = learner()
    stepper = Captured(made, lambda _: Recorder(FakeDevice()))
    stepper.step(batch(0), seed=3, step=0, factor=0.5)
    (first,) = stepper._recorded.values()
    stepper.step(batch(1), seed=3, step=1, factor=0.5)
    assert [*stepper._recorded.values()] == [first]
    change(made)
    stepper.step(batch(2), seed=3, step=2, factor=0.5)
    (second,) = stepper._recorded.values()
    assert second is not first


def test_captured_steps_of_many_shapes_that_fail_are_not_refused(monkeypatch):
    monkeypatch.setattr(cuda_graph, "why_not", lambda *_: "")
    stepper = Captured(learner(), lambda _: FailingRecorder(FakeDevice("work")))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for length in range(2, 16):
            stepper.step(batch(0, length), seed=0, step=0, factor=0.5)


def test_captured_step_keeps_gradients_that_somebody_left(monkeypatch):
    monkeypatch.setattr(cuda_graph, "why_not", lambda *_: "")
    tried = learner()
    stepper = Captured(tried, lambda _: FailingRecorder(FakeDevice("invalid")))
    first = next(tried.model.parameters())
    first.grad = torch.full_like(first, 2.0)
    with pytest.warns(UserWarning, match="training goes on"):
        assert stepper._try(batch(0)) is None
    assert torch.equal(first.grad, torch.full_like(first, 2.0))
    assert sum(p.grad is not None for p in tried.model.parameters()) == 1


class Faulty:
    """An objective that does what no capture allows."""

    def __init__(self, fault):
        self.plain, self.fault = Objective.named("causal")(), fault

    def __getattr__(self, name):
        return getattr(self.plain, name)

    def loss(self, model, inputs):
        terms = self.plain.loss(model, inputs)
        if torch.cuda.is_current_stream_capturing():
            if self.fault == "item":
                terms.total.item()
            elif self.fault == "memory":
                torch.empty(2**50, device="cuda", dtype=torch.uint8)
            elif self.fault == "generator":
                torch.rand(4, device="cuda", generator=torch.Generator("cuda"))
            else:
                raise ZeroDivisionError("in the middle")
        return terms


@needs_cuda
@pytest.mark.parametrize("fault", ["item", "memory", "generator", "exception"])
def test_captured_step_on_cuda_that_fails_is_done_without_and_leaves_the_process_usable(fault):
    spec = SPEC.vary({"block.dropout": 0.2})
    plain, tried, well = (learner("cuda", spec) for _ in range(3))
    tried.objective = Faulty(fault)
    torch.cuda.manual_seed(5)
    wanted = torch.rand(4, device="cuda")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        go_on(plain, tried, Captured(tried), [16, 12, 16])
    assert len([each for each in caught if "training goes on" in str(each.message)]) == 2
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    torch.cuda.manual_seed(5)
    assert torch.equal(torch.rand(4, device="cuda"), wanted)
    # Another learner's steps are recorded as if nothing had been.
    stepper = Captured(well)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert stepper.step(batch(0), seed=3, step=0, factor=0.5).read().loss > 0
    assert all(stepper._recorded.values())


@needs_cuda
def test_captured_steps_after_samples_and_moved_weights_are_those_of_a_learner_that_did_neither():
    quiet, loud = (learner("cuda") for _ in range(2))
    steppers = Captured(quiet), Captured(loud)
    ids = torch.arange(4, device="cuda")[None]
    for step in range(6):
        if step == 2:
            af.generate(loud.model.eval(), ids, max_new_tokens=3)
            loud.model.train()
        if step == 4:
            # As a device and back do: the same parameters, in other memory.
            loud.model._apply(torch.clone)
        before = {name: p.detach().clone() for name, p in loud.model.named_parameters()}
        found = [each.step(batch(step), seed=3, step=step, factor=0.5).read() for each in steppers]
        assert found[0] == found[1]
        assert [name for name, p in loud.model.named_parameters() if torch.equal(p, before[name])] == []
        assert all(torch.equal(a, b) for a, b in zip(states(quiet), states(loud), strict=True))


class Recorded(TorchDispatchMode):
    """Refuses what a CUDA stream refuses while its work is recorded, for work on the meta device: a tensor that is copied
    from the host or to it. What looks at values fails there by itself.
    """

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        given, made = ([x for x in tree_leaves(some) if isinstance(x, Tensor)] for some in ((args, kwargs), found))
        on = {x.device.type for x in made}
        copies = "copy" in str(func)
        # A number that is an argument of a kernel is no copy.
        if "meta" in on and any(x.is_cpu and (x.dim() or copies) for x in given):
            raise RuntimeError(f"{func} copies from the host")
        if "cpu" in on and any(x.is_meta for x in given):
            raise RuntimeError(f"{func} copies to the host")
        if "aten.index" in str(func) and any(getattr(x, "dtype", None) == torch.bool for x in tree_leaves(args[1])):
            raise RuntimeError(f"{func} asks how many are True")
        return found


def learn_on_meta(spec, inputs, monkeypatch):
    """Gradients of a step as a recording takes them: tried out, then with all the rules of a recording."""
    model = af.build(spec, device="meta", dtype=torch.float64).train()
    part = object.__new__(cuda_graph._Recorded)
    part.train_step = TrainStep(
        model=model,
        objective=objective_for(spec),
        optimizers=Optimizers(model),
        precision=Precision(),
        guard=SpikeGuard(),
    )
    part.device = torch.device("cpu")
    part.inputs = {name: x.to("meta") for name, x in inputs.items()}
    real = torch.tensor

    def tensor(*args, device=None, **more):
        # On the meta device it makes none of the operations that it makes on others.
        assert device is None or torch.device(device).type != "meta", "torch.tensor copies from the host"
        return real(*args, device=device, **more)

    with recording():
        part._learn()
    monkeypatch.setattr(torch, "tensor", tensor)
    with recording(), Recorded():
        part._learn()
    monkeypatch.undo()
    return model


@pytest.mark.parametrize("number", few(range(30), 6))
def test_captured_step_of_any_spec_asks_nothing_of_the_device_and_copies_nothing(number, monkeypatch):
    world = World(number, Settings(backend=None))
    try:
        inputs = {name: torch.from_numpy(array) for name, array in world.batch(3).inputs.items()}
    finally:
        world.close()
    if world.scores:
        model = learn_on_meta(world.spec, inputs, monkeypatch)
        assert any(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize(
    "changes",
    [
        {"attention.pattern": "causal & (window(6) | global_tokens(2))"},
        {"attention.mixer.kind": "lsh", "attention.mixer.chunk": 8, "attention.mixer.seed": 3, "attention.kv_heads": 6},
        {"position.kind": "shaw", "attention.softcap": 5.0},
    ],
    ids=["global tokens", "lsh", "shaw"],
)
@pytest.mark.parametrize("masked", [False, True])
def test_captured_step_of_long_rows_asks_nothing_of_the_device_and_copies_nothing(changes, masked, monkeypatch):
    # So long that there is more than one block, chunk and tile.
    spec = SPEC.vary({"context": 512, **changes})
    ids = torch.zeros(2, 512, dtype=torch.long)
    inputs = {"input_ids": ids, "labels": ids} | ({"attention_mask": ids + 1} if masked else {})
    learn_on_meta(spec, inputs, monkeypatch)


def test_linear_cross_entropy_while_recorded_looks_for_no_rows_that_count():
    hidden, weight = torch.randn(6, 4, requires_grad=True), torch.randn(9, 4, requires_grad=True)
    labels = torch.tensor([1, -100, 3, -100, -100, 8])
    asked = []

    class Ask(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            asked.append(str(func))
            return func(*args, **(kwargs or {}))

    with Ask():
        plain = linear_cross_entropy(hidden, weight, None, labels, drop=True).total
        assert any("nonzero" in name for name in asked)
        asked.clear()
        with recording():
            found = linear_cross_entropy(hidden, weight, None, labels, drop=True).total
    assert not any("nonzero" in name for name in asked)
    assert_close("single", found, plain)


def test_captured_graph_holds_what_a_cache_gave_to_its_recording():
    class Cached:
        pass

    cache = [Cached()]
    alive = weakref.ref(cache[0])
    recorder = Recorder(FakeDevice())
    graph = recorder.record(lambda: hold(cache[0]) and None)
    cache.clear()
    gc.collect()
    assert alive() is not None, "a replay would read memory that is somebody else's"
    del graph
    gc.collect()
    assert alive() is None
    assert hold(cache) is cache
    assert not fixed_shapes("cpu")


@needs_cuda
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("number", [1, 15, 17, 22, 23, 37, 44, 47])
def test_captured_step_of_specs_that_once_failed_is_recorded(number, dtype):
    world = World(number, Settings(device="cuda", backend=None))
    try:
        for side in (world.live, world.twin):
            side.model.to(dtype)
        world.dtype = dtype
        world.ready()
        steps = [Captured(side.learner) for side in (world.live, world.twin)]
        for step in range(2):
            for each in steps:
                assert math.isfinite(each.step(world.batch(step), seed=7, step=step, factor=0.5).read().loss)
        assert [each.failures for each in steps] == [[], []]
    finally:
        world.close()
