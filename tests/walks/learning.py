"""Actions that change a model: steps of every kind, modes, dtypes, stages, weights from elsewhere."""

import copy
import functools
import io
import pickle
import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import anyformer as af
from anyformer.convert.surgery import Surgery, operate
from anyformer.data.dataset import Batch
from anyformer.errors import AnyformerError
from anyformer.families.checkpoint import family_for
from anyformer.model.model import Model
from anyformer.model.reversible import replays_dropout
from anyformer.specs import ModelSpec
from anyformer.specs.parameters import weights
from anyformer.train.components import restaged
from anyformer.train.cpu_workers import CpuWorkers, draws
from anyformer.train.cuda_graph import Captured, why_not
from anyformer.train.optim import take
from anyformer.train.train_step import on_device
from tests.contract.contracts import answers
from tests.walks.actions import WHOLE, action
from tests.walks.specs import is_published
from tests.walks.world import Side, Violation, World, drawing, require, same

STEP = {"values", "grads"}


def learns(world: World) -> bool:
    return world.scores and any(p.requires_grad for p in world.model.parameters())


def shares(world: World) -> bool:
    """Whether a run would give this model several threads."""
    compiling = any(getattr(module, "way", None) is not None for module in world.model.modules())
    compiling = compiling or world.model._compiled_call_impl is not None
    alone = draws(world.spec) or world.spec.loss.balance or compiling or world.device.type != "cpu"
    return learns(world) and not alone


def _step(world: World, rng: random.Random, *steppers: tuple[Side, Callable[..., Any]], replayed: bool = False) -> None:
    """One step on each side, and a look at what moved."""
    batch, factor = world.batch(rng.randrange(1000)), rng.choice((0.1, 0.5, 1.0))
    before = {name: p.detach().clone() for name, p in world.model.named_parameters()}
    felt = _gradients(world, batch) if replayed else {}
    world.felt.clear()
    found = []
    for side, step in steppers:
        found.append(step(batch, seed=7, step=world.steps, factor=factor).read())
        side.ema.update(side.model)
    world.steps += 1
    if replayed:
        # No hook is called in a replay.
        world.felt = felt
    require(found[0] == found[1], "step", f"found {found[0]}, and the twin {found[1]}")
    world.moved(before, skipped=found[0].skipped)


@action(weight=8, when=learns, changes=STEP)
def train_plainly(world: World, rng: random.Random) -> None:
    micro = rng.choice((0, 0, 1, 2))
    for side in (world.live, world.twin):
        side.learner.micro = micro
    try:
        _step(world, rng, *((side, side.learner.step) for side in (world.live, world.twin)))
    finally:
        for side in (world.live, world.twin):
            side.learner.micro = 0


@action(weight=4, when=shares, changes=STEP)
def train_in_threads(world: World, rng: random.Random) -> None:
    """The twin takes the same pieces one after the other, in one thread."""
    size = rng.choice((2, 4))
    live, twin = world.live.learner, world.twin.learner
    alone = live.workers
    with CpuWorkers(size) as workers:
        live.workers, twin.micro = workers, 4 // size
        try:
            _step(world, rng, (world.live, live.step), (world.twin, twin.step))
        finally:
            live.workers, twin.micro = alone, 0


def _gradients(world: World, batch: Batch) -> dict[str, Tensor]:
    """The largest number of each gradient, by a plain pass of the twin."""
    learner = world.twin.learner
    named = {name: p for name, p in learner.model.named_parameters() if p.requires_grad}
    with drawing(0, world.device):
        total = learner.objective.loss(learner.model, on_device(batch, world.device)).total
        found = torch.autograd.grad(total, [*named.values()], allow_unused=True)
    return {name: g.abs().amax() for name, g in zip(named, found, strict=True) if g is not None}


@action(weight=8, when=lambda w: w.settings.captured and learns(w) and not replays_dropout(w.model), changes=STEP)
def train_captured(world: World, rng: random.Random) -> None:
    """Both by replay: a learner on its own has its rates in other numbers."""
    sides = (world.live, world.twin)
    for side in sides:
        side.model.zero_grad(set_to_none=True)
        if side.captured is None:
            side.captured = Captured(side.learner)
    if why_not(world.live.learner, world.batch(0), world.device):
        return
    _step(world, rng, *((s, s.captured.step) for s in sides if s.captured is not None), replayed=True)
    for side in sides:
        if side.captured is not None and side.captured.failures:
            raise Violation("capture", f"a step was done without: {side.captured.failures[-1]}")


