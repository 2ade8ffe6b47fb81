"""In fp32 a first mismatch counts unless it was a near-tie, and near-ties are rare."""

import pytest
import torch

import anyformer as af
from anyformer.families.family import Family
from anyformer.verify.generation import TIE, equality, is_tie
from tests.contract.contracts import randomise
from tests.data.test_tokenizer import STORIES, needs_stories
from tests.generation.test_equality import BUT_PADDED, KINDS


@pytest.mark.parametrize("kind", KINDS[2::9])
@pytest.mark.parametrize("heat", [0.0, 1.0])
def test_every_way_of_a_family_in_fp32_gives_the_tokens_that_it_gives_alone(kind, heat):
    family = Family.named(kind)
    assert family is not None
    model = randomise(af.build(family.spec_from(family.small)), 0)
    found = equality(model, prompts=2, new=8, modes=BUT_PADDED, temperatures=(heat,))
    assert found.dtype == "float32"
    assert found.passed, "\n".join(map(str, found.wrong))
    answers, ties = sum(row.cases for row in found.rows), sum(row.ties for row in found.rows)
    assert ties <= answers / 20, f"{ties} near-ties of {answers} answers"


@needs_stories
def test_every_way_of_a_trained_model_in_fp32_gives_the_tokens_that_it_gives_alone():
    found = equality(af.load(STORIES), prompts=2, length=30, new=16, modes=BUT_PADDED)
    assert found.passed, "\n".join(map(str, found.wrong))
    assert sum(row.tokens for row in found.rows) >= 16 * sum(row.cases for row in found.rows) * 0.95


def test_tie_of_the_likeliest_tokens_is_a_small_gap_for_the_range_of_all():
    close = torch.tensor([-10.0, 0.0, 10.0, 10.0 - 19 * TIE])
    apart = torch.tensor([-10.0, 0.0, 10.0, 10.0 - 21 * TIE])
    assert is_tie(close, 2, 3, temperature=0.0, point=None)
    assert not is_tie(apart, 2, 3, temperature=0.0, point=None)


@pytest.mark.parametrize(("want", "other"), [(1, 2), (2, 1)])
def test_tie_of_a_draw_is_a_number_near_the_other_token(want, other):
    logits = torch.tensor([0.25, 0.25, 0.25, 0.25]).log() * 1.7
    sign = -1 if want < other else 1
    for apart, tied in ((0.5 * TIE, True), (2 * TIE, False)):
        assert is_tie(logits, want, other, temperature=1.7, point=0.5 + sign * apart) is tied
    # Between the first token and the last there is half of all probability.
    assert not is_tie(logits, 0, 3, temperature=1.7, point=0.25 - TIE / 2)
