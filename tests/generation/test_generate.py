"""generate(): its options, its answers, what it leaves behind and what it refuses."""

import copy
import json

import pytest
import torch

import anyformer as af
from anyformer.generation.engine.model_runner import ModelRunner
from anyformer.model.model import Model
from tests.contract.contracts import model_of, randomise
from tests.contract.draw import BASE
from tests.data.test_tokenizer import STORIES, needs_stories
from tests.tolerances import assert_close

PROMPT = torch.tensor([[5, 6, 7]])
TWO = {"topology": "encoder-decoder"}


def model(changes: dict | None = None) -> Model:
    return model_of(af.spec(BASE, changes or {}))


def by_hand(m: Model, ids: torch.Tensor, steps: int) -> torch.Tensor:
    for _ in range(steps):
        ids = torch.cat((ids, m(ids).logits[:, -1:].argmax(-1)), 1)
    return ids


def test_generate_by_default_takes_the_likeliest_token():
    assert torch.equal(af.generate(model(), PROMPT, max_new_tokens=9), by_hand(model(), PROMPT, 9))


def test_generate_of_an_encoder_decoder_begins_with_the_start_token():
    m = model(TWO)
    ids = torch.tensor([[1]])
    for _ in range(6):
        ids = torch.cat((ids, m(PROMPT, decoder_input_ids=ids).logits[:, -1:].argmax(-1)), 1)
    assert torch.equal(af.generate(m, PROMPT, max_new_tokens=6), ids)


def test_generate_without_a_number_fills_the_context():
    m = model({"context": 12})
    assert af.generate(m, PROMPT).shape == (1, 12)
    assert af.generate(model(TWO | {"context": 12}), PROMPT).shape == (1, 12)


def test_generate_fills_the_last_position_and_no_more():
    m = model({"context": 12, "position": {"kind": "learned"}})
    # The tenth new token is chosen at position 12 and not fed back.
    assert af.generate(m, PROMPT, max_new_tokens=10).shape == (1, 13)
    with pytest.raises(
        af.InputError,
        match="max_new_tokens: 11 after a prompt of 3 need 13 positions, and this model has 12; ask for at most 10",
    ):
        af.generate(m, PROMPT, max_new_tokens=11)


def test_generate_beyond_the_context_is_allowed_where_positions_do_not_end():
    assert af.generate(model({"context": 12}), PROMPT, max_new_tokens=20).shape == (1, 23)


def test_generate_stops_at_the_ids_of_the_spec_unless_told_otherwise():
    free = af.generate(model(), PROMPT, max_new_tokens=12)[0].tolist()
    end = free[5]
    first = free.index(end, 3)
    m = model({"ids.eos": [end]})
    assert af.generate(m, PROMPT, max_new_tokens=12)[0].tolist() == free[: first + 1]
    assert af.generate(m, PROMPT, max_new_tokens=12, stop=())[0].tolist() == free
    assert af.generate(model(), PROMPT, max_new_tokens=12, stop=end)[0].tolist() == free[: first + 1]
    assert af.generate(model(), PROMPT, max_new_tokens=12, stop=[end])[0].tolist() == free[: first + 1]


@pytest.mark.parametrize(
    ("ids", "fill"),
    [({"pad": 3, "eos": [9]}, 3), ({"pad": None, "eos": [9, 4]}, 9), ({"pad": None}, 0)],
    ids=["pad", "eos", "neither"],
)
def test_generate_fills_finished_rows(ids, fill):
    prompts = torch.tensor([[5, 6, 7], [8, 2, 30]])
    m = model({"ids": ids})
    free = af.generate(m, prompts, max_new_tokens=12, stop=())[:, 3:]
    stop = int(free[0, 3])
    first = free[0].tolist().index(stop)
    assert stop not in free[1].tolist()
    found = af.generate(m, prompts, max_new_tokens=12, stop=[stop])[:, 3:]
    assert found[0].tolist() == free[0, : first + 1].tolist() + [fill] * (11 - first)
    assert torch.equal(found[1], free[1])


