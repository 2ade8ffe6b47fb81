"""The world of a walk: a model that everything is done to, and beside it a twin that is only ever trained plainly.

The twin reads and learns in the plainest way: it never generates, is never traced, quantised, copied or exported, and no
two of its threads meet. Whatever the walked model went through, its weights, gradients, modes and what optimizers
remember must be the twin's to the bit.
"""

import copy
import random
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import anyformer as af
from anyformer.data.dataset import Batch
from anyformer.data.objectives import Objective
from anyformer.model.model import Model
from anyformer.model.stack import Stack
from anyformer.parts.fused_linear import FusedInputs, why_not
from anyformer.specs import ModelSpec
from anyformer.specs.embed_head import PatchEmbed
from anyformer.specs.parameters import silent
from anyformer.train.compile import compiled, recompute
from anyformer.train.cuda_graph import Captured
from anyformer.train.optim import Ema, Optimizers
from anyformer.train.optim_config import AdamW, Muon, Optim
from anyformer.train.train_step import Precision, SpikeGuard, TrainStep
from tests.contract.contracts import answers, randomise
from tests.contract.feed import call, document
from tests.generation.talking import talks
from tests.tolerances import TABLE, difference

EMA = 0.7
KEPT = 3
"""Models beside the walked one that are watched at once."""
HOOKS = (
    "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "_state_dict_hooks",
    "_state_dict_pre_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks",
)  # fmt: skip
NOTHING = 1e-5
"""A gradient below this share of the largest one may be rounding itself, and lost in rounding when it moves a weight."""


class Violation(AssertionError):
    """Something is not as it must be. `kind` says which check found it."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind, self.text = kind, text

    def __reduce__(self) -> tuple[type["Violation"], tuple[str, str]]:
        return Violation, (self.kind, self.text)


def require(condition: object, kind: str, text: str) -> None:
    """Raise a Violation unless the condition holds."""
    if not condition:
        raise Violation(kind, text)


def same(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are equal to the bit, NaN where the other is NaN."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return torch.equal(a, b) or torch.equal(a.nan_to_num(nan=7.0), b.nan_to_num(nan=7.0))


def gap(a: Tensor, b: Tensor) -> str:
    """How far two tensors are apart, in words."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return f"{tuple(a.shape)} of {a.dtype} against {tuple(b.shape)} of {b.dtype}"
    return f"differ by up to {float((a.detach().double() - b.detach().double()).abs().max()):.3g}"


def objective_for(spec: ModelSpec) -> Objective:
    """What a run would ask of this head."""
    by_head = {"sequence": "sequence", "pair": "pair", "token": "tag", "regression": "regress"}
    by_topology = {"decoder": "causal", "encoder": "masked", "encoder-decoder": "translate"}
    return Objective.named(by_head.get(spec.head.kind, by_topology[spec.topology]))()


@contextmanager
def drawing(seed: int, device: torch.device) -> Iterator[None]:
    """Draws of this seed, and afterwards the generators as they were."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


@contextmanager
def quiet(model: nn.Module) -> Iterator[None]:
    """Every module in eval mode for a while; our own, so that a fault of the library's does not hide here."""
    before = [(module, module.training) for module in model.modules()]
    try:
        for module, _ in before:
            module.training = False
        yield
    finally:
        for module, training in before:
            module.training = training


@dataclass(kw_only=True)
class Settings:
    """What a walk is like beside its seed."""

    device: str = "cpu"
    backend: str | None = "aot_eager"
    """What compiled walks compile with; None: no walk compiles."""
    compiles: int = 40
    """Every so many-th walk compiles; 1: all."""
    captured: bool = False
    """Whether steps are replayed from CUDA graphs too."""
    specs: int = 60
    ignored: tuple[str, ...] = ()
    """Kinds of violations that are not looked for."""


