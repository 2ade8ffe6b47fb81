"""Choosing a token against closed forms: filters, the likeliest, draws, and logits from which nothing can be chosen."""

import math

import pytest
import torch
from torch import Tensor

from anyformer.generation.samplers import logits_processors
from anyformer.generation.samplers.batched import keys, uniform
from anyformer.generation.samplers.logits_processors import Temperature, TokenHistory, TopK, TopP
from tests.generation.choosing import NO_HISTORY, choose, sampled
from tests.tolerances import assert_close

CPU = torch.device("cpu")


def drawn(logits: Tensor, *chain, seed: int = 0) -> Tensor:
    points = uniform(keys(seed, len(logits), device=CPU), torch.tensor(0))
    return choose(logits, chain, points_B=points)


def kept(step, logits) -> list[list[int]]:
    """Which tokens a step leaves in each row; what it leaves, it leaves as it was."""
    logits = torch.as_tensor(logits, dtype=torch.float32)
    found = step.apply(logits, NO_HISTORY)
    left = found != float("-inf")
    assert torch.equal(found[left], logits[left])
    return [row.nonzero()[:, 0].tolist() for row in left]


def logs(*probs: float) -> torch.Tensor:
    return torch.tensor([probs]).log()


def test_temperature_divides_logits():
    halved = Temperature(0.5).apply(torch.tensor([[1.0, -2.0]]), NO_HISTORY).softmax(-1)
    assert_close("same", halved, torch.tensor([[2.0, -4.0]]).softmax(-1))


@pytest.mark.parametrize(
    ("k", "logits", "left"),
    [
        (1, [[0.0, 3.0, 1.0]], [[1]]),
        (2, [[0.0, 3.0, 1.0], [5.0, 4.0, 9.0]], [[1, 2], [0, 2]]),
        (2, [[1.0, 3.0, 1.0, 0.0]], [[0, 1, 2]]),
        (3, [[0.0, 3.0, 1.0]], [[0, 1, 2]]),
        (99, [[0.0, 3.0, 1.0]], [[0, 1, 2]]),
    ],
    ids=["one", "two rows", "tie with the last", "all", "more than there are"],
)
def test_top_k_keeps_the_likeliest_and_their_ties(k, logits, left):
    assert kept(TopK(k), logits) == left


@pytest.mark.parametrize(
    ("p", "left"),
    [(1e-6, [3]), (0.39, [3]), (0.41, [1, 3]), (0.69, [1, 3]), (0.71, [1, 2, 3]), (0.91, [0, 1, 2, 3])],
)
def test_top_p_keeps_the_smallest_set_that_reaches_p(p, left):
    assert kept(TopP(p), logs(0.1, 0.3, 0.2, 0.4)) == [left]


@pytest.mark.parametrize(("p", "left"), [(0.25, 1), (0.26, 2), (0.5, 2), (0.51, 3), (0.75, 3), (0.76, 4)])
def test_top_p_among_equals_keeps_the_lowest_ids_and_stops_exactly_at_p(p, left):
    assert kept(TopP(p), torch.zeros(1, 4)) == [list(range(left))]


def test_top_p_of_one_keeps_even_what_rounding_would_lose():
    logits = torch.tensor([[0.0, -80.0, -100.0]])
    assert kept(TopP(1.0), logits) == [[0, 1, 2]]
    # The rest adds up to less than the last bit of 1.
    assert kept(TopP(1 - 1e-9), logits) == [[0]]


def test_top_p_looks_at_each_row_by_itself():
    assert kept(TopP(0.75), torch.cat((logs(0.7, 0.2, 0.1), logs(0.1, 0.1, 0.8)))) == [[0, 1], [2]]


def test_top_p_after_top_k_reads_what_is_left():
    logits = logs(0.4, 0.3, 0.2, 0.1)
    two = TopK(2).apply(logits, NO_HISTORY)
    # Of two tokens with 4/7 and 3/7 the first is enough for a half.
    assert kept(TopP(0.5), two) == [[0]]
    assert kept(TopP(0.6), two) == [[0, 1]]