def test_generate_with_a_least_number_of_tokens_bars_stop_tokens_until_then():
    free = af.generate(model(), PROMPT, max_new_tokens=8, stop=())[0, 3:]
    found = af.generate(model(), PROMPT, max_new_tokens=8, min_new_tokens=4, stop=[int(free[0])])[0, 3:]
    assert len(found) > 4
    assert int(free[0]) not in found[:4].tolist()
    details = af.generate(model(), PROMPT, max_new_tokens=2, min_new_tokens=1, stop=[int(free[0])], details=True)
    logits = model()(PROMPT).logits[0, -1].log_softmax(-1)
    # Probabilities are the model's own, not those after a token was barred.
    assert_close("promise", details.logprobs[0, :1], logits[details.ids[0, 3]][None])


def test_generate_with_details_tells_log_probabilities_of_the_model_itself():
    found = af.generate(model(), PROMPT, max_new_tokens=7, temperature=0.6, top_k=5, seed=0, details=True)
    logits = model()(found.ids[:, :-1]).logits[:, 2:].log_softmax(-1)
    assert_close("promise", found.logprobs, logits.gather(-1, found.ids[:, 3:, None])[..., 0])
    assert found.reasons == ("length",)
    assert found.lengths == (7,)


def test_generate_as_a_stream_with_details_yields_steps():
    whole = af.generate(model(), PROMPT, max_new_tokens=5, details=True)
    steps = list(af.generate(model(), PROMPT, max_new_tokens=5, details=True, stream=True))
    assert torch.equal(torch.stack([step.ids_B for step in steps], 1), whole.ids[:, 3:])
    assert_close("same", torch.stack([step.logprobs_B for step in steps], 1), whole.logprobs)
    assert not any(bool(step.finished_B.any()) for step in steps)


def test_generate_as_a_stream_yields_before_it_is_done():
    stream = af.generate(model(), PROMPT, max_new_tokens=10**4, stream=True)
    assert next(stream).shape == (1,)
    assert next(stream).shape == (1,)


def test_generate_of_a_model_in_training_drops_nothing_and_gives_every_mode_back():
    spec = af.spec(BASE, {"block.dropout": 0.5, "attention.dropout": 0.5, "embed.dropout": 0.5})
    m = randomise(af.build(spec, dtype=torch.float64), 0).train()
    m.decoder.blocks[0].eval()
    modes = [module.training for module in m.modules()]
    found = af.generate(m, PROMPT, max_new_tokens=9)
    assert [module.training for module in m.modules()] == modes
    assert torch.equal(found, by_hand(model_of(spec), PROMPT, 9))
    stream = af.generate(m, PROMPT, max_new_tokens=9, stream=True)
    next(stream)
    # Between two tokens the model is the user's.
    assert [module.training for module in m.modules()] == modes
    stream.close()
    assert [module.training for module in m.modules()] == modes


@pytest.mark.parametrize("first", ["train", "eval"])
def test_generate_as_a_stream_leaves_the_mode_that_the_user_gives_meanwhile(first):
    spec = af.spec(BASE, {"block.dropout": 0.5})
    m = getattr(randomise(af.build(spec, dtype=torch.float64), 0), first)()
    wanted = by_hand(model_of(spec), PROMPT, 6)[0, PROMPT.shape[1] :].tolist()
    stream = af.generate(m, PROMPT, max_new_tokens=6, stream=True)
    told = [int(next(stream))]
    for mode in ("train", "eval", "train"):
        getattr(m, mode)()
        af.generate(m, PROMPT, max_new_tokens=2)
        told.append(int(next(stream)))
        assert {module.training for module in m.modules()} == {mode == "train"}
    m.eval()
    told += [int(ids) for ids in stream]
    assert told == wanted
    assert not any(module.training for module in m.modules())


def test_generate_leaves_a_model_that_still_trains():
    m = randomise(af.build(af.spec(BASE)), 0).train()
    ids = af.generate(m, PROMPT, max_new_tokens=4)
    assert all(p.grad is None for p in m.parameters())
    m(ids, labels=ids).loss.backward()
    assert all(p.grad is not None for p in m.parameters())
    ids[0, 0] = 1
    assert ids.dtype == torch.long


