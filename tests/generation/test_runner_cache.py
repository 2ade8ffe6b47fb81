"""The runner that is kept for a model: found again, and gone with it."""

import gc
import weakref

import torch

import anyformer as af
from anyformer.generation.engine import model_runner
from anyformer.generation.engine.model_runner import DecodeGraph, dismiss, give_back, runner_for
from anyformer.generation.generate import Batch
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
    assert runner_for(model, 2, 10).pool.max_num_seqs == 2


def test_runner_that_somebody_has_is_not_given_to_another_before_it_is_given_back():
    model, first, second = small(), Batch.__new__(Batch), Batch.__new__(Batch)
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


def test_decode_graph_loads_a_sequence_that_has_read_as_much_as_the_last_one():
    pool = small().new_pool(1, 16, block_size=4, num_blocks=8)
    graph = DecodeGraph.__new__(DecodeGraph)
    graph.cache, graph.loaded = PagedKVCache.for_decode(pool, 1), ()
    for count in range(4, 12):
        # It may well be at the address of the one before.
        sequence = pool.add()
        pool.grow(sequence, 12)
        sequence.num_computed_tokens = count
        graph.load([sequence], None)
        assert graph.cache.blocks[0].table_BN[0, :3].tolist() == sequence.blocks[0]
        # What is known stays, so the next one gets other blocks.
        pool.register_prefix(sequence, list(range(count)))
        pool.free(sequence)
        del sequence


def test_decode_graphs_are_captured_once_for_a_bucket_of_rows_and_of_source_lengths(monkeypatch):
    made = []
    monkeypatch.setattr(model_runner, "DecodeGraph", lambda *given: made.append(given) or len(made))
    monkeypatch.setattr(model_runner, "Recorder", lambda device: None)
    model = af.build(af.spec(BASE))
    own = model_runner.ModelRunner(model, model.new_pool(40, 16), cuda_graphs=True)
    sequences = [own.pool.add() for _ in range(40)]
    for rows in (3, 4, 2, 40, 33, 32, 9):
        own._graph(sequences[:rows], "greedy")
    assert [given[2].batch for given in made] == [4, 2, 64, 16]
    made.clear()
    seq2seq = af.build(af.spec(BASE, {"topology": "encoder-decoder", "ids.start": 0}), dtype=torch.float64).eval()
    own = model_runner.ModelRunner(seq2seq, seq2seq.new_pool(3, 16), cuda_graphs=True)
    sequences = [own.pool.add() for _ in range(3)]
    for sequence, length in zip(sequences, (5, 60, 70), strict=True):
        own.pool.grow(sequence, 1)
        own.forward([sequence], [[0]], sources=[torch.ones(length, dtype=torch.long)])
    for some in (sequences[:2], sequences[1:2], sequences, sequences[:2]):
        own._graph(some, "greedy")
    assert [(given[2].batch, given[2].source_pos_BS.shape[1]) for given in made] == [(2, 64), (1, 64), (4, 128)]
