"""The model runner: blocks give the logits of contiguous rows, and captured steps those of launched ones."""

import warnings

import pytest

import anyformer as af
from anyformer.generation.engine import model_runner
from anyformer.generation.engine.core import EngineCore
from anyformer.generation.engine.engine import make_requests
from anyformer.generation.engine.model_runner import ModelRunner
from anyformer.generation.engine.scheduler import Limits
from anyformer.generation.params.generation_request import check_request
from anyformer.generation.params.sampling_params import read_params
from anyformer.kernels.cuda_graph import Recorder
from anyformer.model.eval_mode import eval_mode
from anyformer.parts.static_cache import StaticPool
from tests.contract.contracts import model_of
from tests.contract.draw import draw
from tests.generation.talking import talking
from tests.generation.test_random_specs import padded, prompts
from tests.kernels.recording import FAULTS, FakeDevice, untouched
from tests.tolerances import assert_close

NEW, LENGTH = 6, 40


def asked(model, rows, **options):
    ids, mask = padded(rows, left=True)
    params = read_params({"max_new_tokens": NEW, "stop": ()} | options)
    return check_request(model, ids, params, attention_mask=mask, rope_length=25 if model.reads_length else None)


def prefilled(model, pool, wish):
    """A runner whose sequences have read their prompts, and the logits after them."""
    runner = ModelRunner(model, pool, cuda_graphs=False)
    rows = make_requests(model, wish)
    cached = [pool.add(rope_length=each.rope_length, source_rope_length=each.source_rope_length) for each in rows]
    ids = [each.sequences[0].tokens for each in rows]
    for each, new in zip(cached, ids, strict=True):
        assert pool.reserve(each, len(new))
    sources = [each.source_S for each in rows] if runner.seq2seq else None
    return runner, cached, runner.last_logits(runner.forward(cached, ids, sources=sources), [*map(len, ids)])


@pytest.mark.parametrize("seed", talking(range(60)))
def test_runner_of_a_random_spec_gives_the_logits_of_contiguous_rows(seed):
    spec = draw(seed)
    model = model_of(spec)
    wish = asked(model, prompts(spec, seed))
    declared = 25 if model.reads_length else None
    pools = StaticPool(model.new_cache(3, LENGTH, rope_length=declared)), model.new_pool(4, LENGTH, block_size=4)
    with eval_mode(model):
        ways = [prefilled(model, pool, wish) for pool in pools]
        for step in range(NEW - 1):
            assert_close("promise", ways[1][2], ways[0][2])
            ids = ways[0][2].argmax(-1).tolist()
            for i, (runner, cached, logits) in enumerate(ways):
                pool = runner.pool
                if step == 2:
                    # One row twice, one not at all.
                    pool.free(cached[1])
                    cached = [cached[2], cached[0], pool.fork(cached[0])]
                    logits, order = logits[[2, 0, 0]], [2, 0, 0]
                    given = [ids[row] for row in order]
                else:
                    given = ids
                for each in cached:
                    assert pool.reserve(each, 1)
                ways[i] = runner, cached, runner.decode(cached, given)
        for each in ways[1][1]:
            pools[1].free(each)
    pools[1].check()


class Eager:
    """Instead of a recorder: a graph that runs the work itself."""

    def __init__(self, device):
        self.replay = None

    def warm(self, work):
        work()

    def record(self, work):
        made = Eager(None)
        made.replay = work
        return made


def served(model, wish, *, cuda_graphs):
    """The new tokens of each row, of an engine with a pool of blocks."""
    pool = model.new_pool(8, LENGTH, block_size=4)
    engine = EngineCore(ModelRunner(model, pool, cuda_graphs=cuda_graphs), Limits())
    rows = make_requests(model, wish)
    for each in rows:
        engine.add(each)
    while not engine.idle:
        for event in engine.step():
            assert event.error is None
    engine.check()
    assert not pool.sequences
    return [sequence.new for each in rows for sequence in each.sequences], engine


@pytest.mark.parametrize("seed", talking(range(40)))
@pytest.mark.parametrize(
    "options", [{}, {"temperature": 0.9, "top_k": 5, "top_p": 0.9, "min_p": 0.05, "n": 2, "seed": 3}]
)
def test_engine_with_captured_steps_runs_ahead_and_takes_the_same_tokens(seed, options, monkeypatch):
    monkeypatch.setattr(model_runner, "Recorder", Eager)
    spec = draw(seed)
    model = model_of(spec)
    rows = prompts(spec, seed)
    want, _ = served(model, asked(model, rows, **options), cuda_graphs=False)
    found, engine = served(model, asked(model, rows, **options), cuda_graphs=True)
    assert found == want
    assert engine.runner.cuda_graphs
    assert engine.runner._graphs


def test_engine_that_runs_ahead_ends_rows_at_their_stop_tokens_and_admits_others(monkeypatch):
    monkeypatch.setattr(model_runner, "Recorder", Eager)
    model = model_of(draw(talking(range(12), "decoder")[0]))
    rows = prompts(model.spec, 0)
    ids, mask = padded(rows, left=True)
    free = af.generate(model, ids, attention_mask=mask, max_new_tokens=12, stop=())[:, ids.shape[1] :]
    stop = int(free[0, 4])
    wish = asked(model, rows, max_new_tokens=12, stop=(stop,))
    found = served(model, wish, cuda_graphs=True)[0]
    assert found == served(model, wish, cuda_graphs=False)[0]
    assert found[0][-1] == stop
    assert len(found[0]) <= 5


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault != "interrupt"])
def test_decode_steps_that_can_not_be_recorded_are_launched_and_one_line_says_so(fault, monkeypatch):
    device = FakeDevice(fault)

    class Failing(Recorder):
        def __init__(self, _):
            super().__init__(device)

        def record(self, work):
            return super().record(device.failing(work))

    monkeypatch.setattr(model_runner, "Recorder", Failing)
    spec = draw(talking(range(12))[0])
    model = model_of(spec)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        want, _ = served(model, asked(model, prompts(spec, 0)), cuda_graphs=False)
        found, engine = served(model, asked(model, prompts(spec, 0)), cuda_graphs=True)
    assert found == want
    lines = [str(each.message) for each in caught]
    assert len(lines) == 1
    assert lines[0].startswith("generate: a step of this model can't be recorded as a CUDA graph (CUDA error: ")
    assert "launched one by one" in lines[0]
    assert untouched(device)
    assert device.held == 0
    assert not engine.runner.cuda_graphs