def test_generate_gives_back_the_mode_after_an_error():
    m = randomise(af.build(af.spec(BASE)), 0).train()
    with torch.no_grad():
        m.head.weight.fill_(float("nan"))
    with pytest.raises(af.InputError, match="row 0: 37 of 37 logits are NaN"):
        af.generate(m, PROMPT, max_new_tokens=4)
    assert all(module.training for module in m.modules())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_generate_in_a_narrower_dtype_gives_ids(dtype):
    m = randomise(af.build(af.spec(BASE), dtype=dtype), 0)
    assert af.generate(m, PROMPT.int(), max_new_tokens=4, temperature=1.0, seed=0).dtype == torch.long


def test_generate_draws_the_same_for_a_seed_and_another_for_another():
    draws = [af.generate(model(), PROMPT, max_new_tokens=12, temperature=1.0, seed=s)[0].tolist() for s in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2]


def test_generate_with_do_sample_alone_draws_at_temperature_one():
    drawn = af.generate(model(), PROMPT, max_new_tokens=12, do_sample=True, seed=0)
    assert torch.equal(drawn, af.generate(model(), PROMPT, max_new_tokens=12, temperature=1.0, seed=0))
    assert not torch.equal(drawn, af.generate(model(), PROMPT, max_new_tokens=12))


def test_generate_with_do_sample_off_is_greedy_and_warns_of_a_temperature():
    greedy = af.generate(model(), PROMPT, max_new_tokens=6)
    assert torch.equal(greedy, af.generate(model(), PROMPT, max_new_tokens=6, do_sample=False, temperature=1.0))
    with pytest.warns(UserWarning, match="temperature=0.7 has no effect, as do_sample is False") as caught:
        assert torch.equal(greedy, af.generate(model(), PROMPT, max_new_tokens=6, do_sample=False, temperature=0.7))
    assert caught[0].filename == __file__


def test_generate_with_a_mask_of_ones_is_generate_without():
    ones = torch.ones_like(PROMPT)
    assert torch.equal(
        af.generate(model(), PROMPT, max_new_tokens=5, attention_mask=ones),
        af.generate(model(), PROMPT, max_new_tokens=5),
    )


def test_generate_declares_a_length_that_padding_does_not_change():
    m = model({"position": {"kind": "rope", "scaling": {"kind": "dynamic", "original": 8, "factor": 3.0}}})
    own = af.generate(m, PROMPT, max_new_tokens=9, details=True)
    ids = torch.cat((torch.tensor([[3, 3, 3, 3]]), PROMPT), 1)
    mask = torch.tensor([[0, 0, 0, 0, 1, 1, 1]])
    for use_cache in (True, False):
        found = af.generate(m, ids, attention_mask=mask, max_new_tokens=9, details=True, use_cache=use_cache)
        assert_close("promise", found.logprobs, own.logprobs)
    other = af.generate(m, PROMPT, max_new_tokens=9, details=True, rope_length=40)
    assert not torch.equal(other.logprobs, own.logprobs)


