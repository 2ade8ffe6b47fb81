"""Contrastive search against one that reads everything anew for every candidate."""

from typing import Any

import pytest
import torch
from torch import Tensor

import anyformer as af
from anyformer.model.model import Model
from tests.contract.contracts import model_of
from tests.contract.draw import BASE, draw
from tests.generation.talking import talking
from tests.generation.test_random_specs import new_tokens, options, padded, prompts
from tests.tolerances import assert_close

PROMPT = torch.tensor([[5, 6, 7, 5]])


@torch.no_grad()
def read(model: Model, source: Tensor, said: list[int], **given: Any) -> tuple[Tensor, Tensor]:
    """States of all tokens, and logits after the last one."""
    if model.spec.topology == "decoder":
        out = model(torch.cat((source, torch.tensor(said, dtype=torch.long)))[None], **given)
    else:
        begun = torch.tensor([[model.spec.ids.start, *said]])
        out = model(source[None], decoder_input_ids=begun, **given)
    return out.hidden[0], out.logits[0, -1]


def anew(model: Model, source: Tensor, new: int, width: int, alpha: float, **given: Any) -> list[int]:
    said: list[int] = []
    for _ in range(new):
        states, logits = read(model, source, said, **given)
        probs, ids = logits.softmax(-1).topk(width)
        scores = []
        for prob, token in zip(probs.tolist(), ids.tolist(), strict=True):
            state = read(model, source, [*said, token], **given)[0][-1]
            likeness = max(float(torch.cosine_similarity(state, one, dim=0)) for one in states)
            scores.append((1 - alpha) * prob - alpha * likeness)
        said.append(int(ids[scores.index(max(scores))]))
    return said


@pytest.mark.parametrize("seed", [*talking(range(60), "decoder")[:6], *talking(range(60), "encoder-decoder")[:2]])
def test_contrastive_search_of_a_random_spec_equals_one_that_reads_everything_anew(seed):
    spec = draw(seed)
    model, rows, new, alpha = model_of(spec), prompts(spec, seed), 5, 0.8
    given = options(model) | {"max_new_tokens": new, "top_k": 4, "penalty_alpha": alpha, "details": True}
    lengths = {name: value for name, value in given.items() if name == "rope_length"}
    want = [anew(model, row, new, 4, alpha, **lengths) for row in rows]
    greedy, different = options(model) | {"max_new_tokens": new}, False
    for left, cached in ((True, True), (False, True), (True, False)):
        ids, mask = padded(rows, left=left)
        found = af.generate(model, ids, attention_mask=mask, use_cache=cached, **given)
        assert new_tokens(model, found.ids, ids.shape[1]).tolist() == want
        likeliest = af.generate(model, ids, attention_mask=mask, **greedy)
        different = different or new_tokens(model, likeliest, ids.shape[1]).tolist() != want
    sure = [read(model, row, said[:-1], **lengths)[1].log_softmax(-1)[said[-1]] for row, said in zip(rows, want, strict=True)]  # fmt: skip
    assert_close("promise", found.logprobs[:, -1], torch.stack(sure))
    assert different, "the search must choose otherwise than by probability alone"


def test_contrastive_search_without_a_penalty_takes_the_likeliest_token():
    model = model_of(af.spec(BASE))
    want = af.generate(model, PROMPT, max_new_tokens=9)
    assert torch.equal(af.generate(model, PROMPT, max_new_tokens=9, top_k=5, penalty_alpha=0.0), want)
    assert torch.equal(af.generate(model, PROMPT, max_new_tokens=9, top_k=1, penalty_alpha=0.8), want)


def test_contrastive_search_stops_each_row_by_itself():
    model, ids = model_of(af.spec(BASE)), torch.tensor([[5, 6, 7], [8, 2, 30]])
    given = {"top_k": 4, "penalty_alpha": 0.5, "max_new_tokens": 8, "details": True}
    free = af.generate(model, ids, stop=(), **given).ids[:, 3:].tolist()
    stop = next(token for token in free[0][:6] if token not in free[1])
    found = af.generate(model, ids, stop=stop, **given)
    end = free[0].index(stop) + 1
    assert (found.lengths, found.reasons) == ((end, 8), ("stop", "length"))
    assert found.ids[:, 3:].tolist() == [free[0][:end] + [0] * (8 - end), free[1]]
    assert (found.logprobs[0, end:] == 0).all()


def test_contrastive_search_goes_through_the_samplers():
    model = model_of(af.spec(BASE))
    given = {"top_k": 3, "penalty_alpha": 0.5, "max_new_tokens": 8}
    free = af.generate(model, PROMPT, **given)[0, 4:].tolist()
    barred = af.generate(model, PROMPT, bad_words=[[free[0]], free[1:3]], no_repeat_ngram_size=1, **given)
    new = barred[0, 4:].tolist()
    assert free[0] not in new
    assert len(set(new)) == 8
    # Fewer tokens are left than are weighed.
    first = af.generate(model, PROMPT, first=[11], **given)[0, 4].item()
    assert first == 11
    assert not barred.is_inference(), "what is answered can be changed"


def test_contrastive_search_that_samplers_leave_nothing_to_is_refused():
    model = model_of(af.spec(BASE, {"vocab": 3}))
    with pytest.raises(af.InputError, match=r"row 0: .*so no token can be chosen; the samplers rule out every token"):
        af.generate(model, torch.tensor([[1, 2]]), max_new_tokens=2, top_k=2, penalty_alpha=0.5, bad_words=[[0], [1], [2]])  # fmt: skip


def test_contrastive_search_needs_a_position_for_its_last_token():
    model = model_of(af.spec(BASE, {"context": 12, "position": {"kind": "learned"}}))
    given = {"top_k": 2, "penalty_alpha": 0.5}
    assert af.generate(model, PROMPT, max_new_tokens=8, **given).shape == (1, 12)
    with pytest.raises(
        af.InputError, match=r"reads its last token too, so 9 of them need 13 positions, .* has 12; ask"
    ):
        af.generate(model, PROMPT, max_new_tokens=9, **given)


def test_contrastive_search_without_a_cache_keeps_the_global_tokens_of_its_prompt():
    model = model_of(af.spec(BASE, {"attention.pattern": "causal & (window(2) | global_tokens)"}))
    ids, marks = torch.tensor([[5, 6, 7, 8, 9, 10]]), torch.tensor([[1, 0, 0, 1, 0, 0]])
    given = {"max_new_tokens": 6, "penalty_alpha": 0.5, "top_k": 3, "global_mask": marks}
    assert torch.equal(af.generate(model, ids, use_cache=False, **given), af.generate(model, ids, **given))
