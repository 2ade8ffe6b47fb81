"""Beam search: against transformers, against every sequence there is, and against a search in plain lists."""

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

import anyformer as af
from anyformer.model.model import Model
from tests.contract.contracts import model_of, randomise
from tests.contract.draw import BASE, draw
from tests.generation.talking import talking
from tests.generation.test_parity import ALONE, pair, prompts, published
from tests.generation.test_random_specs import new_tokens, options, padded
from tests.generation.test_random_specs import prompts as random_prompts
from tests.tolerances import assert_close

NEW, KEPT = 12, 3

WAYS: dict[str, dict[str, Any]] = {
    "plain": {"num_beams": 4},
    "at once": {"num_beams": 3, "length_penalty": 0.3, "early_stopping": True},
    "long": {"num_beams": 3, "length_penalty": 2.0, "early_stopping": "never", "min_new_tokens": 5},
    "short": {"num_beams": 3, "length_penalty": -1.0, "early_stopping": "never"},
}
FAMILIES = ("llama", "gpt2", "opt", "bloom", "gemma2", "mistral", "t5", "transformer", "led", "fsmt")


@pytest.mark.parametrize("kind", FAMILIES)
def test_beams_of_a_family_have_the_scores_of_its_public_class(kind):
    theirs, ours = pair(kind)
    pad = ours.spec.ids.pad or 0
    ids, mask = prompts(ours.spec.input_vocab, pad)
    batch = (ids[:1], mask[:1]) if kind in ALONE else (ids, mask)
    # Tokens that beams come upon.
    often = af.generate(ours, ids[:1], max_new_tokens=NEW, stop=(), num_beams=4)[0, -NEW:].tolist()
    stops = ((), (often[4],), tuple(dict.fromkeys((*often[:3], 9, 11, 20))))
    lengths: set[int] = set()
    # Any three families in a row take every way with every stop.
    for i, way in enumerate(WAYS.values(), FAMILIES.index(kind)):
        stop = stops[i % len(stops)]
        told = {"eos_token_id": list(stop)} if stop else {}
        want = published(
            theirs, *batch, pad, max_new_tokens=NEW, num_return_sequences=KEPT, output_scores=True, **way, **told
        )
        given = {"attention_mask": batch[1], "max_new_tokens": NEW, "stop": stop, "n": KEPT}
        found = af.generate(ours, batch[0], details=True, **given, **way)
        assert found.scores is not None
        assert_close("oracle", found.scores, want.sequences_scores)
        assert found.ids.shape == want.sequences.shape
        width = found.ids.shape[1] - max(found.lengths)
        for row, (length, reason) in enumerate(zip(found.lengths, found.reasons, strict=True)):
            assert torch.equal(found.ids[row, : width + length], want.sequences[row, : width + length])
            # The public class fills with an end token if the pad id is 0.
            assert (found.ids[row, width + length :] == pad_of(ours)).all()
            assert reason == ("stop" if int(found.ids[row, width + length - 1]) in stop else "length")
        lengths |= set(found.lengths)
    assert len(lengths) > 1, "hypotheses must end at different lengths"


def pad_of(model: Model) -> int:
    ids = model.spec.ids
    return ids.pad if ids.pad is not None else next(iter(ids.eos), 0)