@needs_stories
def test_generate_from_a_published_model_gives_its_known_tokens():
    known = json.loads((STORIES / "greedy.json").read_text(encoding="utf-8"))
    found = af.generate(af.load(STORIES), torch.tensor([known["prompt_ids"]]), max_new_tokens=200, stop=())
    assert found[0].tolist() == known["prompt_ids"] + known["new_ids"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"max_length": 5}, "'max_length' is called 'max_new_tokens' here"),
        ({"eos_token_id": 5}, "'eos_token_id' is called 'stop' here"),
        ({"temprature": 1.0}, "'temprature' is unknown; did you mean 'temperature'?"),
        ({"max_length": 5, "topk": 1}, "'max_length' is called .* 'topk' is unknown; did you mean 'top_k'"),
    ],
)
def test_generate_with_an_unknown_option_names_the_right_one(given, words):
    with pytest.raises(TypeError, match=words):
        af.generate(model(), PROMPT, **given)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens: 0 is not at least 1"),
        ({"max_new_tokens": 1.5}, "max_new_tokens: expected a whole number, got 1.5"),
        ({"max_new_tokens": True}, "max_new_tokens: expected a whole number, got True"),
        ({"min_new_tokens": -1}, "min_new_tokens: -1 is not at least 0"),
        ({"min_new_tokens": 9, "max_new_tokens": 8}, "min_new_tokens: 9 is more than max_new_tokens, 8"),
        ({"min_new_tokens": 1, "stop": range(37)}, "every token is a stop token"),
        ({"temperature": -0.1}, "temperature: -0.1 is not a finite number of at least 0"),
        ({"temperature": float("nan")}, "temperature: nan"),
        ({"temperature": float("inf")}, "temperature: inf"),
        ({"temperature": "hot"}, "temperature: 'hot'"),
        ({"temperature": 0, "do_sample": True}, "temperature: 0 takes the likeliest token, but do_sample"),
        ({"do_sample": "yes"}, "do_sample: expected True, False or None"),
        ({"top_k": 0}, "top_k: 0 is not at least 1"),
        ({"top_p": 0.0}, "top_p: 0.0 is not above 0 and at most 1"),
        ({"top_p": 1.1}, "top_p: 1.1 is not above 0 and at most 1"),
        ({"top_p": True}, "top_p: True"),
        ({"seed": -1}, "seed: -1 is not at least 0"),
        ({"seed": 2**64}, "is not below 2\\^63"),
        ({"stop": [37]}, "stop: 37 is not an id below vocab = 37"),
        ({"stop": "the"}, "stop: 'the' is a text; give ids, or the model's tokenizer as tokenizer="),
        ({"stop": [3, "the"]}, "stop: 'the' is a text; give ids, or the model's tokenizer as tokenizer="),
        ({"stop": 1.5}, "stop: expected token ids or texts, got 1.5"),
        ({"stop": [1.5]}, "stop: 1.5 is not an id below vocab = 37"),
        ({"rope_length": 9}, "rope_length: no position scheme"),
        ({"attention_mask": torch.ones(1, 4)}, r"attention_mask: expected \(batch, tokens\) = \(1, 3\).* got \(1, 4\)"),
        ({"attention_mask": [1, 1, 1]}, "attention_mask: expected .* got list"),
        ({"attention_mask": torch.tensor([[1, 2, 1]])}, "1 is real and 0 is padding, but it holds 2"),
        ({"attention_mask": torch.tensor([[0, 0, 0]])}, "attention_mask: row 0 has no real token"),
    ],
)
def test_generate_refuses_an_option_out_of_bounds(given, words):
    with pytest.raises(af.InputError, match=words):
        af.generate(model(), PROMPT, **given)


def test_generate_says_all_that_is_wrong_at_once():
    with pytest.raises(af.InputError) as caught:
        af.generate(model(), torch.tensor([[1, 99]]), max_new_tokens=-1, top_p=3, stop=[-4])
    lines = str(caught.value).splitlines()
    assert len(lines) == 5
    for words in (
        "input_ids: 99 in row 0, column 1 is not an id below vocab = 37",
        "max_new_tokens: -1",
        "top_p: 3",
        "stop: -4",
    ):
        assert any(words in line for line in lines), words


@pytest.mark.parametrize(
    ("ids", "error", "words"),
    [
        (torch.zeros(1, 0, dtype=torch.long), af.InputError, "at least one token"),
        (torch.zeros(0, 3, dtype=torch.long), af.InputError, "a batch of 0 rows"),
        (torch.tensor([1, 2]), af.InputError, r"expected \(batch, tokens\)"),
        (torch.tensor([[1.0]]), af.InputError, "whole numbers"),
        (torch.tensor([[-1]]), af.InputError, "input_ids: -1 in row 0, column 0"),
        ([[1, 2]], TypeError, "expected a tensor"),
    ],
)
def test_generate_refuses_ids_that_are_no_ids(ids, error, words):
    with pytest.raises(error, match=words):
        af.generate(model(), ids, max_new_tokens=2)


def test_generate_refuses_a_prompt_longer_than_the_positions():
    m = model({"context": 4, "position": {"kind": "learned"}})
    with pytest.raises(af.InputError, match="a prompt of 5 tokens, but this model has 4 positions; shorten it"):
        af.generate(m, torch.ones(1, 5, dtype=torch.long), max_new_tokens=1)
    m = model(TWO | {"context": 4, "position": {"kind": "learned"}})
    with pytest.raises(af.InputError, match="a source of 5 tokens, but this model has 4 positions"):
        af.generate(m, torch.ones(1, 5, dtype=torch.long), max_new_tokens=1)


