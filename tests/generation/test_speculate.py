"""Speculative decoding: whatever is proposed, the tokens and their log-probabilities are those of the model alone."""

import random

import pytest
import torch

import anyformer as af
from anyformer.generation.engine.core import EngineCore
from anyformer.generation.engine.engine import make_requests
from anyformer.generation.engine.model_runner import ModelRunner
from anyformer.generation.engine.request import Sequence
from anyformer.generation.engine.scheduler import Limits
from anyformer.generation.engine.speculative import PromptLookup
from anyformer.generation.params.generation_request import check_request
from anyformer.generation.params.sampling_params import read_params
from tests.contract.contracts import model_of, prefix_of
from tests.contract.draw import BASE, draw
from tests.generation.talking import talking
from tests.tolerances import assert_close

SEEDS = talking(range(90))
NEW, GUESSES = 12, 3


class Seer:
    """Knows what comes, and is right two times out of three."""

    most = GUESSES

    def __init__(self, answers: list[list[int]], seed: int) -> None:
        self.answers, self.rng = answers, random.Random(seed)

    def propose(self, sequences, most):
        return [
            [
                token if self.rng.random() < 0.67 else 1 - min(token, 1)
                for token in self.answers[each.request.id][len(each.tokens) : len(each.tokens) + n]
            ]
            for each, n in zip(sequences, most, strict=True)
        ]

    def forget(self, sequence):
        pass


@pytest.mark.parametrize("seed", SEEDS)
def test_proposals_to_a_random_spec_change_no_token_and_no_log_probability(seed):
    spec = draw(seed)
    model = model_of(spec)
    seq2seq = spec.topology == "encoder-decoder"
    generator = torch.Generator().manual_seed(seed)
    least = 0 if seq2seq else prefix_of(spec)
    rows = [torch.randint(0, spec.input_vocab, (max(n, least),), generator=generator) for n in (9, 5)]
    rope_length = 25 if model.reads_length else None
    given = {"max_new_tokens": NEW, "stop": ()}
    alone = [af.generate(model, row[None], details=True, rope_length=rope_length, **given) for row in rows]
    pool = model.new_pool(2, 40, block_size=4, chunk=2 * GUESSES + 2, rope_length=rope_length)
    engine = EngineCore(
        ModelRunner(model, pool), Limits(), proposer=Seer([found.ids[0].tolist() for found in alone], seed)
    )
    added = []
    for i, row in enumerate(rows):
        asked = check_request(model, row[None], read_params(given), rope_length=rope_length)
        added += make_requests(model, asked, first=i)
        added[-1].logprobs = 0
        engine.add(added[-1])
    while not engine.idle:
        engine.step()
        engine.check()
    assert 0 < engine.stats.accepted_tokens < engine.stats.proposed_tokens
    assert engine.stats.passes < 2 * NEW
    for each, found in zip(added, alone, strict=True):
        assert each.sequences[0].new == found.ids[0, -NEW:].tolist()
        assert_close("promise", torch.tensor(each.sequences[0].logprobs, dtype=torch.float64), found.logprobs[0])


def looked_up(lookup: PromptLookup, tokens: list[int], most: int, row: Sequence | None = None) -> list[int]:
    row = Sequence.__new__(Sequence) if row is None else row
    row.tokens = tokens
    return lookup.propose([row], [most])[0]


def test_lookup_repeats_what_followed_the_longest_run():
    lookup, row = PromptLookup(3), Sequence.__new__(Sequence)
    ids = [1, 2, 3, 4, 5, 9, 2, 3]
    assert looked_up(lookup, ids, 3, row) == [4, 5, 9]
    # Another row knows nothing of the first.
    assert looked_up(lookup, [2, 3], 3) == []
    # The longer run decides: after (5, 9, 2, 3) nothing was seen, after (2, 3) first 4; (7, 2, 3) was followed by 8.
    assert looked_up(lookup, [*ids, 7, 2, 3, 8, 1, 7, 2, 3], 2, row) == [8, 1]


def test_lookup_of_a_row_that_goes_round_proposes_as_far_as_asked():
    assert looked_up(PromptLookup(5), [5, 6, 5, 6], 5) == [5, 6, 5, 6, 5]


@pytest.mark.parametrize("seed", talking(range(24)))
@pytest.mark.parametrize("options", [{}, {"temperature": 0.9, "top_p": 0.9, "seed": 5}], ids=["greedy", "drawn"])
def test_generate_with_proposals_gives_the_tokens_of_plain_decoding(seed, options):
    spec = draw(seed)
    model = model_of(spec)
    two = spec.topology == "encoder-decoder"
    least = 0 if two else prefix_of(spec)
    ids = torch.randint(0, spec.input_vocab, (2, max(9, least)), generator=torch.Generator().manual_seed(seed))
    mask = torch.ones_like(ids)
    if least < 9:
        mask[1, : 9 - max(least, 6)] = 0
    given = {"max_new_tokens": 10, "stop": (), "attention_mask": mask} | options
    given |= {"rope_length": 25} if model.reads_length else {}
    want = af.generate(model, ids, **given)
    assert torch.equal(af.generate(model, ids, lookup=True, guesses=3, **given), want)
    smaller = model_of(draw(next(s for s in talking(range(40), "decoder") if draw(s).vocab == spec.vocab)))
    assert torch.equal(af.generate(model, ids, draft=smaller, guesses=2, **given), want)


@pytest.mark.parametrize("prefix", [0, 6])
def test_generate_with_a_draft_serves_rows_that_have_room_for_different_numbers_of_guesses(prefix):
    """The longest row ends where the draft's own room does; and a draft says nothing before its prefix is there."""
    model = model_of(af.spec(BASE))
    pattern = {"attention.pattern": f"causal | prefix({prefix})"} if prefix else {}
    draft = model_of(af.spec(BASE, {"depth": 1, **pattern}))
    ids = torch.randint(0, model.spec.input_vocab, (3, 9), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[1, :6] = mask[2, :3] = 0
    given = {"max_new_tokens": 9, "stop": (), "attention_mask": mask}
    want = af.generate(model, ids, **given)
    for guesses in (1, 4, 6):
        assert torch.equal(af.generate(model, ids, draft=draft, guesses=guesses, **given), want)
    assert torch.equal(af.generate(model, ids, draft=model, guesses=6, **given), want)


def test_options_that_do_not_go_together_are_refused_at_once():
    model = model_of(draw(talking(range(40), "decoder")[0]))
    with pytest.raises(af.InputError, match="leave one out") as caught:
        af.generate(model, torch.zeros(1, 12, dtype=torch.long), draft=model, lookup=True, use_cache=False, guesses=0)
    for name in ("draft", "use_cache", "guesses"):
        assert f"{name}: " in str(caught.value)


def test_generate_with_a_draft_in_training_mode_drops_nothing_and_draws_nothing():
    model = model_of(af.spec(BASE))
    draft = af.build(af.spec(BASE, {"depth": 1, "block.dropout": 0.5}), dtype=torch.float64).train()
    ids, state = torch.tensor([[5, 17, 3]]), torch.get_rng_state()
    found = af.generate(model, ids, max_new_tokens=8, draft=draft, guesses=3)
    assert torch.equal(found, af.generate(model, ids, max_new_tokens=8))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(module.training for module in draft.modules())