@action(weight=3, when=lambda w: any(p.requires_grad for p in w.model.parameters()), changes=STEP)
def train_by_torch(world: World, rng: random.Random) -> None:
    """A step of torch's own optimizer, made once for these parameters and kept."""
    kinds: list[Callable[[Any], torch.optim.Optimizer]] = [
        lambda some: torch.optim.AdamW(some, lr=1e-3), lambda some: torch.optim.SGD(some, lr=1e-2, momentum=0.9),
        lambda some: torch.optim.Adam(some, lr=1e-3, foreach=True), lambda some: torch.optim.RMSprop(some, lr=1e-3),
    ]  # fmt: skip
    make, seed, none = rng.choice(kinds), rng.randrange(1000), rng.random() < 0.7
    inputs = world.inputs(seed)
    labels = world.labels(seed, inputs) if world.scores else None
    before = {name: p.detach().clone() for name, p in world.model.named_parameters()}
    world.felt.clear()
    for side in (world.live, world.twin):
        if side.other is None:
            side.other = make(list(side.model.parameters()))
        side.model.zero_grad()
        with drawing(seed, world.device):
            out = world.read(side.model, inputs, labels=labels)
            (answers(out).square().mean() if labels is None else out.loss).backward()
        side.other.step()
        side.other.zero_grad(set_to_none=none)
    # Some of these move a weight by its gradient alone, so a small one is lost in rounding.
    world.moved(before, least=1e-2)


@action(when=lambda w: any(p.requires_grad for p in w.model.parameters()), changes={"grads"})
def leave_gradients(world: World, rng: random.Random) -> None:
    """A backward pass without a step: nothing but a step may use what it leaves."""
    seed = rng.randrange(1000)
    inputs = world.inputs(seed)
    for side in (world.live, world.twin):
        with drawing(seed, world.device):
            answers(world.read(side.model, inputs)).square().mean().backward()


@action(weight=1, changes={"grads"})
def drop_gradients(world: World, rng: random.Random) -> None:
    none = rng.random() < 0.5
    for side in (world.live, world.twin):
        side.model.zero_grad(set_to_none=none)


@action(weight=3)
def change_mode(world: World, rng: random.Random) -> None:
    """Training or not, of all modules or of some."""
    mode, names = rng.random() < 0.6, [name for name, _ in world.model.named_modules()]
    name = rng.choice(names) if rng.random() < 0.3 else ""
    for side in (world.live, world.twin):
        side.model.get_submodule(name).train(mode)


@action(weight=1, changes={"grads"})
def freeze(world: World, rng: random.Random) -> None:
    """Some modules learn no more, or all learn again."""
    thaw, names = rng.random() < 0.5, [name for name, _ in world.model.named_modules() if name]
    name = "" if thaw else rng.choice(names)
    for side in (world.live, world.twin):
        side.model.zero_grad(set_to_none=True)
        side.model.get_submodule(name).requires_grad_(thaw)
    world.ready()


@action(weight=2, changes={"values"})
def edit(world: World, rng: random.Random) -> None:
    """A person changes a weight in place."""
    name = rng.choice([name for name, _ in world.model.named_parameters()])
    factor, through = rng.choice((0.9, 1.1)), rng.random() < 0.5
    for side in (world.live, world.twin):
        p = side.model.get_parameter(name)
        with torch.no_grad():
            (p.data if through else p).mul_(factor)


@action(weight=1, changes=WHOLE)
def replace_parameter(world: World, rng: random.Random) -> None:
    """Another object under the same name, as other tools do it."""
    name = rng.choice([name for name, _ in world.model.named_parameters()])
    above, _, last = name.rpartition(".")
    for side in (world.live, world.twin):
        old = side.model.get_parameter(name)
        made = nn.Parameter(old.detach() * 1.05, requires_grad=old.requires_grad)
        # A tied head reads it by its module, under one name.
        setattr(side.model.get_submodule(above), last, made)
        side.model.zero_grad(set_to_none=True)
    world.former = []
    world.ready()


@action(weight=2, changes={"storage", "values", "grads"})
def change_dtype(world: World, rng: random.Random) -> None:
    """To another dtype and on, or to the one that it has."""
    if rng.random() < 0.4:
        for side in (world.live, world.twin):
            require(side.model.to(world.dtype) is side.model, "objects", ".to answers another model")
        return
    world.dtype = torch.float32 if world.dtype == torch.float64 else torch.float64
    for side in (world.live, world.twin):
        side.model.zero_grad(set_to_none=True)
        side.model.to(world.dtype)
    world.ready()


