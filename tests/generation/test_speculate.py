"""Speculative decoding: whatever is guessed, the logits and tokens are those of the model alone."""

import random

import pytest
import torch
from anyformer.generation.readers.guesses import Lookup
from anyformer.generation.readers.speculate import Speculating
from anyformer.generation.running.runner import Runner

import anyformer as af
from anyformer.model.eval_mode import eval_mode
from tests.contract.contracts import model_of, prefix_of
from tests.contract.draw import BASE, draw
from tests.generation.talking import talking
from tests.tolerances import assert_close

SEEDS = talking(range(90))
NEW, GUESSES = 12, 3


class Seer:
    """Knows what comes, and is right two times out of three."""

    def __init__(self, answers: list[list[int]], seed: int) -> None:
        self.answers, self.rng = answers, random.Random(seed)

    def guess(self, rows, so_far, most):
        return [
            [t if self.rng.random() < 0.67 else 1 - min(t, 1) for t in self.answers[row][len(ids) : len(ids) + n]]
            for row, ids, n in zip(rows, so_far, most, strict=True)
        ]


@pytest.mark.parametrize("seed", SEEDS)
def test_guesses_of_a_random_spec_change_no_logit(seed):
    spec = draw(seed)
    model = model_of(spec)
    two = spec.topology == "encoder-decoder"
    generator = torch.Generator().manual_seed(seed)
    least = 0 if two else prefix_of(spec)
    rows = [torch.randint(0, spec.input_vocab, (max(n, least),), generator=generator) for n in (9, 5)]
    given = {"max_new_tokens": NEW, "stop": (), "details": True} | ({"rope_length": 25} if model.reads_length else {})
    alone = [af.generate(model, row[None], **given) for row in rows]
    answers = [found.ids[0].tolist() for found in alone]
    begun = [answer[:-NEW] for answer in answers]
    pool = model.new_pool(2, 40, block_size=4, chunk=2 * GUESSES + 2, rope_length=25 if model.reads_length else None)
    with eval_mode(model):
        reader = Speculating(model, Runner(model, pool), Seer(answers, seed), guesses=GUESSES, limit=30)
        if two:
            ids = torch.zeros(2, 9, dtype=torch.long)
            mask = torch.zeros_like(ids)
            for i, row in enumerate(rows):
                ids[i, : len(row)], mask[i, : len(row)] = row, 1
            logits = [reader.begin(begun, input_ids=ids, attention_mask=mask)]
        else:
            logits = [reader.begin(begun)]
        for step in range(NEW - 1):
            chosen = torch.tensor([answer[len(start) + step] for answer, start in zip(answers, begun, strict=True)])
            logits.append(reader.go_on(chosen))
    assert 0 < reader.kept < reader.offered
    assert reader.passes < 2 * (NEW - 1)
    logprobs = torch.stack(logits, 1).log_softmax(-1)
    for i, (answer, found) in enumerate(zip(answers, alone, strict=True)):
        new = torch.tensor(answer[-NEW:])
        assert_close("promise", logprobs[i].gather(-1, new[:, None])[:, 0], found.logprobs[0])


def test_lookup_repeats_what_followed_the_longest_run():
    lookup = Lookup()
    ids = [1, 2, 3, 4, 5, 9, 2, 3]
    assert lookup.guess([0], [ids], [3]) == [[4, 5, 9]]
    # Another row knows nothing of the first.
    assert lookup.guess([1], [[2, 3]], [3]) == [[]]
    # The longer run decides: after (5, 9, 2, 3) nothing was seen, after (2, 3) first 4; (7, 2, 3) was followed by 8.
    assert lookup.guess([0], [[*ids, 7, 2, 3, 8, 1, 7, 2, 3]], [2]) == [[8, 1]]


def test_lookup_of_a_row_that_goes_round_guesses_as_far_as_asked():
    assert Lookup().guess([0], [[5, 6, 5, 6]], [5]) == [[5, 6, 5, 6, 5]]


@pytest.mark.parametrize("seed", talking(range(24)))
@pytest.mark.parametrize("options", [{}, {"temperature": 0.9, "top_p": 0.9, "seed": 5}], ids=["greedy", "drawn"])
def test_generate_with_guesses_gives_the_tokens_of_plain_decoding(seed, options):
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


def test_means_that_do_not_go_together_are_refused_at_once():
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
