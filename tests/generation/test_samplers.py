"""Each sampler against transformers' own of the same name, in fp64, and against what it promises."""

from typing import Any

import pytest
import torch
from torch import Tensor

from anyformer.generation.samplers.batched import keys, sample, sampling_kind, uniform
from anyformer.generation.samplers.logits_processors import (
    BadWords,
    Choices,
    First,
    FrequencyPenalty,
    LogitBias,
    MinNewTokens,
    MinP,
    NoRepeatNgram,
    PresencePenalty,
    RepetitionPenalty,
    Temperature,
    TokenHistory,
    TopK,
    TopP,
    Typical,
    process,
    process_rows,
)
from tests.generation.choosing import NO_HISTORY, choose
from tests.tolerances import assert_close

CPU = torch.device("cpu")
ROWS, VOCAB, LENGTH = 6, 23, 17
NEVER = float("-inf")


def logits(seed: int = 0, rows: int = ROWS, vocab: int = VOCAB) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, vocab, generator=generator, dtype=torch.float64) * 3


def tokens(seed: int = 0, top: int = 5) -> Tensor:
    return torch.randint(0, top, (ROWS, LENGTH), generator=torch.Generator().manual_seed(seed))


def past(ids: Tensor, prompt: int = 6) -> TokenHistory:
    """Rows without padding, with room behind."""
    rows, length = ids.shape
    room = torch.cat((ids, torch.full((rows, 4), -1)), 1)
    return TokenHistory(room, torch.full((rows,), prompt), torch.full((rows,), length - prompt))


def theirs() -> Any:
    return pytest.importorskip("transformers.generation.logits_process")


def same(found: Tensor, want: Tensor) -> None:
    """Equal where a token is left, which is where the other one leaves it; a shift of a row does not count."""
    assert torch.equal(found == NEVER, want == NEVER)
    assert_close("promise", found.softmax(-1), want.softmax(-1))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("ours", "name", "given"),
    [
        (Temperature(0.7), "TemperatureLogitsWarper", (0.7,)),
        (TopK(4), "TopKLogitsWarper", (4,)),
        (TopP(0.8), "TopPLogitsWarper", (0.8,)),
        (TopP(0.1), "TopPLogitsWarper", (0.1,)),
        (MinP(0.05), "MinPLogitsWarper", (0.05,)),
        (MinP(1.0), "MinPLogitsWarper", (1.0,)),
        (Typical(0.6), "TypicalLogitsWarper", (0.6,)),
        (Typical(0.05), "TypicalLogitsWarper", (0.05,)),
        (RepetitionPenalty(1.3), "RepetitionPenaltyLogitsProcessor", (1.3,)),
        (RepetitionPenalty(0.6), "RepetitionPenaltyLogitsProcessor", (0.6,)),
        (NoRepeatNgram(1), "NoRepeatNGramLogitsProcessor", (1,)),
        (NoRepeatNgram(2), "NoRepeatNGramLogitsProcessor", (2,)),
        (NoRepeatNgram(3), "NoRepeatNGramLogitsProcessor", (3,)),
        (NoRepeatNgram(LENGTH + 9), "NoRepeatNGramLogitsProcessor", (LENGTH + 9,)),
        (BadWords(((20,), (3, 4), (1, 2, 9), (0, 7))), "NoBadWordsLogitsProcessor", ([[20], [3, 4], [1, 2, 9], [0, 7]],)),
        (LogitBias(((2, 4.0), (11, -2.5))), "SequenceBiasLogitsProcessor", ([[[2], 4.0], [[11], -2.5]],)),
    ],
    ids=lambda value: repr(value) if "(" in repr(value)[:20] else "",
)  # fmt: skip
def test_sampler_is_that_of_transformers(ours, name, given, seed):
    scores, ids = logits(seed), tokens(seed)
    before = scores.clone()
    same(ours.apply(scores, past(ids)), getattr(theirs(), name)(*given)(ids, scores.clone()))
    assert torch.equal(scores, before)