@pytest.mark.parametrize("spread", [0.01, 6.0], ids=["flat: all are sorted", "steep: a few are enough"])
def test_top_p_of_a_large_vocabulary_is_that_of_a_full_sort(spread, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    logits = (torch.randn(3, logits_processors.MANY + 1, generator=generator) * spread).round(decimals=2)
    found = kept(TopP(0.9), logits)
    monkeypatch.setattr(logits_processors, "MANY", logits_processors.MANY + 1)
    assert kept(TopP(0.9), logits) == found
    for row, ids in zip(logits.double().softmax(-1), found, strict=True):
        assert row[ids].sum() >= 0.9
        assert row[ids].sum() - row[ids].min() < 0.9
        assert row[ids].min() >= row[[i for i in range(len(row)) if i not in set(ids)]].max()


def test_greedy_takes_the_largest_and_of_equals_the_first():
    assert choose(torch.tensor([[0.0, 2.0, 2.0], [5.0, -1.0, 4.0]])).tolist() == [1, 0]


def test_draw_has_the_frequencies_of_the_chain():
    probs = torch.tensor([0.5, 0.25, 0.15, 0.1])
    draws = 40_000
    counts = torch.bincount(drawn(probs.log().expand(draws, 4), Temperature(0.5), TopK(3)), minlength=4)
    want = probs[:3] ** 2 / (probs[:3] ** 2).sum()
    assert counts[3] == 0
    for count, p in zip(counts[:3].tolist(), want.tolist(), strict=True):
        # Five standard deviations: one run in a million would fail, and the seed is fixed.
        assert abs(count - draws * p) < 5 * math.sqrt(draws * p * (1 - p))


def test_draw_never_takes_a_token_that_was_ruled_out():
    logits = torch.full((5000, 64), float("-inf"))
    logits[:, 17] = 0.0
    logits[:, 40] = -1.0
    assert set(drawn(logits, seed=1).tolist()) == {17, 40}


@pytest.mark.parametrize(
    "options", [{}, {"temperature": 1.0}, {"temperature": 0.7, "top_p": 0.9}, {"presence_penalty": 1.0}]
)
@pytest.mark.parametrize(
    ("row", "words"),
    [
        ([0.0, float("nan"), 1.0], "1 of 3 logits are NaN, so no token can be chosen; are the weights damaged"),
        ([0.0, float("inf"), 1.0], "the largest logit is inf, so no token can be chosen; are the weights damaged"),
        ([float("-inf")] * 3, "the largest logit is -inf, so no token can be chosen; are the weights damaged"),
    ],
)
def test_sampler_gives_a_row_from_which_nothing_can_be_chosen_an_error_and_no_other(options, row, words):
    first, second = sampled(torch.tensor([[0.0, 1.0, 9.0], row]), **options)
    assert first.error is None
    assert words in str(second.error)


def test_sampler_says_that_samplers_left_nothing():
    rows = sampled(torch.zeros(2, 2), bad_words=[[0], [1]])
    assert all("the samplers rule out every token" in str(row.error) for row in rows)


@pytest.mark.parametrize("options", [{}, {"top_k": 3, "top_p": 0.9}, {"min_p": 0.1}, {"typical_p": 0.8}])
def test_sampler_takes_what_the_plain_way_takes(options):
    logits = torch.randn(64, 29, generator=torch.Generator().manual_seed(0)) * 2
    chain = {"top_k": TopK, "top_p": TopP, "min_p": logits_processors.MinP, "typical_p": logits_processors.Typical}
    want = drawn(logits, Temperature(0.8), *(chain[name](value) for name, value in options.items()), seed=3)
    assert [row.id for row in sampled(logits, temperature=0.8, seed=3, **options)] == want.tolist()


def test_sampler_reads_half_precision_as_fp32():
    rows = torch.tensor([[0.0, 1.0, 3.0]]).expand(100, 3)
    given = {"temperature": 0.7, "top_p": 0.9}
    assert [row.id for row in sampled(rows.half(), **given)] == [row.id for row in sampled(rows, **given)]


@pytest.mark.parametrize("value", [1e-45, 1e-39, 1e-8])
@pytest.mark.parametrize("p", [None, 0.9])
def test_temperature_next_to_zero_takes_the_likeliest(value, p):
    logits = torch.tensor([[3.0, -2.0, 9.0, 8.9], [-50.0, -40.0, -60.0, -45.0]])
    chain = (Temperature(value), *([] if p is None else [TopP(p)]))
    assert drawn(logits, *chain).tolist() == [2, 1]


def test_token_history_shows_new_tokens_and_the_last_ones():
    history = TokenHistory(torch.tensor([[1, 2, 7, -1], [3, 4, 5, 8]]), torch.tensor([2, 3]), torch.tensor([1, 1]))
    assert history.fresh_BL().tolist() == [[-1, -1, 7, -1], [-1, -1, -1, 8]]
    assert history.tail_BN(4).tolist() == [[-1, 1, 2, 7], [3, 4, 5, 8]]
