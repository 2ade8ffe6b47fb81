"""Reversible stacks: the gradients of plain autograd, from nothing but the last streams."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import anyformer as af
from anyformer.data.dataset import Batch
from anyformer.data.objectives.causal import Causal
from anyformer.kernels.attention_mask import AttentionMask
from anyformer.model import stack
from anyformer.model.block import Coupling, couple
from anyformer.model.reversible import Work, run_reversible
from anyformer.parts.attention_metadata import AttentionMetadata, RotaryTables
from anyformer.train.cpu_workers import CpuWorkers
from anyformer.train.optim import Optimizers
from anyformer.train.train_step import Precision, SpikeGuard, TrainStep
from tests.parts.samples import random, randomised
from tests.tolerances import TABLE, assert_close, difference

ROOT = Path(af.__file__).parents[1]
BASE = {
    "vocab": 31, "width": 16, "depth": 3, "context": 64, "attention": {"heads": 4, "kv_heads": 2},
    "block": {"wiring": "reversible"},
}  # fmt: skip
DROPS = {"attention.dropout": 0.2, "ffn.dropout": 0.3, "block.dropout": 0.1}
CASES: dict[str, dict[str, Any]] = {
    "rope": {},
    "t5": {"position.kind": "t5"},
    "shaw, concat": {"position.kind": "shaw", "block.merge": "concat"},
    "xl, sandwich, branch scale": {"position.kind": "xl", "norm.placement": "sandwich", "block.branch_scale": 0.5},
    "dropout": DROPS,
    "dropout, t5": {"position.kind": "t5", **DROPS},
    "window, sinks": {"attention.pattern": "window(5)", "attention.mixer.sinks": True},
    "chunked feed-forward": {"ffn.chunk": 7},
    "chunked feed-forward, dropout": {"ffn.chunk": 7, **DROPS},
    "encoder-decoder": {"topology": "encoder-decoder", "ids.start": 1, "position.kind": "t5"},
    "encoder-decoder, dropout": {"topology": "encoder-decoder", "ids.start": 1, **DROPS},
    "encoder": {"topology": "encoder", "norm.kind": "layernorm", "ffn.kind": "gelu"},
}


def build(changes: dict[str, Any], dtype: torch.dtype = torch.float64) -> Any:
    return randomised(af.build(af.spec(BASE, changes))).to(dtype).train()


def loss_of(model: Any, seed: int = 0) -> torch.Tensor:
    ids = torch.randint(0, 31, (2, 13), generator=torch.Generator().manual_seed(seed))
    torch.manual_seed(seed)
    return model(ids, labels=ids.flip(1)).loss


def gradients(model: Any) -> dict[str, torch.Tensor]:
    names, parameters = zip(*model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss_of(model), parameters), strict=True))


def plainly(blocks, streams, scenes, crossing, memory=None, extra=()):
    """The couplings by plain autograd: the forward pass as it is written down."""
    steps = [c for b, s, x in zip(blocks, scenes, crossing, strict=True) for c in b.couplings(s, x, memory)]
    return couple(steps, streams)


@pytest.mark.parametrize("case", CASES)
def test_gradients_of_every_parameter_equal_plain_autograd(case, monkeypatch):
    model = build(CASES[case])
    undone: list[int] = []
    undo = Work.undo
    monkeypatch.setattr(Work, "undo", lambda work, i, *args: undone.append(i) or undo(work, i, *args))
    found, loss = gradients(model), loss_of(model)
    two = [5, 4, 3, 2, 1, 0]
    assert undone == ([8, 7, 6, *two, *two] if case.startswith("encoder-decoder") else two)
    monkeypatch.setattr(stack, "run_reversible", plainly)
    wanted = gradients(model)
    assert_close("formula", loss, loss_of(model))
    for name, gradient in wanted.items():
        assert gradient.abs().max() > 0, name
        assert_close("kernel", found[name], gradient)


def test_gradients_of_24_layers_in_fp32_stay_within_the_stated_bound(monkeypatch):
    model = af.build(af.spec(BASE, {"depth": 24, "width": 32})).train()
    found = gradients(model)
    monkeypatch.setattr(stack, "run_reversible", plainly)
    for name, gradient in gradients(model).items():
        assert_close("reversible", found[name], gradient)


def test_streams_equal_the_couplings_written_down_and_so_do_gradients_of_both_and_of_the_memory(monkeypatch):
    model = build({"topology": "encoder-decoder", "ids.start": 1, "position.kind": "t5"})
    seen: list[Any] = []
    monkeypatch.setattr(stack, "run_reversible", lambda *given: seen.append(given) or plainly(*given))
    loss_of(model)
    blocks, _, scenes, crossing, memory, extra = seen[-1]
    memory = memory.detach().requires_grad_()
    x1, x2 = random(2, 13, 16, seed=1).requires_grad_(), random(2, 13, 16, seed=2).requires_grad_()
    a, b = x1, x2
    for block, scene, across in zip(blocks, scenes, crossing, strict=True):
        a = a + block.attention(b, scene)
        b = b + block.cross(a, across, memory)
        a = a + block.ffn(b)
    found = run_reversible(blocks, (x1, x2), scenes, crossing, memory, extra)
    weights = random(2, 13, 16, seed=3), random(2, 13, 16, seed=4)
    wrt = (x1, x2, memory, *extra)
    wanted = torch.autograd.grad((a, b), wrt, weights)
    for ours, theirs in zip((*found, *torch.autograd.grad(found, wrt, weights)), (a, b, *wanted), strict=True):
        assert_close("kernel", ours, theirs)
    with torch.no_grad():
        for ours, theirs in zip(run_reversible(*seen[-1][:1], (x1, x2), *seen[-1][2:]), found, strict=True):
            assert_close("kernel", ours, theirs)


def test_block_called_with_one_stream_says_that_it_has_two():
    model = build({})
    with pytest.raises(TypeError, match="two streams"):
        model.decoder.blocks[0](random(1, 3, 16), cast(Any, None))


def test_backward_hooks_frozen_parameters_and_repeats_work_as_usual():
    model = build({})
    wanted = gradients(model)
    frozen = model.decoder.blocks[1].ffn.body.down.weight.requires_grad_(False)
    calls: list[int] = []
    hooked = model.decoder.blocks[0].attention.body.q.weight
    hooked.register_hook(lambda gradient: calls.append(1) or 2 * gradient)
    loss = loss_of(model)
    loss.backward(retain_graph=True)
    assert (len(calls), frozen.grad) == (1, None)
    loss.backward()
    for name, parameter in model.named_parameters():
        if parameter is not frozen:
            assert_close("kernel", parameter.grad, (4 if parameter is hooked else 2) * wanted[name])


def test_gradient_of_a_gradient_is_refused():
    model = build({})
    weight = model.decoder.blocks[0].attention.body.q.weight
    (gradient,) = torch.autograd.grad(loss_of(model), weight, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_parameters_given_for_one_call_get_the_gradients():
    model = build({})
    wanted = gradients(model)
    other = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    ids = torch.randint(0, 31, (2, 13), generator=torch.Generator().manual_seed(0))
    loss = torch.func.functional_call(model, other, (ids,), {"labels": ids.flip(1)}).loss
    loss.backward()
    for name, parameter in other.items():
        assert_close("kernel", parameter.grad, wanted[name])


def test_dropout_is_replayed_though_the_generator_moved_on_and_the_model_went_to_eval():
    model = build(DROPS)
    wanted = gradients(model)
    loss = loss_of(model)
    torch.randn(5)
    model.eval()
    before = torch.get_rng_state()
    loss.backward()
    assert torch.equal(torch.get_rng_state(), before)
    for name, parameter in model.named_parameters():
        assert_close("same", parameter.grad, wanted[name])


@pytest.mark.cuda
@pytest.mark.parametrize("case", ["dropout", "dropout, t5", "chunked feed-forward, dropout"])
@pytest.mark.parametrize("half", [False, True])
def test_dropout_on_cuda_is_replayed_in_either_precision(case, half, monkeypatch):
    model = build(CASES[case], torch.float32 if half else torch.float64).cuda()
    ids = torch.randint(0, 31, (2, 13), generator=torch.Generator().manual_seed(0)).cuda()

    def found() -> list[torch.Tensor]:
        torch.manual_seed(0)
        with torch.autocast("cuda", torch.bfloat16, enabled=half):
            loss = model(ids, labels=ids.flip(1)).loss
        return list(torch.autograd.grad(loss, list(model.parameters())))

    ours = found()
    monkeypatch.setattr(stack, "run_reversible", plainly)
    for gradient, wanted in zip(ours, found(), strict=True):
        # Another mask would be off by tens of percent; rounding in bf16 is not.
        assert difference(gradient, wanted) < (0.05 if half else TABLE["kernel"].limit)


@pytest.mark.parametrize("changes", [DROPS, {"block.wiring": "serial", "ffn.chunk": 5, "ffn.dropout": 0.3}])
def test_dropout_is_replayed_in_training_by_a_crew_whose_threads_share_the_generator(changes):
    model = build({**changes, "embed.dropout": 0.2})
    ids = torch.randint(0, 31, (4, 13), generator=torch.Generator().manual_seed(0))
    for _ in range(5):
        with CpuWorkers(2) as workers:
            torch.manual_seed(0)
            learner = TrainStep(
                model=model, objective=Causal(), optimizers=Optimizers(model), precision=Precision(), guard=SpikeGuard(),
                workers=workers,
            )  # fmt: skip
            counts = np.full(4, 13)
            batch = Batch({"input_ids": ids.numpy(), "labels": ids.numpy()}, 0, counts, counts - 1)
            value = learner._gradients(batch, torch.device("cpu"))["total"].item()
        found = {name: p.grad for name, p in model.named_parameters()}
        model.zero_grad()
        torch.manual_seed(0)
        loss = model(ids, labels=ids, return_logits=False).loss
        loss.backward()
        assert value == loss.item()
        for name, parameter in model.named_parameters():
            assert_close("same", found[name], parameter.grad)
        model.zero_grad()


PEAKS = """
import json
import torch
import anyformer as af
from anyformer.evals.memory import used
from tests.model.test_reversible import BASE

