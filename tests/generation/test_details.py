"""Log-probabilities of other tokens and of the prompt, and several answers from one reading."""

import pytest
import torch

import anyformer as af
from tests.contract.contracts import model_of
from tests.contract.draw import BASE, draw
from tests.generation.talking import talking
from tests.tolerances import assert_close

IDS = torch.tensor([[3, 3, 5, 6, 7], [8, 2, 30, 1, 4]])
MASK = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
NEW = 5


def model(changes: dict | None = None):
    return model_of(af.spec(BASE, changes or {}))


@pytest.mark.parametrize("use_cache", [True, False])
def test_generate_tells_the_likeliest_tokens_of_each_step(use_cache):
    given = {"max_new_tokens": NEW, "temperature": 1.0, "seed": 2, "details": True, "use_cache": use_cache}
    found = af.generate(model(), IDS[1:], logprobs=3, **given)
    own = model()(found.ids[:, :-1]).logits[:, 4:].log_softmax(-1).topk(3)
    assert found.top is not None
    assert torch.equal(found.top.ids, own.indices)
    assert_close("promise", found.top.logprobs, own.values)
    assert af.generate(model(), IDS[1:], logprobs=0, **given).top is None
    steps = list(af.generate(model(), IDS[1:], logprobs=3, stream=True, **given))
    assert torch.equal(torch.stack([s.top_ids_BK for s in steps], 1), found.top.ids)


@pytest.mark.parametrize("use_cache", [True, False])
def test_generate_tells_the_likeliest_tokens_of_what_it_draws_from(use_cache):
    given = {"max_new_tokens": NEW, "temperature": 0.7, "top_k": 4, "logit_bias": {11: 2.0}, "seed": 2, "details": True}
    found = af.generate(model(), IDS[1:], logprobs=6, processed_logprobs=True, use_cache=use_cache, **given)
    logits = model()(found.ids[:, :-1]).logits[0, 4:].clone()
    logits[:, 11] += 2.0
    four = (logits / 0.7).topk(4)
    own = four.values.log_softmax(-1)
    assert found.top is not None
    assert torch.equal(found.top.ids[0, :, :4], four.indices)
    assert_close("promise", found.top.logprobs[0, :, :4], own)
    # Nothing else can be drawn.
    assert bool((found.top.logprobs[0, :, 4:] == -torch.inf).all())
    drawn = [four.indices[i].tolist().index(token) for i, token in enumerate(found.ids[0, 5:].tolist())]
    assert_close("promise", found.logprobs[0], own[range(NEW), drawn])


def test_generate_without_a_draw_is_certain_of_what_it_takes():
    found = af.generate(model(), IDS[1:], max_new_tokens=NEW, logprobs=2, processed_logprobs=True, details=True)
    assert torch.equal(found.logprobs, torch.zeros(1, NEW))
    assert torch.equal(found.top.ids[0, :, 0], found.ids[0, 5:])
    assert bool((found.top.logprobs[0, :, 1] == -torch.inf).all())


@pytest.mark.parametrize(("given", "said"), [(1, "expected True or False"), (True, "give logprobs too")])
def test_generate_refuses_processed_log_probabilities_of_nothing(given, said):
    with pytest.raises(af.InputError, match=said):
        af.generate(model(), IDS[1:], max_new_tokens=1, processed_logprobs=given, details=True)


@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize("left", [True, False])
def test_generate_tells_log_probabilities_of_the_prompt(use_cache, left):
    ids, mask = (IDS, MASK) if left else (IDS.flip(1), MASK.flip(1))
    found = af.generate(
        model(), ids, attention_mask=mask, prompt_logprobs=2, details=True, max_new_tokens=1, use_cache=use_cache
    )
    for i in range(2):
        real = mask[i] == 1
        row = ids[i][real]
        own = model()(row[None]).logits[0].log_softmax(-1)
        want = torch.cat((torch.zeros(1, dtype=own.dtype), own[:-1].gather(-1, row[1:, None])[:, 0]))
        assert_close("promise", found.prompt_logprobs[i][real], want)
        assert torch.equal(found.prompt_top.ids[i][real][1:], own[:-1].topk(2).indices)
        assert_close("promise", found.prompt_top.logprobs[i][real][1:], own[:-1].topk(2).values)
        assert (found.prompt_logprobs[i][~real] == 0).all()
    plain = af.generate(model(), ids, attention_mask=mask, prompt_logprobs=0, details=True, max_new_tokens=1)
    assert_close("promise", plain.prompt_logprobs, found.prompt_logprobs)
    assert plain.prompt_top is None