def test_min_new_tokens_is_that_of_transformers():
    scores, ids = logits(), tokens()
    for least in (10, 11, 12):
        want = theirs().MinNewTokensLengthLogitsProcessor(6, least, [3, 5], device="cpu")(ids, scores.clone())
        same(MinNewTokens(least, (3, 5)).apply(scores, past(ids)), want)


@pytest.mark.parametrize("ours", [TopK(4), TopP(0.8), MinP(0.05), Typical(0.6)])
def test_filter_after_another_reads_what_is_left(ours):
    scores = BadWords(((0,), (5,), (9,))).apply(logits(), past(tokens()))
    found = ours.apply(scores, NO_HISTORY)
    few = scores[:, [i for i in range(VOCAB) if i not in (0, 5, 9)]]
    assert_close("promise", found[found != NEVER], ours.apply(few, NO_HISTORY)[ours.apply(few, NO_HISTORY) != NEVER])
    assert bool((found.amax(-1) > NEVER).all())


@pytest.mark.parametrize(
    ("ours", "twice"), [(PresencePenalty(0.5), 0.5), (FrequencyPenalty(0.5), 1.0)], ids=["presence", "frequency"]
)
def test_openai_penalties_count_new_tokens_only(ours, twice):
    ids = torch.tensor([[1, 1, 2, 3, 4, 4, -1, -1]])
    found = ours.apply(torch.zeros(1, 6), TokenHistory(ids, torch.tensor([3]), torch.tensor([3])))
    # 1 and 2 are prompt, 3 came once and 4 twice.
    assert found.tolist() == [[0.0, 0.0, 0.0, -0.5, -twice, 0.0]]