@action(weight=2, changes={"objects", "values", "storage"})
def load_weights(world: World, rng: random.Random) -> None:
    """Other weights of the same shapes, copied in or put in their place."""
    seed, assign = rng.randrange(1000), rng.random() < 0.3
    made = af.build(world.spec, device=world.device, dtype=world.dtype, seed=seed).state_dict()
    state = {name: 0.7 * t + 0.3 * made[name] for name, t in world.twin.model.state_dict().items()}
    if assign:
        for side in (world.live, world.twin):
            side.model.zero_grad(set_to_none=True)
    before = dict(world.model.named_parameters())
    for side in (world.live, world.twin):
        side.model.load_state_dict({name: t.clone() for name, t in state.items()}, assign=assign)
    if assign:
        world.former = []
        world.ready()
    else:
        other = [name for name, p in world.model.named_parameters() if p is not before[name]]
        require(not other, "objects", f"load_state_dict replaced {other[:3]}")


@action(weight=2, when=learns)
def resume(world: World, rng: random.Random) -> None:
    """Optimizers and mean from what a checkpoint holds, as a run that is taken up has them; the twin goes on."""
    side = world.live
    state = {name: t.clone() for name, t in side.learner.optimizers.state().items()}
    mean, steps = {name: t.clone() for name, t in side.ema.means.items()}, int(side.ema.steps)
    other = side.other
    side.ready()
    side.other = other
    take(state, side.learner.optimizers.state())
    take(mean, side.ema.means)
    side.ema.steps.fill_(steps)


STAGES: tuple[dict[str, Any], ...] = (
    {"attention.pattern": "window(5)"}, {"attention.pattern": "causal"}, {"attention.pattern": "symmetric_window(3)"},
    {"position.theta": 5000.0}, {"block.dropout": 0.1}, {"block.dropout": 0.0}, {"head.softcap": 6.0},
    {"loss.label_smoothing": 0.05}, {"context": 48}, {"attention.softcap": 8.0},
)  # fmt: skip


@action(weight=2, changes={"modules"})
def change_stage(world: World, rng: random.Random) -> None:
    """Another architecture with the very parameters, as a stage of a run has it; the former model stays usable."""
    shapes = {name: weight.shape for name, weight in weights(world.spec).items()}
    for changes in rng.sample(STAGES, len(STAGES)):
        try:
            spec = world.spec.vary(changes)
        except AnyformerError:
            continue
        if spec == world.spec or {name: weight.shape for name, weight in weights(spec).items()} != shapes:
            continue
        compiled = any(hasattr(getattr(m, "way", None), "plain") for m in world.model.modules())
        world.former = [*world.former, world.model][-2:]
        mixed = len({module.training for module in world.model.modules()}) > 1
        world.replace(restaged(world.model, spec), restaged(world.twin.model, spec))
        world.set_ways("none", "block" if compiled and not world.reversible else "none")
        require(mixed or world.model.training == world.twin.model.training, "modes", "a stage changed the mode")
        return


@action(weight=1, when=lambda w: not w.reversible, changes={"ways"})
def change_recomputing(world: World, rng: random.Random) -> None:
    world.set_ways(rng.choice(("none", "block", "selective")), "none")


@action(weight=6, when=lambda w: w.compiles and not w.reversible, changes={"ways"})
def compile_training(world: World, rng: random.Random) -> None:
    """Blocks or the whole pass through torch.compile from here on, or not any more."""
    kind = rng.choice(("block", "block", "model", "none"))
    world.set_ways(rng.choice(("none", "block")) if kind != "model" else "none", "none")
    world.set_ways("none", kind)


# Other models that are gone on with.


def _gone_on(world: World, rng: random.Random, label: str, made: Model) -> None:
    """Hold what came out against the twin; then go on with it, or watch it."""
    named = dict(made.named_parameters())
    wrong = [name for name, p in world.twin.model.named_parameters() if not same(named[name].detach(), p.detach())]
    require(not wrong and len(named) == len(dict(world.model.named_parameters())), "values", f"{label}: {wrong[:4]}")
    own = {p.data_ptr() for p in world.model.parameters()}
    shared = [name for name, p in named.items() if p.data_ptr() in own]
    require(not shared, "storage", f"{label}: shares {shared[:3]} with the model that it was made from")
    require(made.spec == world.spec, "spec", f"{label}: has another spec")
    if rng.random() < 0.5:
        world.keep(label, made)
        return
    world.keep(f"the model before {label}", world.model)
    modes = {name: module.training for name, module in made.named_modules()}
    for name, module in world.twin.model.named_modules():
        module.training = modes[name]
    for name, p in world.twin.model.named_parameters():
        p.requires_grad_(named[name].requires_grad)
    world.adopt(made)
    if any(getattr(module, "way", None) is not None for module in world.twin.model.modules()):
        world.set_ways("none", "none")


def _same_modes(world: World, label: str, made: Model) -> None:
    modes = dict(made.named_modules())
    lost = [name for name, module in world.model.named_modules() if modes[name].training != module.training]
    require(not lost, "modes", f"{label}: is in another mode: {lost[:3]}")
    named = dict(made.named_parameters())
    lost = [name for name, p in world.model.named_parameters() if named[name].requires_grad != p.requires_grad]
    require(not lost, "requires_grad", f"{label}: {lost[:3]}")