@dataclass(kw_only=True)
class Side:
    """A model and all that trains it, as a run has it: the walked one, or its twin."""

    model: Model
    optim: Optim
    learner: TrainStep = field(init=False)
    ema: Ema = field(init=False)
    other: torch.optim.Optimizer | None = None
    """One of torch's own."""
    captured: Captured | None = None

    def ready(self) -> None:
        """New optimizers for the parameters as they are now."""
        self.learner = TrainStep(
            model=self.model, objective=objective_for(self.model.spec), optimizers=Optimizers(self.model, self.optim),
            precision=Precision(), guard=SpikeGuard(),
        )  # fmt: skip
        self.ema = Ema(self.model, EMA)
        self.other = self.captured = None

    def state(self) -> dict[str, Tensor]:
        """What is remembered beside the weights."""
        found = {f"optimizers: {name}": tensor for name, tensor in self.learner.optimizers.state().items()}
        found |= {f"mean: {name}": tensor for name, tensor in self.ema.means.items()} | {"mean: steps": self.ema.steps}
        if self.other is not None:
            for i, slots in enumerate(self.other.state_dict()["state"].values()):
                found |= {f"torch's optimizer: {i} {name}": t for name, t in slots.items() if isinstance(t, Tensor)}
        return found


@dataclass
class Picture:
    """How a model was before an action."""

    objects: dict[str, nn.Parameter]
    storage: dict[str, int]
    values: dict[str, Tensor]
    grads: dict[str, tuple[Tensor | None, Tensor | None]]
    """The gradients themselves, and copies."""
    modules: dict[str, nn.Module]
    keys: dict[str, list[str]]
    buffers: dict[str, Tensor]
    ways: list[Any]
    spec: ModelSpec

    @classmethod
    def of(cls, model: Model) -> "Picture":
        named = dict(model.named_parameters())
        modules = dict(model.named_modules())
        return cls(
            objects=named,
            storage={name: p.data_ptr() for name, p in named.items()},
            values={name: p.detach().clone() for name, p in named.items()},
            grads={name: (p.grad, None if p.grad is None else p.grad.clone()) for name, p in named.items()},
            modules=modules,
            keys={name: sorted(vars(module)) for name, module in modules.items()},
            buffers={name: b.detach().clone() for name, b in model.named_buffers()},
            ways=[getattr(module, "way", None) for module in modules.values()],
            spec=model.spec,
        )  # fmt: skip


@dataclass
class Kept:
    """A model beside the walked one that nobody trains: a copy, or what was read from a folder."""

    label: str
    model: Model
    values: dict[str, Tensor]
    modes: dict[str, bool]


def _compiled(model: Model) -> list[bool]:
    """Which modules go through compiled code, or are computed again in the backward pass."""
    ways = [getattr(module, "way", None) is not None for module in model.modules()]
    return [model._compiled_call_impl is not None, *ways]