def test_generate_of_a_long_prompt_tells_the_same_in_chunks(monkeypatch):
    given = {"prompt_logprobs": 1, "details": True, "max_new_tokens": 1}
    whole = af.generate(model(), IDS, **given)
    monkeypatch.setattr("anyformer.generation.engine.core.PROMPT_CHUNK", 2)
    parts = af.generate(model(), IDS, **given)
    assert_close("promise", parts.prompt_logprobs, whole.prompt_logprobs)
    assert torch.equal(parts.prompt_top.ids, whole.prompt_top.ids)


def test_generate_refuses_log_probabilities_of_a_prompt_that_nothing_predicts():
    for changes, words in (
        ({"topology": "encoder-decoder"}, "predicts no token of its source"),
        ({"attention.pattern": "causal | prefix(3)"}, "see each other both ways"),
    ):
        with pytest.raises(af.InputError, match=f"prompt_logprobs: .*{words}"):
            af.generate(model(changes), IDS, prompt_logprobs=0, details=True, max_new_tokens=1)


@pytest.mark.parametrize("seed", talking(range(40), "decoder")[:8] + talking(range(60), "encoder-decoder")[:3])
def test_n_answers_from_one_reading_are_those_of_repeated_prompts(seed):
    spec = draw(seed)
    m = model_of(spec)
    ids, mask = IDS % spec.input_vocab, MASK
    if spec.topology == "decoder" and m.decoder.prefix > 3:
        mask = None
    given = {"max_new_tokens": NEW, "temperature": 1.5, "seed": 6} | ({"rope_length": 20} if m.reads_length else {})
    for use_cache in (True, False):
        found = af.generate(m, ids, attention_mask=mask, n=3, use_cache=use_cache, **given)
        again = af.generate(
            m, ids.repeat_interleave(3, 0), attention_mask=None if mask is None else mask.repeat_interleave(3, 0),
            use_cache=use_cache, **given,
        )  # fmt: skip
        assert torch.equal(found, again)
    assert len({tuple(row) for row in found[:3].tolist()}) > 1


def test_generate_draws_the_same_alone_and_in_any_batch_by_a_row_s_own_seed():
    given = {"max_new_tokens": 9, "temperature": 1.2, "repetition_penalty": 1.3, "no_repeat_ngram_size": 2}
    together = af.generate(model(), IDS, attention_mask=MASK, seed=[11, 12], **given)
    first = af.generate(model(), IDS[:1, 2:], seed=11, **given)
    assert torch.equal(first[:, 3:], together[:1, 5:])
    second = af.generate(model(), IDS[1:], seed=[12], n=2, **given)
    assert torch.equal(second[:1, 5:], together[1:, 5:])


def test_generate_with_do_sample_draws_differently_each_time_unless_torch_is_seeded():
    torch.manual_seed(1)
    given = {"max_new_tokens": 12, "do_sample": True}
    first, second = (af.generate(model(), IDS, **given) for _ in range(2))
    torch.manual_seed(1)
    assert torch.equal(first, af.generate(model(), IDS, **given))
    assert not torch.equal(first, second)


def test_generate_applies_penalties_and_bans_as_by_hand():
    given = {"max_new_tokens": 8, "stop": ()}
    m = model()
    for options, allowed in (
        ({"no_repeat_ngram_size": 1}, lambda row, t: t not in row),
        ({"bad_words": [[i] for i in range(0, 37, 2)]}, lambda row, t: t % 2 == 1),
        ({"logit_bias": {11: 1000.0}}, lambda row, t: t == 11),
        ({"presence_penalty": 1000.0}, lambda row, t: t not in row[3:]),
    ):
        row = af.generate(m, IDS[:1, 2:], **options, **given)[0].tolist()
        for i in range(3, 11):
            assert allowed(row[:i], row[i]), options