@action(weight=2, changes=WHOLE)
def deepcopy(world: World, rng: random.Random) -> None:
    made = copy.deepcopy(world.model)
    _same_modes(world, "a deep copy", made)
    _gone_on(world, rng, "a deep copy", made)


@action(weight=2, changes=WHOLE)
def pickled(world: World, rng: random.Random) -> None:
    if rng.random() < 0.5:
        made = pickle.loads(pickle.dumps(world.model))
    else:
        room = io.BytesIO()
        torch.save(world.model, room)
        room.seek(0)
        made = torch.load(room, weights_only=False)
    _same_modes(world, "an unpickled model", made)
    _gone_on(world, rng, "an unpickled model", made)


def _other_dtype(world: World, made: Model) -> Model:
    require(next(made.parameters()).dtype == world.dtype, "values", f"a loaded model is not of {world.dtype}")
    require(not any(m.training for m in made.modules()), "modes", "a loaded model is in training mode")
    return made


@action(weight=3, changes=WHOLE)
def save_and_load(world: World, rng: random.Random) -> None:
    """In our own format, at times into the folder that the model was read from."""
    folder = world.folder / rng.choice(("one", "two"))
    af.save(world.model, folder)
    made = _other_dtype(world, af.load(folder, device=world.device, dtype=world.dtype))
    for old in [file for file in world.files if file.parent == folder]:
        del world.files[old]
    world.guard_file(folder / "model.safetensors")
    _gone_on(world, rng, "a loaded model", made)


@functools.cache
def _has_family(spec: ModelSpec) -> bool:
    try:
        family_for(spec)
    except AnyformerError:
        return False
    return True


def _public(world: World) -> bool:
    # Of random specs hardly one has a public class, and to find that out takes longer than a walk.
    return is_published(world.number) and _has_family(world.spec)


@action(weight=4, when=_public, changes=WHOLE)
def save_as_published(world: World, rng: random.Random) -> None:
    folder = world.folder / rng.choice(("three", "four"))
    af.save(world.model, folder, format="hf")
    made = _other_dtype(world, af.load(folder, device=world.device, dtype=world.dtype))
    for old in [file for file in world.files if file.parent == folder]:
        del world.files[old]
    for file in folder.glob("*.safetensors"):
        world.guard_file(file)
    if made.spec == world.spec:
        _gone_on(world, rng, "a loaded publication", made)


@functools.cache
def _has_class(spec: ModelSpec) -> bool:
    try:
        from transformers.utils import logging
    except ImportError:
        return False
    # What importing a class does to the process, and the thread of a progress bar, are not ours.
    logging.disable_progress_bar()
    try:
        with drawing(0, torch.device("cpu")):
            af.to_hf(af.build(spec))
    except AnyformerError:
        return False
    return True


def _bridged(world: World) -> bool:
    return _public(world) and _has_class(world.spec)


@action(weight=3, when=_bridged, changes=WHOLE)
def export(world: World, rng: random.Random) -> None:
    """To the public class and back, in memory."""
    theirs = af.to_hf(world.model)
    require(theirs.training == world.model.training, "modes", "the public model is in another mode")
    made = af.from_hf(theirs)
    mode = world.model.training
    if made.spec == world.spec and all(module.training == mode for module in made.modules()):
        _gone_on(world, rng, "an imported model", made)


SURGERIES = (
    Surgery(theta=3000.0), Surgery(scaling=("linear", 2.0)), Surgery(window=6), Surgery(kv_heads=1),
    Surgery(kv_heads=1, pool="first"), Surgery(positions=80), Surgery(positions=80, extend="interpolate"),
    Surgery(changes={"block.dropout": 0.05}),
)  # fmt: skip


@action(weight=2, changes=WHOLE)
def surgery(world: World, rng: random.Random) -> None:
    """A changed shape: the model itself stays as it is, and the new one speaks and may be gone on with."""
    for each in rng.sample(SURGERIES, len(SURGERIES)):
        try:
            made = operate(world.model, each)
        except AnyformerError:
            continue
        if world.talks:
            af.generate(made, world.prompts(rng), max_new_tokens=2, **world.declared_for(made))
        if rng.random() < 0.5:
            plain = operate(world.twin.model, each)
            twin = af.build(plain.spec, device=world.device, dtype=world.dtype).train(plain.training)
            twin.load_state_dict(plain.state_dict())
            for a, b in zip(made.parameters(), twin.parameters(), strict=True):
                require(same(a.detach(), b.detach()), "values", f"{each} gives other weights")
            world.kept = []
            world.adopt(made, twin)
        return
