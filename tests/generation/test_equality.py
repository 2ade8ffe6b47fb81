"""Every family and random specs generate the same tokens in every way, in fp64, and never look ahead."""

import functools
from typing import Any

import pytest
import torch

import anyformer as af
from anyformer.families.family import Family, families
from anyformer.model.model import Model
from anyformer.specs import ModelSpec
from anyformer.verify.generation import MODES, Equality, equality
from tests.contract.contracts import model_of, prefix_of, randomise
from tests.contract.draw import draw
from tests.generation.talking import talking, talks
from tests.tolerances import assert_close

NEW = 8
ONE_CHUNK = {
    "lsh_attn_chunk_length": 96,
    "axial_pos_shape": [8, 12],
    "num_buckets": [4, 2],
    "max_position_embeddings": 96,
}
"""For Reformer: LSH attention is exact within one chunk."""
PADDED = ("in a batch, padded left", "in a batch, padded right")
BUT_PADDED = tuple(way for way in MODES if way.name not in PADDED)
"""A stream is from a batch that is padded left, one without a cache and with look-up from one that is padded right."""
LATE = tuple(way for way in MODES if way.name in ("prompt in pieces", "samples of one reading", "with look-up"))
"""Ways that no other test has over the random specs."""


def spec_of(kind: str) -> ModelSpec:
    """The small config of a family."""
    family = Family.named(kind)
    assert family is not None
    return family.spec_from(family.small | (ONE_CHUNK if kind == "reformer" else {}))


KINDS = [family.kind for family in families() if talks(spec_of(family.kind))]
DECODERS = [kind for kind in KINDS if spec_of(kind).topology == "decoder"]


@functools.lru_cache(maxsize=2)
def family_model(kind: str) -> Model:
    """A family with every parameter random."""
    return model_of(spec_of(kind))


def assert_equal(found: Equality) -> None:
    assert not found.wrong, "\n".join(map(str, found.wrong))
    for row in found.rows:
        assert row.tokens == row.cases * found.new
        assert row.absent is not None or row.cases > 0 or row.mode == "samples of one reading"


@pytest.mark.parametrize(("kind", "turn"), [(kind, i % 3) for i, kind in enumerate(KINDS)])
def test_every_way_of_a_family_draws_the_tokens_that_it_draws_alone(kind, turn):
    # Families take turns; the page of figures has all ways for all of them.
    ways = BUT_PADDED[turn::3]
    length = 11 if kind == "reformer" else None
    assert_equal(equality(family_model(kind), prompts=2, length=length, new=NEW, modes=ways, temperatures=(1.0,)))


@pytest.mark.parametrize("kind", KINDS[::8])
def test_every_way_of_a_family_finds_the_likeliest_tokens_that_it_finds_alone(kind):
    assert_equal(equality(family_model(kind), prompts=2, new=2 * NEW, temperatures=(0.0,)))


@pytest.mark.parametrize("seed", talking(range(120))[::3])
def test_further_ways_of_a_random_spec_draw_the_tokens_that_it_draws_alone(seed):
    assert_equal(equality(model_of(draw(seed)), prompts=2, new=8, seed=seed, modes=LATE, temperatures=(1.0,)))


def unmoved(model: Model, length: int) -> None:
    """Log-probabilities of a prompt before a token that is changed, for every token."""
    vocab = model.spec.vocab
    ids_T = torch.randint(0, vocab, (length,), generator=torch.Generator().manual_seed(3))
    rows = ids_T.repeat(length, 1)
    rows[range(length), range(length)] = (ids_T + 1) % vocab
    # Rows of one batch, and the prompt itself among them.
    both = torch.cat((ids_T[None], rows))
    given: dict[str, Any] = {"rope_length": length + 1} if model.reads_length else {}
    found = af.generate(model, both, max_new_tokens=1, stop=(), prompt_logprobs=0, details=True, **given)
    before, after = found.prompt_logprobs[0], found.prompt_logprobs[1:]
    for t in range(length):
        assert_close("causality", after[t, :t], before[:t])
    moved = [bool((after[t, t:] - before[t:]).abs().max() > 1e-9) for t in range(1, length)]
    assert all(moved), "a token must move what is said of it, or the test shows nothing"


@pytest.mark.parametrize("kind", DECODERS)
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
    assert len(KINDS) - len(DECODERS) >= 6


def test_generate_of_a_model_in_training_mode_drops_nothing():
    family = Family.named("t5")
    assert family is not None
    model = randomise(af.build(family.spec_from(family.small), dtype=torch.float64), 0)
    assert model.spec.embed.dropout > 0
    ids = torch.arange(3, 12)[None]
    before = af.generate(model, ids, max_new_tokens=4, details=True).logprobs
    assert model.training
    assert torch.equal(af.generate(model, ids, max_new_tokens=4, details=True).logprobs, before)
    assert torch.equal(af.generate(model.eval(), ids, max_new_tokens=4, details=True).logprobs, before)
