"""Rows in pages are read as rows in a cache are: the same logits, one after the other, forked and flowing."""

import warnings

import pytest
import torch

from anyformer.generation.asking.options import read_options
from anyformer.generation.asking.request import request
from anyformer.generation.readers.paged import Paged
from anyformer.generation.readers.static import Cached
from anyformer.generation.running import runner as running
from anyformer.generation.running.capture import Draw
from anyformer.generation.samplers.draw import keys
from anyformer.kernels.cuda_graph import Recorder
from anyformer.model.eval_mode import eval_mode
from tests.contract.contracts import model_of
from tests.contract.draw import draw
from tests.generation.talking import talking
from tests.generation.test_random_specs import padded, prompts
from tests.kernels.recording import FAULTS, FakeDevice, untouched
from tests.tolerances import assert_close

NEW = 6


def asked(model, rows, **options):
    ids, mask = padded(rows, left=True)
    rope = 25 if model.reads_length else None
    return request(
        model, ids, read_options({"max_new_tokens": NEW, "stop": ()} | options), attention_mask=mask, global_mask=None,
        rope_length=rope, tokenizer=None, stream=False, details=True, cached=True, stacklevel=1,
    )  # fmt: skip


@pytest.mark.parametrize("seed", talking(range(60)))
def test_paged_reader_of_a_random_spec_gives_the_logits_of_a_cache(seed):
    spec = draw(seed)
    model = model_of(spec)
    wish = asked(model, prompts(spec, seed))
    with eval_mode(model):
        one, other = Cached(model, wish), Paged(model, wish)
        want, found = one.begin(), other.begin()
        assert_close("promise", found, want)
        for step in range(NEW - 1):
            if step == 2:
                # One row twice, one not at all.
                order = torch.tensor([2, 0, 0])
                one.reorder(order)
                other.reorder(order)
                want = want[order]
            ids = want.argmax(-1)
            want, found = one.go_on(ids), other.go_on(ids)
            assert_close("promise", found, want)
        other.close()
    assert not other.runner.pool.tenants
    other.runner.pool.check()


@pytest.mark.parametrize("seed", talking(range(12)))
def test_flow_chooses_what_single_steps_choose(seed):
    spec = draw(seed)
    model = model_of(spec)
    wish = asked(model, prompts(spec, seed))
    rows = ((0.0, 0, 1.0, 0.0), (0.9, 5, 0.9, 0.05), (1.3, 0, 1.0, 0.0))
    chance = Draw(rows, keys((3, 4, 5), 3, device=torch.device("cpu")), (1, 1, 1))
    found = []
    with eval_mode(model):
        for steps in (NEW - 1, 1):
            reader = Paged(model, wish)
            ids = reader.begin().argmax(-1)
            new = []
            while len(new) < NEW - 1:
                now = Draw(rows, chance.keys_B, tuple(len(new) + 1 for _ in rows))
                new += [
                    ids_B
                    for ids_B, whole_B in reader.flow(ids if not new else new[-1], steps, now)
                    if bool(whole_B.all())
                ]
            found.append(torch.stack(new, 1))
            reader.close()
    assert torch.equal(found[0], found[1])


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault != "interrupt"])
def test_decode_steps_that_can_not_be_recorded_are_launched_and_one_line_says_so(fault, monkeypatch):
    device = FakeDevice(fault)

    class Failing(Recorder):
        def __init__(self, _):
            super().__init__(device)

        def record(self, work):
            return super().record(device.failing(work))

    monkeypatch.setattr(running, "Recorder", Failing)
    spec = draw(talking(range(12))[0])
    model = model_of(spec)
    wish = asked(model, prompts(spec, 0))
    with eval_mode(model), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found: list[list[torch.Tensor]] = []
        for captures in (False, True):
            reader = Paged(model, wish)
            reader.runner.captures = captures
            steps = [reader.begin()]
            for _ in range(NEW - 1):
                steps.append(reader.go_on(steps[-1].argmax(-1)).clone())
            found.append(steps)
            reader.close()
    for want, got in zip(*found, strict=True):
        assert_close("same", got, want)
    lines = [str(each.message) for each in caught]
    assert len(lines) == 1
    assert lines[0].startswith("generate: a step of this model can't be recorded as a CUDA graph (CUDA error: ")
    assert "launched one by one" in lines[0]
    assert untouched(device)
    assert device.held == 0
    reader.runner.pool.check()
    assert not reader.runner.captures