class World:
    """A walk's state."""

    def __init__(self, seed: int, settings: Settings) -> None:
        self.settings, self.seed = settings, seed
        rng = random.Random(f"world {seed}")
        self.number = seed % settings.specs
        from tests.walks.specs import spec_of

        spec = spec_of(self.number)
        self.device = torch.device(settings.device)
        self.compiles = settings.backend is not None and seed % settings.compiles == settings.compiles - 1
        self.dtype = rng.choice((torch.float64, torch.float32))
        self.steps = 0
        self.kept: list[Kept] = []
        self.files: dict[Path, bytes] = {}
        self.former: list[Model] = []
        """Models of stages that are over: their parameters are the walked one's."""
        self.folder = Path(tempfile.mkdtemp(prefix="anyformer-walk-"))
        leaf = rng.choice((Muon(), AdamW()))
        made = [randomise(af.build(spec, dtype=self.dtype, seed=seed), seed).to(self.device) for _ in range(2)]
        for model in made:
            model.train()
        self.live, self.twin = (Side(model=model, optim=Optim(leaf=leaf)) for model in made)
        self.felt: dict[str, Tensor] = {}
        """The largest number of each gradient of the twin's last backward pass."""
        self.shape = self._shape()
        self.ready()

    def close(self) -> None:
        """Leave nothing behind."""
        shutil.rmtree(self.folder, ignore_errors=True)
        if self.compiles:
            torch.compiler.reset()

    # What there is to walk on.

    @property
    def model(self) -> Model:
        return self.live.model

    @property
    def spec(self) -> ModelSpec:
        return self.live.model.spec

    @property
    def talks(self) -> bool:
        # A decoder that begins with one token can't be fed a prefix at once.
        return talks(self.spec) and (self.spec.topology == "decoder" or self.prefix <= 1)

    @property
    def scores(self) -> bool:
        """Whether it has a loss."""
        return self.spec.head.kind != "none"

    @property
    def exact(self) -> bool:
        layers = (layer for stack in self.spec.stacks for layer in stack.layers)
        return all(layer.attention.mixer.exact for layer in layers)

    @property
    def reversible(self) -> bool:
        return any(stack.reversible for stack in self.spec.stacks)

    @property
    def prefix(self) -> int:
        stack: Any = self.model._modules.get("decoder")
        return stack.prefix if isinstance(stack, Stack) else 0

    @property
    def declared(self) -> dict[str, int]:
        """The length that length-dependent positions read, where there are such."""
        return {"rope_length": 17} if self.model.reads_length else {}

    def ready(self) -> None:
        """New optimizers on both sides, for the parameters as they are now."""
        for side in (self.live, self.twin):
            side.ready()
        self.views = {name: p.detach() for name, p in self.model.named_parameters()}
        for name, p in self.twin.model.named_parameters():
            if p.requires_grad and not p._post_accumulate_grad_hooks:
                p.register_post_accumulate_grad_hook(self._feel(name))

    def _feel(self, name: str) -> Any:
        def hook(p: Tensor) -> None:
            if p.grad is not None:
                self.felt[name] = p.grad.detach().abs().amax()

        return hook

    def adopt(self, model: Model, twin: Model | None = None) -> None:
        """Go on with another model. The twin stays itself where the values are the same."""
        self.former = []
        self.live.model = model
        if twin is not None:
            self.twin.model = twin
        self.twin.model.zero_grad(set_to_none=True)
        self.dtype = next(model.parameters()).dtype
        self.ready()

    def replace(self, model: Model, twin: Model) -> None:
        """Another stage: other modules, the same parameters and optimizers."""
        for side, made in ((self.live, model), (self.twin, twin)):
            side.model = side.learner.model = made

    def keep(self, label: str, model: Model) -> None:
        """Watch a model that must stay as it is now."""
        values = {name: p.detach().clone() for name, p in model.named_parameters()}
        modes = {name: module.training for name, module in model.named_modules()}
        self.kept = [*self.kept, Kept(label, model, values, modes)][-KEPT:]

    def guard_file(self, file: Path) -> None:
        """A file that nobody may change from here on; a new one may take its place."""
        self.files[file] = file.read_bytes()

    # What it is fed.

    def _shape(self) -> tuple[int, ...]:
        """What a head answers to one row."""
        with torch.no_grad(), quiet(self.twin.model):
            out = answers(self.read(self.twin.model, self.inputs(0, rows=1)))
        return tuple(out.shape[1:])

    def inputs(self, seed: int, *, rows: int = 2, length: int = 9) -> dict[str, Tensor]:
        """Arguments of a pass, by name."""
        spec = self.spec
        docs = [document(spec, length, 100 * seed + row, target=length - 3) for row in range(rows)]
        floats = torch.float64 if self.dtype == torch.float64 else torch.float32
        source = torch.stack([doc.source for doc in docs])
        found = {spec.embed.reads: source.to(floats) if source.is_floating_point() else source}
        given = {"token_types": "types", "global_mask": "marks", "decoder_input_ids": "target"}
        for name, attribute in given.items():
            parts = [getattr(doc, attribute) for doc in docs]
            if parts[0] is not None:
                found[name] = torch.stack(parts)
        return {name: tensor.to(self.device) for name, tensor in found.items()}

    def labels(self, seed: int, inputs: Mapping[str, Tensor]) -> Tensor:
        """What the head is asked for."""
        generator = torch.Generator().manual_seed(seed)
        rows = len(next(iter(inputs.values())))
        if self.spec.head.kind == "regression":
            floats = torch.float64 if self.dtype == torch.float64 else torch.float32
            found = torch.randn(rows, *self.shape, generator=generator, dtype=torch.float64).to(floats)
            return found.to(self.device)
        if self.spec.head.kind == "qa":
            # The first and the last token of an answer.
            return torch.randint(0, self.tokens, (rows, 2), generator=generator).to(self.device)
        ids = inputs.get("decoder_input_ids", inputs.get("input_ids"))
        cells = self.shape[:-1] if self.spec.head.pools or ids is None else (ids.shape[1],)
        found = torch.randint(0, self.shape[-1], (rows, *cells), generator=generator)
        if found.dim() > 1 and self.spec.head.predicts_tokens:
            found[:, -2] = -100
        return found.to(self.device)

    def batch(self, seed: int, *, rows: int = 4) -> Batch:
        """A batch as a feed makes it."""
        inputs = self.inputs(seed, rows=rows)
        inputs["labels"] = self.labels(seed, inputs)
        if self.spec.head.kind == "regression":
            # This objective asks which rows hold something at all.
            inputs["attention_mask"] = torch.ones(rows, self.tokens, dtype=torch.long, device=self.device)
        arrays = {name: tensor.cpu().numpy() for name, tensor in inputs.items()}
        counts = np.full(rows, 7)
        return Batch(arrays, self.steps, counts, counts - 1)

    @property
    def tokens(self) -> int:
        """Of one row that is read."""
        return self.spec.embed.tokens() if isinstance(self.spec.embed, PatchEmbed) else 9

    def read(self, model: Model, inputs: Mapping[str, Tensor], **more: Any) -> Any:
        """A plain pass."""
        given = dict(inputs)
        source = given.pop(model.spec.embed.reads)
        return call(model, source, **given, **self.declared_for(model), **more)

    def declared_for(self, model: Model) -> dict[str, int]:
        return {"rope_length": 17} if model.reads_length else {}

    def prompts(self, rng: random.Random, rows: int = 2) -> Tensor:
        """Prompts (or sources) of one length."""
        length = max(rng.randint(2, 6), self.prefix)
        generator = torch.Generator().manual_seed(rng.randrange(2**31))
        return torch.randint(0, min(self.spec.vocab, self.spec.input_vocab), (rows, length), generator=generator).to(
            self.device
        )

    # What the twin says.

    def pass_of_twin(self, inputs: Mapping[str, Tensor], **more: Any) -> Any:
        """What a plain pass in eval mode gives."""
        with torch.no_grad(), quiet(self.twin.model):
            return self.read(self.twin.model, inputs, **more)

    def likeliest(self, prompt_BT: Tensor, new: int) -> tuple[Tensor, Tensor]:
        """New tokens by plain passes of the twin, the likeliest first, and how far ahead of the second each was."""
        model, two = self.twin.model, self.spec.topology == "encoder-decoder"
        ids_BT = torch.full_like(prompt_BT[:, :1], self.spec.ids.start or 0) if two else prompt_BT
        begun, ahead = ids_BT.shape[1], []
        with torch.no_grad(), quiet(model):
            for _ in range(new):
                given = {"input_ids": prompt_BT, "decoder_input_ids": ids_BT} if two else {"input_ids": ids_BT}
                logits_BV = model(**given, **self.declared).logits[:, -1].double()
                best = logits_BV.topk(2).values
                ahead.append((best[:, 0] - best[:, 1]) / (logits_BV.amax(-1) - logits_BV.amin(-1)).clamp(min=1e-300))
                ids_BT = torch.cat((ids_BT, logits_BV.argmax(-1, keepdim=True)), 1)
        return ids_BT[:, begun:], torch.stack(ahead, 1)

    # Whether all is as it must be.

    def set_ways(self, recomputed: str, kind: str) -> None:
        """How blocks run from here on, on both sides, as a run sets it up for a stage."""
        for side in (self.live, self.twin):
            if not self.reversible:
                recompute(side.model, recomputed)  # type: ignore[arg-type]
            compiled(side.model, kind, backend=self.settings.backend or "eager")  # type: ignore[arg-type]

    def check(self, before: Picture, changed: frozenset[str]) -> list[Violation]:
        """All that is wrong after an action that may have changed some things."""
        found = [*self._against(before, changed), *self._twins(), *self._traces(), *self._beside()]
        return [violation for violation in found if violation.kind not in self.settings.ignored]

    def _against(self, before: Picture, changed: frozenset[str]) -> Iterator[Violation]:
        """What changed though it may not have."""
        model, now = self.model, dict(self.model.named_parameters())
        if "objects" not in changed:
            other = [n for n in before.objects.keys() | now.keys() if before.objects.get(n) is not now.get(n)]
            if other:
                yield Violation("objects", f"parameters are other objects than before: {_few(other)}")
        if not changed & {"objects", "storage"}:
            moved = [name for name, p in now.items() if p.data_ptr() != before.storage.get(name)]
            if moved:
                yield Violation("storage", f"parameters lie elsewhere than before: {_few(moved)}")
        if not changed & {"objects", "values"}:
            wrong = [name for name, p in now.items() if not same(p.detach(), before.values[name])]
            if wrong:
                yield Violation("values", f"parameters have other values than before: {_few(wrong)}")
        if not changed & {"objects", "values", "grads"}:
            for name, p in now.items():
                held, copied = before.grads[name]
                if p.grad is not held or (copied is not None and not same(p.grad, copied)):  # type: ignore[arg-type]
                    yield Violation("grads", f"the gradient of {name} is not what it was")
                    break
        if "modules" not in changed:
            modules = dict(model.named_modules())
            other = [n for n in before.modules.keys() | modules.keys() if before.modules.get(n) is not modules.get(n)]
            if other:
                yield Violation("modules", f"modules are other objects than before: {_few(other)}")
            # What `compile` leaves on a module stands for nothing where it is none.
            passed = {"_compiled_call_impl"} if "ways" in changed else set()
            extras = {n: (set(vars(m)) ^ set(before.keys.get(n, ()))) - passed for n, m in modules.items()}
            left = [n for n, extra in extras.items() if extra]
            if left:
                extra = sorted(extras[left[0]])
                yield Violation("attributes", f"{left[0] or 'the model'} has other attributes than before: {extra}")
            ways = [getattr(module, "way", None) for module in modules.values()]
            if "ways" not in changed and any(a is not b for a, b in zip(ways, before.ways, strict=False)):
                yield Violation("ways", "blocks run in another way than before")
            if model.spec is not before.spec:
                yield Violation("spec", "the model has another spec than before")
            for name, buffer in model.named_buffers():
                if "objects" not in changed and not same(buffer, before.buffers[name]):
                    yield Violation("buffers", f"{name} is not what it was")

    def _twins(self) -> Iterator[Violation]:
        """Where the walked model is not what its twin is."""
        live, twin = (dict(side.model.named_parameters()) for side in (self.live, self.twin))
        if live.keys() != twin.keys():
            yield Violation("objects", f"parameters are not the twin's: {_few(live.keys() ^ twin.keys())}")
            return
        shared = [name for name, p in live.items() if p.data_ptr() == twin[name].data_ptr()]
        if shared:
            yield Violation("storage", f"parameters share memory with the twin: {_few(shared)}")
        wrong = [name for name, p in live.items() if not same(p.detach(), twin[name].detach())]
        if wrong:
            name = wrong[0]
            yield Violation(
                "values", f"{len(wrong)} of {len(live)} parameters are not the twin's: {_few(wrong)}; {name} "
                f"{gap(live[name], twin[name])}",
            )  # fmt: skip
        asked = [name for name, p in live.items() if p.requires_grad != twin[name].requires_grad]
        if asked:
            yield Violation("requires_grad", f"{_few(asked)} is not the twin's")
        for name, p in live.items():
            other = twin[name].grad
            if (p.grad is None) != (other is None) or (p.grad is not None and not same(p.grad, other)):  # type: ignore[arg-type]
                yield Violation("grads", f"the gradient of {name} is not the twin's")
                break
        modes = dict(self.twin.model.named_modules())
        lost = [name for name, module in self.model.named_modules() if module.training != modes[name].training]
        if lost:
            yield Violation("modes", f"modules are in another mode than the twin's: {_few(lost)}")
        if wrong:
            return
        states, theirs = self.live.state(), self.twin.state()
        other = [n for n in states.keys() | theirs.keys() if n not in states or n not in theirs or not same(states[n], theirs[n])]  # fmt: skip
        if other:
            yield Violation("state", f"what is remembered is not the twin's: {_few(other)}")

    def _traces(self) -> Iterator[Violation]:
        """What was left on the model."""
        for name, module in self.model.named_modules():
            hooks = [hook for hook in HOOKS if getattr(module, hook)]
            if hooks:
                yield Violation("hooks", f"{name or 'the model'} has {', '.join(hooks)}")
        for name, p in self.model.named_parameters():
            if p._backward_hooks or p._post_accumulate_grad_hooks:
                yield Violation("hooks", f"{name} has hooks on its gradient")
            if not p.is_leaf or p.is_inference() or type(p) is not nn.Parameter:
                yield Violation("objects", f"{name} is no plain leaf: {type(p).__name__}, inference {p.is_inference()}")
            view = self.views.get(name)
            if view is None or not same(view, p.detach()):
                yield Violation("storage", f"who took {name}.detach() before does not see its values any more")
                break

    def _beside(self) -> Iterator[Violation]:
        """What is watched beside the model."""
        for kept in self.kept:
            wrong = [n for n, p in kept.model.named_parameters() if not same(p.detach(), kept.values[n])]
            if wrong:
                yield Violation("others", f"{kept.label}: changed with the walked model: {_few(wrong)}")
            if {name: module.training for name, module in kept.model.named_modules()} != kept.modes:
                yield Violation("others", f"{kept.label}: is in another mode than it was")
        for file, content in self.files.items():
            if file.read_bytes() != content:
                yield Violation("files", f"{file.name} was changed")

    def forward(self, seed: int) -> Violation | None:
        """Whether both answer the same to the bit, in the mode that they are in.

        Parameters that were replaced lie apart, and a copy lays them side by side again: where that differs, sums that
        are fused on one side only round otherwise.
        """
        inputs = self.inputs(seed)
        # Where it compiles, one graph has to do.
        labels = self.labels(seed, inputs) if self.scores and (seed % 3 or self.compiles) else None
        found = []
        for side in (self.live, self.twin):
            with drawing(seed, self.device), torch.set_grad_enabled(bool(seed % 2) or self.compiles):
                found.append(self.read(side.model, inputs, labels=labels))
        apart = [
            [why_not(m.inputs()) for m in side.model.modules() if isinstance(m, FusedInputs)]
            for side in (self.live, self.twin)
        ]
        if self.settings.backend == "inductor":
            # Its kernels fuse sums too, and a copy of a compiled model is not compiled.
            apart = [(each, _compiled(side.model)) for each, side in zip(apart, (self.live, self.twin), strict=True)]
        limit = 0.0 if apart[0] == apart[1] else TABLE["single" if self.dtype == torch.float32 else "causality"].limit
        for name in ("hidden", "logits", "loss"):
            mine, theirs = (getattr(out, name) for out in found)
            one = (mine is None) == (theirs is None)
            if not one or (
                mine is not None and not same(mine.detach(), theirs.detach()) and difference(mine, theirs) > limit
            ):
                return Violation(
                    "forward", f"{name} is not the twin's: {'none' if mine is None else gap(mine, theirs)}"
                )
        return None

    def moved(self, before: Mapping[str, Tensor], *, skipped: bool = False, least: float = NOTHING) -> None:
        """Require that a step moved every parameter that had a gradient, and no other."""
        named, silenced = dict(self.model.named_parameters()), silent(self.spec)
        felt = {name: float(size) for name, size in self.felt.items()}
        largest = max(felt.values(), default=0.0)
        unmoved = [name for name, p in named.items() if same(p.detach(), before[name])]
        stuck = [name for name in unmoved if felt.get(name, 0.0) > least * largest]
        if not skipped:
            require(not stuck, "frozen", f"a step left these as they were, though they have gradients: {_few(stuck)}")
        deaf = [n for n, p in named.items() if p.requires_grad and n not in felt and n not in silenced]
        require(not deaf, "deaf", f"the backward pass of a step did not reach {_few(deaf)}")
        drifted = [n for n, p in named.items() if not p.requires_grad and n not in unmoved]
        require(not drifted, "frozen", f"a step moved what does not learn: {_few(drifted)}")

    def copied(self) -> Model:
        """A copy as users make one."""
        return copy.deepcopy(self.model)


def _few(names: Any) -> str:
    ordered = sorted(names)
    return ", ".join(ordered[:4]) + (f" and {len(ordered) - 4} more" if len(ordered) > 4 else "")