torch.set_num_threads(1)

def peak(depth, **changes):
    model = af.build(af.spec(BASE, {"depth": depth, "ffn.kind": "gelu", **changes})).train()
    ids = torch.randint(0, 31, (64, 64))
    model(ids, labels=ids).loss.backward()
    # The gradients are there already, and the large part is activations: 4096 tokens, 3,000 weights a layer.
    return used(lambda: model(ids, labels=ids).loss.backward()).peak

print(json.dumps([peak(6), peak(24), peak(6, **{"block.wiring": "serial"})]))
"""


def test_peak_memory_of_24_layers_is_that_of_6():
    # What other tests of a process free meanwhile would be counted.
    done = subprocess.run([sys.executable, "-c", PEAKS], cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    six, many, serial = json.loads(done.stdout.splitlines()[-1])
    assert many <= 1.2 * six
    assert serial > 2 * six


class Odd(nn.Module):
    """A branch whose decision hangs on the last bit of its input, as a bucket may."""

    drops = False

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(random(width, width, seed=width) / 4)
        self.decided: list[torch.Tensor] = []
        self.would: list[torch.Tensor] = []

    def couplings(self, scene: AttentionMetadata, cross_scene: Any, memory: Any) -> list[Coupling]:
        return [Coupling(i, cast(Any, self), (scene,)) for i in (0, 1)]

    def forward(self, x: torch.Tensor, scene: AttentionMetadata) -> torch.Tensor:
        def make() -> torch.Tensor:
            return x.detach().view(torch.int64) % 2 == 0

        even = scene.decisions.decide(make) if scene.decisions is not None else make()
        self.decided.append(even)
        self.would.append(make())
        return torch.where(even, x @ self.weight, (x @ self.weight).sin())


def test_decision_that_would_flip_on_recomputed_inputs_is_replayed():
    blocks = [Odd(8), Odd(8)]
    scene = AttentionMetadata(mask=cast(AttentionMask, None))
    x1, x2 = random(5, 8, seed=1).requires_grad_(), random(5, 8, seed=2).requires_grad_()
    wrt = (x1, x2, *(block.weight for block in blocks))
    wanted = torch.autograd.grad(sum(y.square().sum() for y in plainly(blocks, (x1, x2), [scene] * 2, [None] * 2)), wrt)
    for block in blocks:
        block.decided.clear()
        block.would.clear()
    found = run_reversible(blocks, (x1, x2), [scene] * 2, [None] * 2)
    first = [list(block.decided) for block in blocks]
    for ours, theirs in zip(torch.autograd.grad(sum(y.square().sum() for y in found), wrt), wanted, strict=True):
        assert_close("kernel", ours, theirs)
    flipped = 0
    for block, before in zip(blocks, first, strict=True):
        assert len(before) == 2
        # The backward pass comes from the other end.
        again, would = block.decided[2:][::-1], block.would[2:][::-1]
        assert all(map(torch.equal, before, again))
        flipped += sum(int((a != b).sum()) for a, b in zip(before, would, strict=True))
    assert flipped > 0
    assert scene.decisions is None


def test_backward_pass_computes_in_the_precision_of_the_forward_pass():
    seen: list[tuple[bool, torch.dtype]] = []

    class Watching(Odd):
        def forward(self, x: torch.Tensor, scene: AttentionMetadata) -> torch.Tensor:
            seen.append((torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")))
            return x * self.weight[0]

    x = random(5, 8).requires_grad_()
    scene = AttentionMetadata(mask=cast(AttentionMask, None))
    with torch.autocast("cpu", torch.float16):
        y1, y2 = run_reversible([Watching(8)], (x, x), [scene], [None])
    (y1 + y2).sum().backward()
    assert seen == [(True, torch.float16)] * 4
    seen.clear()
    y1, y2 = run_reversible([Watching(8)], (x, x), [scene], [None])
    with torch.autocast("cpu", torch.float16):
        (y1 + y2).sum().backward()
    assert [enabled for enabled, _ in seen] == [False] * 4


def test_scene_tensor_with_a_gradient_gets_it_however_deep_it_lies():
    table = random(8, seed=5).requires_grad_()

    class Reading(Odd):
        def forward(self, x: torch.Tensor, scene: AttentionMetadata) -> torch.Tensor:
            assert scene.own is not None
            assert scene.q_rope is not None
            return F.tanh(x * scene.own["table"] + scene.q_rope.angles[0])

    doubled = 2 * table
    scene = AttentionMetadata(
        mask=cast(AttentionMask, None), own={"table": table}, q_rope=RotaryTables(table.detach(), None, (doubled,))
    )
    x, blocks = random(5, 8).requires_grad_(), [Reading(8)] * 3
    wanted = torch.autograd.grad(
        sum(plainly(blocks, (x, x), [scene] * 3, [None] * 3)).sum(), (x, table), retain_graph=True
    )
    found = run_reversible(blocks, (x, x), [scene] * 3, [None] * 3)
    for ours, theirs in zip(torch.autograd.grad(sum(found).sum(), (x, table)), wanted, strict=True):
        assert_close("kernel", ours, theirs)


@pytest.mark.parametrize("changes", [{}, {"ffn.chunk": 7}])
def test_training_compiles_as_one_graph_with_the_same_gradients(changes):
    model = build({"depth": 2, **changes})
    wanted = gradients(model)
    torch.compiler.reset()
    fast = torch.compile(model, fullgraph=True, backend="eager")
    ids = torch.randint(0, 31, (2, 13), generator=torch.Generator().manual_seed(0))
    fast(ids, labels=ids.flip(1)).loss.backward()
    for name, parameter in model.named_parameters():
        assert_close("kernel", parameter.grad, wanted[name])
