"""Reading: every module in eval mode for as long as anybody reads, and then in its own mode again."""

import threading

import pytest
import torch

import anyformer as af
from anyformer.model.eval_mode import eval_mode, without_head
from tests.contract.draw import BASE


def model_of(changes=None):
    return af.build(af.spec(BASE, changes or {"block.dropout": 0.5}), dtype=torch.float64)


def modes(model):
    return [module.training for module in model.modules()]


@pytest.mark.parametrize("first", [0, 1])
def test_reading_twice_at_once_lasts_until_the_last_reader_is_done(first):
    model = model_of().train()
    model.decoder.blocks[1].eval()
    before = modes(model)
    shell = without_head(model)
    readers = [eval_mode(model), eval_mode(shell)]
    for reader in readers:
        reader.__enter__()
    readers[first].__exit__(None, None, None)
    # The outermost shell is a module of its own, and reads no head.
    assert not any(modes(shell)[1:])
    readers[1 - first].__exit__(None, None, None)
    assert modes(model) == before


def test_reading_a_model_that_somebody_set_to_training_meanwhile_is_in_eval_mode():
    model = model_of().train()
    with eval_mode(model):
        model.train()
        with eval_mode(model):
            assert not any(modes(model))
    assert all(modes(model))


def test_streams_beside_each_other_in_training_mode_drop_nothing_and_draw_nothing():
    model = model_of().train()
    prompts = [torch.tensor([[5, 17, 3]]), torch.tensor([[8, 8, 9]])]
    alone = [af.generate(model, prompt, max_new_tokens=12)[0, 3:].tolist() for prompt in prompts]
    state = torch.get_rng_state()
    streams = [af.generate(model, prompt, max_new_tokens=12, stream=True) for prompt in prompts]
    said = [[int(next(stream))] for stream in streams]
    streams[0].close()
    said[1] += [int(token) for token in streams[1]]
    assert said[1] == alone[1]
    assert torch.equal(torch.get_rng_state(), state)
    assert all(modes(model))


def test_threads_that_generate_in_training_mode_say_what_each_says_alone():
    model = model_of().train()
    prompts = [torch.tensor([[5, 17, 3]]), torch.tensor([[8, 8, 9]])]
    alone = [af.generate(model, prompt, max_new_tokens=12) for prompt in prompts]
    found: dict[tuple[int, int], torch.Tensor] = {}

    def work(i):
        for turn in range(4):
            found[i, turn] = af.generate(model, prompts[i], max_new_tokens=12)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert all(torch.equal(ids, alone[i]) for (i, _), ids in found.items())
    assert all(modes(model))