@pytest.mark.parametrize(
    "sampler",
    [RepetitionPenalty(1.5), FrequencyPenalty(0.3), NoRepeatNgram(2), BadWords(((3, 4), (0, 7))), MinNewTokens(5, (2,)),
     Choices(((1, 2), (1, 3)), (0,))],
    ids=lambda s: type(s).__name__,
)  # fmt: skip
def test_sampler_looks_at_the_real_tokens_of_each_row_only(sampler):
    rows = [tokens(9)[0, :9], tokens(9)[1, :4], tokens(9)[2, :1]]
    width = max(len(row) for row in rows) + 3
    ids = torch.stack([torch.cat((row, torch.full((width - len(row),), -1))) for row in rows])
    counts = torch.tensor([len(row) for row in rows])
    together = TokenHistory(ids, (counts + 1) // 2, counts - (counts + 1) // 2)
    scores = logits(rows=3)
    found = sampler.apply(scores, together)
    for i, row in enumerate(rows):
        alone = TokenHistory(row[None], together.prompt_B[i : i + 1], together.new_B[i : i + 1])
        assert torch.equal(found[i : i + 1], sampler.apply(scores[i : i + 1], alone))


def test_processors_of_each_row_are_those_of_the_row_alone():
    scores, so_far = logits(), past(tokens())
    chains = [(TopK(3),), (), (RepetitionPenalty(2.0), TopP(0.5)), (TopK(3),), (First((1,)),), (RepetitionPenalty(2.0), TopP(0.5))]  # fmt: skip
    found = process_rows(scores, chains, so_far)
    for i, chain in enumerate(chains):
        row = torch.tensor([i])
        assert torch.equal(found[i : i + 1], process(scores[row], chain, so_far.rows(row)))
    assert torch.equal(process_rows(scores, [chains[2]] * ROWS, so_far), process(scores, chains[2], so_far))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_vector_form_is_the_chain_of_each_row(dtype):
    rows, vocab = 64, 500
    generator = torch.Generator().manual_seed(1)
    # Rounded, so that many logits are equal.
    scores = (torch.randn(rows, vocab, generator=generator) * 2).round(decimals=1).to(dtype)
    heat = torch.tensor([0.0, 0.5, 1.0, 1.7]).repeat(16)
    top_k = torch.tensor([0, 1, 7, 499, 500, 9999]).repeat(11)[:rows]
    top_p = torch.tensor([1.0, 0.01, 0.5, 0.9, 0.999], dtype=torch.float64).repeat(13)[:rows]
    min_p = torch.tensor([0.0, 0.0, 0.02, 0.5, 1.0, 0.1, 0.0], dtype=torch.float64).repeat(10)[:rows]
    seed, step = keys(3, rows, device=CPU), torch.arange(rows)
    settings = list(zip(heat.tolist(), top_k.tolist(), top_p.tolist(), min_p.tolist(), strict=True))
    assert sampling_kind(settings) == "filtered"
    found = sample(scores, heat, top_k, top_p, min_p, seed, step, kind="filtered")
    points = uniform(seed, step)
    for i, (t, k, p, m) in enumerate(settings):
        chain = (Temperature(t or 1.0), *([TopK(k)] if k else []), TopP(p), MinP(m))
        want = choose(scores[i : i + 1], chain, points_B=points[i : i + 1] if t else None)
        assert int(found[i]) == int(want), i
    off = (torch.zeros_like(top_k), torch.ones_like(top_p), torch.zeros_like(min_p), seed, step)
    assert torch.equal(sample(scores, heat, *off, kind="plain"), sample(scores, heat, *off, kind="filtered"))
    assert torch.equal(sample(scores, heat * 0, *off, kind="greedy"), sample(scores, heat * 0, *off, kind="filtered"))


def test_vector_form_of_a_row_without_numbers_does_not_harm_the_others():
    scores = logits(rows=3)
    one = torch.ones(3, dtype=torch.float64)
    given = (
        one,
        torch.tensor([0, 5, 3]),
        one * 0.7,
        one * 0.1,
        keys(1, 3, device=CPU),
        torch.zeros(3, dtype=torch.long),
    )
    want = sample(scores, *given)
    scores[1] = float("nan")
    found = sample(scores, *given)
    assert found[[0, 2]].tolist() == want[[0, 2]].tolist()
    assert 0 <= int(found[1]) < VOCAB


def test_sampling_kind_is_the_least_that_serves_all_rows():
    assert sampling_kind([(0.0, 5, 0.5, 0.1), (0.0, 0, 1.0, 0.0)]) == "greedy"
    assert sampling_kind([(0.0, 5, 0.5, 0.1), (0.7, 0, 1.0, 0.0)]) == "plain"
    for one in ((0.7, 5, 1.0, 0.0), (0.7, 0, 0.9, 0.0), (0.7, 0, 1.0, 0.1)):
        assert sampling_kind([(0.0, 0, 1.0, 0.0), one]) == "filtered"


def test_choices_leave_what_goes_on_with_an_answer():
    sampler = Choices(((1, 2), (1, 3, 4), (5,), (1, 3)), stop=(9, 8))

    def left(*new: int) -> list[int]:
        ids = torch.tensor([[7, *new, -1]])
        so_far = TokenHistory(ids, torch.tensor([1]), torch.tensor([len(new)]))
        found = sampler.apply(torch.zeros(1, 10), so_far)
        assert sampler.complete(new) == (new in ((1, 2), (5,), (1, 3, 4)))
        return (found[0] == 0).nonzero()[:, 0].tolist()

    assert left() == [1, 5]
    assert left(1) == [2, 3]
    # Either the shorter answer ends here, or the longer one goes on.
    assert left(1, 3) == [4, 8, 9]
    # Complete rows and rows that went astray are not asked any more.
    assert left(1, 2) == left(5) == left(1, 3, 4) == left(1, 3, 9) == left(5, 5, 5, 5) == list(range(10))
    assert sampler.steps == 3
    assert Choices(((1, 2), (1,)), stop=(9,)).steps == 2
    assert Choices(((1,), (1, 2, 3), (1, 2)), stop=(9,)).steps == 3
    assert [sampler.which(new) for new in ((1, 2), (1, 3, 9), (1, 3, 4), (1,), (5,), ())] == [0, 3, 1, None, 2, None]