@pytest.mark.parametrize("kind", ["llama", "t5"])
def test_beams_with_samplers_have_the_scores_of_the_public_class(kind):
    theirs, ours = pair(kind)
    # Of one length: the public class takes padding for something that was said.
    ids, mask = (each[:1] for each in prompts(ours.spec.input_vocab, 0))
    given = {"num_beams": 3, "repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "min_new_tokens": 4}
    more = {"eos_token_id": [5], "num_return_sequences": KEPT, "output_scores": True}
    want = published(theirs, ids, mask, 0, max_new_tokens=NEW, **more, **given)
    found = af.generate(ours, ids, max_new_tokens=NEW, stop=5, n=KEPT, details=True, **given)
    assert_close("oracle", found.scores, want.sequences_scores)
    assert min(found.lengths) > 4


def tiny(vocab: int, seed: int, **changes: Any) -> Model:
    spec = af.spec(BASE, {"vocab": vocab, "depth": 1, **changes})
    return randomise(af.build(spec, dtype=torch.float64), seed).eval()


@torch.no_grad()
def logprobs_after(model: Model, source: list[int], said: list[int]) -> Tensor:
    """Log-probabilities of the next token, from everything read anew."""
    if model.spec.topology == "decoder":
        return model(torch.tensor([source + said])).logits[0, -1].log_softmax(-1)
    begun = torch.tensor([[model.spec.ids.start, *said]])
    return model(torch.tensor([source]), decoder_input_ids=begun).logits[0, -1].log_softmax(-1)


def every_sequence(model: Model, source: list[int], new: int, stop: set[int], said: tuple = ()) -> dict[tuple, float]:
    """All that can be said, with the sums of log-probabilities."""
    found: dict[tuple, float] = {}
    for token, value in enumerate(logprobs_after(model, source, list(said)).tolist()):
        longer = (*said, token)
        if len(longer) == new or token in stop:
            found[longer] = value
        else:
            rest = every_sequence(model, source, new, stop, longer)
            found |= {key: value + more for key, more in rest.items()}
    return found


@pytest.mark.parametrize("power", [0.0, 1.0, -0.5])
@pytest.mark.parametrize("topology", ["decoder", "encoder-decoder"])
def test_beams_as_many_as_there_are_sequences_find_the_best_of_all(topology, power):
    new, stop, source = 4, 2, [0, 3, 1]
    model = tiny(4, 3, topology=topology)
    all_sums = every_sequence(model, source, new, {stop})
    ranked = sorted(((total / len(said) ** power, said) for said, total in all_sums.items()), reverse=True)
    found = af.generate(
        model, torch.tensor([source]), max_new_tokens=new, stop=stop, num_beams=4**new, length_penalty=power,
        early_stopping="never", n=len(ranked), details=True,
    )  # fmt: skip
    begun = found.ids.shape[1] - new
    assert [tuple(row[begun : begun + n]) for row, n in zip(found.ids.tolist(), found.lengths, strict=True)] == [
        said for _, said in ranked
    ]
    assert_close("promise", found.scores, torch.tensor([score for score, _ in ranked], dtype=torch.float64))
    # The model's own log-probabilities add up to the scores, as there were no samplers.
    sums = found.logprobs.sum(-1) / torch.tensor(found.lengths, dtype=torch.float64) ** power
    assert_close("promise", sums, found.scores)
    with pytest.raises(af.InputError, match=rf"leave {len(ranked)} hypotheses, and n = {len(ranked) + 1} were asked"):
        af.generate(model, torch.tensor([source]), max_new_tokens=new, stop=stop, num_beams=256, n=len(ranked) + 1)


def by_lists(model: Model, source: list[int], new: int, stop: set[int], groups: int, width: int, penalty: float):
    """Groups of beams in turn, all in lists: (score, tokens) of what has ended, the best first; no length penalty."""
    beams: list[list[tuple[float, list[int]]]] = [[(0.0, [])] for _ in range(groups)]
    ended: list[list[tuple[float, list[int]]]] = [[] for _ in range(groups)]
    for step in range(new):
        taken: list[int] = []
        for g in range(groups):
            if len(ended[g]) == width and (not beams[g] or beams[g][0][0] <= ended[g][-1][0]):
                continue  # Sums only fall, so this group has found its best, and holds back no other one.
            candidates = []
            for score, said in beams[g]:
                for token, value in enumerate(logprobs_after(model, source, said).tolist()):
                    candidates.append((score + value - penalty * taken.count(token), [*said, token]))
            candidates.sort(reverse=True)
            over = [c for c in candidates[:width] if c[1][-1] in stop or step == new - 1]
            ended[g] = sorted(ended[g] + over, reverse=True)[:width]
            beams[g] = [c for c in candidates if c[1][-1] not in stop][:width]
            taken += [said[-1] for _, said in beams[g]]
    return sorted(itertools.chain(*ended), reverse=True)


@pytest.mark.parametrize("penalty", [0.4, 2.0])
@pytest.mark.parametrize(("groups", "width", "stop"), [(3, 1, ()), (2, 2, (4,)), (3, 2, (1, 4))])
def test_diverse_groups_of_beams_equal_a_search_in_lists(groups, width, stop, penalty):
    model, sources = tiny(9, 1), [[1, 2, 3], [7, 7, 5]]
    found = af.generate(
        model, torch.tensor(sources), max_new_tokens=5, stop=stop, num_beams=groups * width, num_beam_groups=groups,
        diversity_penalty=penalty, length_penalty=0.0, early_stopping="never", n=groups * width, details=True,
    )  # fmt: skip
    rows = found.ids[:, 3:].tolist()
    said = [row[:n] for row, n in zip(rows, found.lengths, strict=True)]
    want = [by_lists(model, source, 5, set(stop), groups, width, penalty) for source in sources]
    assert said == [tokens for row in want for _, tokens in row]
    scores = [score for row in want for score, _ in row]
    assert_close("promise", found.scores, torch.tensor(scores, dtype=torch.float64))


def test_diverse_groups_of_beams_begin_differently_if_the_penalty_is_large():
    model = tiny(9, 1)
    given = {"max_new_tokens": 3, "num_beams": 4, "n": 4, "stop": ()}
    apart = af.generate(model, torch.tensor([[1, 2]]), num_beam_groups=4, diversity_penalty=100.0, **given)
    assert len(set(apart[:, 2].tolist())) == 4
    together = af.generate(model, torch.tensor([[1, 2]]), **given)
    assert not together.is_inference(), "what is answered can be changed"
    assert len(set(together[:, 2].tolist())) < 4


@pytest.mark.parametrize("seed", [*talking(range(60), "decoder")[:6], *talking(range(60), "encoder-decoder")[:3]])
def test_beams_of_a_random_spec_are_the_same_alone_padded_and_without_a_cache(seed):
    spec = draw(seed)
    model = model_of(spec)
    rows = random_prompts(spec, seed)
    given = options(model) | {"max_new_tokens": 6, "num_beams": 4, "n": 2, "stop": (3, 5), "details": True}
    alone = [af.generate(model, row[None], **given) for row in rows]
    sure = torch.cat([found.scores for found in alone])
    for left, cached in ((True, True), (False, True), (True, False)):
        ids, mask = padded(rows, left=left)
        found = af.generate(model, ids, attention_mask=mask, use_cache=cached, **given)
        assert_close("promise", found.scores, sure)
        assert found.lengths == tuple(n for one in alone for n in one.lengths)
        new = new_tokens(model, found.ids, ids.shape[1])
        for i, (row, one) in enumerate((row, one) for row, one in zip(rows, alone, strict=True) for _ in range(2)):
            want = new_tokens(model, one.ids, len(row))[i % 2]
            assert new[i, : found.lengths[i]].tolist() == want[: found.lengths[i]].tolist()


def test_beams_of_a_model_with_damaged_weights_are_refused():
    model = tiny(9, 1)
    with torch.no_grad():
        next(model.parameters())[1] = math.nan
    with pytest.raises(af.InputError, match="row 0: 9 of 9 logits are NaN, so no token can be chosen"):
        af.generate(model, torch.tensor([[1, 2]]), max_new_tokens=3, num_beams=2)


def test_beams_that_samplers_leave_nothing_to_are_refused():
    with pytest.raises(af.InputError, match="row 0: the samplers and 3 new tokens leave 0 hypotheses, and n = 1"):
        af.generate(tiny(3, 1), torch.tensor([[1, 2]]), max_new_tokens=3, num_beams=2, bad_words=[[0], [1], [2]])


@pytest.mark.parametrize("power", [10_000.0, -10_000.0])
def test_beams_with_an_extreme_length_penalty_still_answer(power):
    found = af.generate(
        tiny(9, 1), torch.tensor([[1, 2]]), max_new_tokens=4, num_beams=3, length_penalty=power, details=True
    )
    assert found.scores.isfinite().all()
    assert found.lengths == (4,)
