"""The runner that is kept for a model: found again, and gone with it."""

import gc
import weakref

import torch
from anyformer.generation.readers.paged import Paged
from anyformer.generation.running import runner
from anyformer.generation.running.capture import Captured
from anyformer.generation.running.standby import dismiss, give_back, runner_for

import anyformer as af
from anyformer.parts.paged_cache import PagedKVCache
from tests.contract.draw import BASE


def small() -> af.Model:
    return af.build(af.spec(BASE), dtype=torch.float64).eval()


def test_runner_of_a_model_is_kept_until_weights_move_or_it_is_dismissed():
    model = small()
    first = runner_for(model, 2, 10)
    assert runner_for(model, 1, 12) is first
    assert runner_for(model, 3, 10) is not first
    now = runner_for(model, 3, 10)
    model.to(torch.float32)
    assert runner_for(model, 3, 10) is not now
    dismiss(model)
    assert runner_for(model, 2, 10).pool.seats == 2


def test_runner_that_somebody_has_is_not_given_to_another_before_it_is_given_back():
    model, first, second = small(), Paged.__new__(Paged), Paged.__new__(Paged)
    one = runner_for(model, 1, 10, first)
    two = runner_for(model, 1, 10, second)
    assert one is not two
    give_back(two)
    assert runner_for(model, 1, 10, first) is two
    # Whoever is gone has nothing.
    del first
    gc.collect()
    assert runner_for(model, 1, 10, second) is two


def test_runner_of_a_model_does_not_keep_it_alive():
    model = small()
    runner_for(model, 2, 10)
    seen = weakref.ref(model)
    del model
    gc.collect()
    assert seen() is None


def test_captured_step_seats_a_tenant_that_has_read_as_much_as_the_last_one():
    pool = small().new_pool(1, 16, block_size=4, num_blocks=8)
    step = Captured.__new__(Captured)
    step.cache, step.loaded, step.draw = PagedKVCache.for_steps(pool, 1), (), None
    for count in range(4, 12):
        # It may well be at the address of the one before.
        tenant = pool.seated(12)
        tenant.count = count
        step.load([tenant], None, None)
        assert step.cache.shelves[0].table_BN[0, :3].tolist() == tenant.pages[0]
        # What is known stays, so the next one gets other pages.
        pool.note(tenant, list(range(count)))
        pool.free(tenant)
        del tenant


def test_captured_steps_of_an_encoder_decoder_have_its_sources_and_no_row_more(monkeypatch):
    made = []
    monkeypatch.setattr(runner, "Captured", lambda *given: made.append(given) or len(made))
    monkeypatch.setattr(runner, "Recorder", lambda device: None)
    for topology, rows in (("encoder-decoder", [3, 2]), ("decoder", [4, 2])):
        model = af.build(af.spec(BASE, {"topology": topology, "ids.start": 0}))
        own = runner.Runner(model, model.new_pool(3, 16), captures=True)
        tenants = [own.pool.seated(1) for _ in range(3)]
        assert own._for(tenants, "greedy") == own._for(tenants, "greedy")
        own._for(tenants[:2], "greedy")
        assert [given[3] for given in made] == rows
        # Those of sources that nobody asks for any more are not kept.
        assert len(own._captured) == (1 if topology == "encoder-decoder" else 2)
        made.clear()