def test_generate_without_a_number_refuses_a_prompt_that_leaves_no_room():
    with pytest.raises(af.InputError, match="max_new_tokens: the prompt fills the 4 tokens"):
        af.generate(model({"context": 4}), torch.ones(1, 4, dtype=torch.long))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"topology": "encoder"}, "an encoder reads a text at once"),
        ({"head": {"kind": "token", "labels": 3}}, "a 'token' head predicts no tokens"),
        ({"head": {"kind": "none"}}, "a 'none' head predicts no tokens"),
        (
            {"embed": {"kind": "series"}, "vocab": 0, "head": {"kind": "none"}, "ids": {"pad": None, "start": None}},
            "this model reads values",
        ),
        (TWO | {"ids.start": None}, "no ids.start"),
    ],
)
def test_generate_refuses_a_model_that_continues_no_text(changes, words):
    with pytest.raises(af.InputError, match=words):
        af.generate(model(changes), PROMPT, max_new_tokens=2)


@pytest.mark.parametrize(
    "changes",
    [
        TWO | {"encoder.attention.pattern": "symmetric_window(2) | global_tokens"},
        {"attention.pattern": "causal & (window(2) | global_tokens)"},
    ],
    ids=["encoder-decoder", "decoder"],
)
def test_generate_hears_which_tokens_are_global(changes):
    m, prompt = model(changes), torch.arange(11)[None]
    marks = torch.zeros_like(prompt)
    marks[0, 3] = 1
    found = af.generate(m, prompt, global_mask=marks, max_new_tokens=8, details=True)
    again = af.generate(m, prompt, global_mask=marks, max_new_tokens=8, details=True, use_cache=False)
    assert_close("promise", found.logprobs, again.logprobs)
    assert not torch.equal(found.logprobs, af.generate(m, prompt, max_new_tokens=8, details=True).logprobs)
    with pytest.raises(af.InputError, match=r"global_mask: expected \(batch, tokens\) = \(1, 11\)"):
        af.generate(m, prompt, global_mask=marks[:, :4])
    with pytest.raises(af.InputError, match="global_mask: no pattern of this model reads it"):
        af.generate(model(), prompt, global_mask=marks)


def test_generate_of_a_prefix_lm_refuses_a_row_shorter_than_the_prefix():
    m = model({"attention.pattern": "causal | prefix(6)"})
    ids, mask = torch.arange(16).view(2, 8), torch.tensor([[0] * 5 + [1] * 3, [1] * 8])
    with pytest.raises(
        af.InputError, match="the first 6 tokens of this prefix-LM see each other both ways, but a prompt has 3"
    ):
        af.generate(m, ids, attention_mask=mask, max_new_tokens=4)
    anew = af.generate(m, ids, attention_mask=mask, max_new_tokens=4, use_cache=False)
    alone = af.generate(m, ids[:1, 5:], max_new_tokens=4, use_cache=False)
    assert torch.equal(anew[:1, 8:], alone[:, 3:])


def test_generate_of_more_tokens_than_there_is_memory_for_is_refused_at_once():
    model = af.build(af.spec(BASE, {"position.kind": "rope"}))
    with pytest.raises(af.InputError, match=r"max_new_tokens: 1,000,000,00\d tokens in each of 1 rows take"):
        af.generate(model, torch.zeros(1, 3, dtype=torch.long), max_new_tokens=10**9)


def test_generate_after_a_prompt_beyond_the_context_warns():
    model = af.build(af.spec(BASE, {"position.kind": "alibi", "context": 8}))
    with pytest.warns(UserWarning, match="a prompt of 9 tokens, and this model is made for 8"):
        af.generate(model, torch.zeros(1, 9, dtype=torch.long), max_new_tokens=2)


def test_generate_whose_pass_fails_raises_that_error_and_gives_everything_back(monkeypatch):
    # A copy: the model itself is kept for other tests.
    model = copy.deepcopy(model_of(af.spec(BASE))).train()
    calls = iter(range(100))
    honest = ModelRunner.decode

    def fails(self, *given):
        if next(calls) == 2:
            raise MemoryError("no room")
        return honest(self, *given)

    monkeypatch.setattr(ModelRunner, "decode", fails)
    ids = torch.tensor([[5, 17, 3], [8, 8, 9]])
    with pytest.raises(MemoryError, match="no room"):
        af.generate(model, ids, max_new_tokens=8)
    assert all(module.training for module in model.modules())
    model.eval()
    assert af.generate(model, ids, max_new_tokens=8).shape == (2, 11)
