"""Decisions and random numbers that are the same when a piece of work is done once more."""

import contextlib
import threading

import pytest
import torch
from torch.nn import functional as F

from anyformer.parts.replay import ReplayLog, RngState

CPU = torch.device("cpu")


def test_decisions_replayed_are_those_made_in_their_order_each_time():
    made, count = ReplayLog(), iter(range(9))
    assert [made.decide(lambda: next(count)) for _ in range(3)] == [0, 1, 2]
    for _ in range(2):
        again = made.replay()
        assert [again.decide(lambda: next(count)) for _ in range(3)] == [0, 1, 2]
    assert next(count) == 3


def test_decisions_beyond_those_made_are_refused():
    made = ReplayLog()
    made.decide(lambda: 5)
    again = made.replay()
    again.decide(lambda: 6)
    with pytest.raises(RuntimeError, match="more than the 1 decisions"):
        again.decide(lambda: 6)


def test_draws_are_the_same_each_time_and_leave_the_generator_where_it_was():
    draws = RngState(CPU)
    with draws.same():
        first = torch.rand(5)
    later = torch.rand(5)
    state = torch.get_rng_state()
    for _ in range(2):
        with draws.same():
            assert torch.equal(torch.rand(5), first)
        assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(first, later)


def test_draws_of_work_that_failed_leave_the_generator_where_it_was():
    draws = RngState(CPU)
    with draws.same():
        torch.rand(5)
    state = torch.get_rng_state()
    with contextlib.suppress(KeyError), draws.same():
        torch.rand(3)
        raise KeyError
    assert torch.equal(torch.get_rng_state(), state)


def test_draws_that_others_drew_between_are_refused():
    draws = RngState(CPU)
    with draws.same():
        torch.rand(5)
        other = threading.Thread(target=torch.rand, args=(1,))
        other.start()
        other.join()
    with pytest.raises(RuntimeError, match="in one thread"), draws.same():
        torch.rand(5)


def test_draws_of_two_threads_take_turns():
    wrong: list[str] = []

    def work() -> None:
        x = torch.ones(3000)
        for _ in range(50):
            draws = RngState(CPU)
            with draws.same():
                first = [F.dropout(x), F.dropout(x)]
            with draws.same():
                again = [F.dropout(x), F.dropout(x)]
            if not all(map(torch.equal, first, again)):
                wrong.append("another mask")

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
