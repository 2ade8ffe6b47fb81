"""Every family and random specs generate the same tokens in every way, in fp64, and never look ahead."""

import functools

import pytest
import torch

import anyformer as af
from anyformer.families.family import Family, families
from anyformer.model.models import Model
from anyformer.verify.generation import Equality, equality
from anyformer.verify.ways import WAYS
from tests.contract.contracts import model_of, prefix_of
from tests.contract.draw import draw
from tests.generation.talking import talking, talks
from tests.tolerances import assert_close

KINDS = [family.kind for family in families() if talks(family.spec_from(family.tiny()))]
NEW = 12
# A stream is from a batch that is padded on the left.
BUT_LEFT = tuple(way for way in WAYS if way.name != "in a batch, padded left")
LATE = tuple(way for way in WAYS if way.name in ("prompt in pieces", "samples of one reading", "with look-up"))
"""Ways that no other test has over the random specs."""


@functools.lru_cache(maxsize=2)
def family_model(kind: str) -> Model:
    """The small config of a family, every parameter random."""
    family = Family.named(kind)
    assert family is not None
    return model_of(family.spec_from(family.tiny()))


def assert_equal(found: Equality) -> None:
    assert found.passed, "\n".join(map(str, found.wrong))
    for row in found.rows:
        assert row.absent is not None or (row.cases > 0 and row.tokens == row.cases * found.new)


@pytest.mark.parametrize("kind", KINDS)
def test_every_way_of_a_family_draws_the_tokens_that_it_draws_alone(kind):
    assert_equal(equality(family_model(kind), prompts=3, new=NEW, ways=BUT_LEFT, heats=(1.0,)))


@pytest.mark.parametrize("kind", KINDS[::5])
def test_every_way_of_a_family_finds_the_likeliest_tokens_that_it_finds_alone(kind):
    assert_equal(equality(family_model(kind), prompts=3, new=2 * NEW, ways=BUT_LEFT, heats=(0.0,)))


@pytest.mark.parametrize("seed", talking(range(120))[::2])
def test_further_ways_of_a_random_spec_draw_the_tokens_that_it_draws_alone(seed):
    assert_equal(equality(model_of(draw(seed)), prompts=2, new=8, seed=seed, ways=LATE, heats=(1.0,)))


def unmoved(model: Model, length: int) -> None:
    """Log-probabilities of a prompt before a token that is changed, for every token."""
    vocab = model.spec.vocab
    ids_T = torch.randint(0, vocab, (length,), generator=torch.Generator().manual_seed(3))
    rows = ids_T.repeat(length, 1)
    rows[range(length), range(length)] = (ids_T + 1) % vocab
    # Rows of one batch, and the prompt itself among them.
    both = torch.cat((ids_T[None], rows))
    given = {"rope_length": length + 1} if model.reads_length else {}
    found = af.generate(model, both, max_new_tokens=1, stop=(), prompt_logprobs=0, details=True, **given)
    before, after = found.prompt_logprobs[0], found.prompt_logprobs[1:]
    for t in range(length):
        assert_close("causality", after[t, :t], before[:t])
    moved = [bool((after[t, t:] - before[t:]).abs().max() > 1e-9) for t in range(1, length)]
    assert all(moved), "a token must move what is said of it, or the test shows nothing"


@pytest.mark.parametrize("kind", [kind for kind in KINDS if family_model(kind).spec.topology == "decoder"])
def test_prompt_logprobs_of_a_family_never_look_ahead(kind):
    unmoved(family_model(kind), 13)


@pytest.mark.parametrize("seed", talking(range(120), "decoder"))
def test_prompt_logprobs_of_a_random_spec_never_look_ahead(seed):
    model = model_of(draw(seed))
    if prefix_of(model.spec):
        with pytest.raises(af.InputError, match="prompt_logprobs: the first"):
            unmoved(model, 13)
    else:
        unmoved(model, 13)


def test_families_of_these_tests_are_all_that_go_from_tokens_to_tokens():
    assert len(KINDS) >= 41
    assert sum(family_model(kind).spec.topology == "encoder-decoder" for kind in KINDS) >= 6
