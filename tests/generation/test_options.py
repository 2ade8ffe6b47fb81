"""The options of a request: what is refused, with which words, and all at once."""

import pytest
import torch

import anyformer as af
from anyformer.generation.params.sampling_params import SamplingParams, read_params
from anyformer.generation.samplers.logits_processors import BadWords, RepetitionPenalty, Temperature, TopK, TopP
from tests.generation.choosing import resolved
from tests.generation.words import model, tokenizer

PROMPT = torch.tensor([[5, 6, 7]])
HUGE = 2**70
DRAW = {"temperature": 1.0}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"max_new_tokens": HUGE}, "max_new_tokens: 1180591620717411303424 is not below 2\\^63"),
        ({"max_new_tokens": 10**40}, "max_new_tokens: a number of more than 30 digits is not below"),
        ({"temperature": True}, "temperature: True is not a finite number"),
        ({"temperature": HUGE**20}, "temperature: .* is not a finite number"),
        ({"min_p": -0.1}, "min_p: -0.1 is not between 0 and 1"),
        ({"min_p": float("nan")}, "min_p: nan is not between 0 and 1"),
        ({"typical_p": 0}, "typical_p: 0 is not above 0 and at most 1"),
        ({"top_k": 2.0}, "top_k: expected a whole number, got 2.0"),
        ({"repetition_penalty": 0}, "repetition_penalty: 0 is not above 0 and at most 10,000"),
        ({"repetition_penalty": float("inf")}, "repetition_penalty: inf"),
        ({"presence_penalty": "1"}, "presence_penalty: '1' is not a number between"),
        ({"frequency_penalty": float("nan")}, "frequency_penalty: nan"),
        ({"logit_bias": {300: 1.0}}, "logit_bias: 300 is not an id below vocab = 300"),
        ({"logit_bias": {3: 1e300}}, "logit_bias: 3: 1e\\+300 is not a number between -10,000 and 10,000"),
        ({"logit_bias": [3]}, "logit_bias: expected a dict of id and number"),
        ({"no_repeat_ngram_size": -1}, "no_repeat_ngram_size: -1 is not at least 0"),
        ({"bad_words": "cat"}, "bad_words: expected a list of texts or of lists of ids"),
        ({"bad_words": [[]]}, "bad_words: \\[\\] has no ids"),
        ({"bad_words": [[1, 300]]}, "bad_words: 300 is not an id below"),
        ({"bad_words": ["\ud800"]}, "bad_words: .* half of a UTF-16 pair"),
        ({"stop": "x" * 10_000}, "stop: a text of 10,000 characters; the most is 1,000"),
        ({"stop": ["a"] * 17}, "stop: 17 texts; the most is 16"),
        ({"stop": ["a", ""]}, "stop: an empty text is everywhere"),
        ({"stop": [True]}, "stop: True is not an id"),
        ({"seed": HUGE}, "seed: 1180591620717411303424 is not below"),
        ({"seed": [1, 2]}, "seed: 2 seeds for 1 rows; give one for each"),
        ({"seed": ["a"]}, "seed: expected a whole number, got 'a'"),
        ({"choices": "yes"}, "choices: expected a list of texts"),
        ({"choices": []}, "choices: 0 texts; give 1 to 1,024"),
        ({"choices": ["yes", "yes"]}, "choices: 'yes' and 'yes' have the same tokens"),
        ({"choices": ["yes", "yes please"], "stop": ()}, "choices: 'yes' begins 'yes please', and without a stop token"),
        ({"choices": ["yes"], "bad_words": [[1]]}, "choices: bad_words could bar or cut"),
        ({"choices": ["yes"], "stop": "e"}, "choices: stop could bar or cut"),
        ({"choices": ["the cat sat on the mat"], "max_new_tokens": 2}, "choices: the longest needs . tokens, more than"),
        ({"num_beams": 0}, "num_beams: 0 is not at least 1"),
        ({"num_beams": 4, "stream": True}, "num_beams: a search knows its tokens only at the end"),
        ({"num_beams": 4, "temperature": 1.0}, "num_beams: a search draws nothing"),
        ({"num_beams": 4, "stop": "a"}, "num_beams: a search ends at ids, not at texts"),
        ({"num_beams": 4, "num_beam_groups": 3, "diversity_penalty": 1.0}, "3 groups do not share 4 beams evenly"),
        ({"num_beams": 4, "num_beam_groups": 2}, "diversity_penalty: keeps groups of beams apart"),
        ({"num_beams": 4, "n": 5}, "n: 5 answers, but num_beams = 4"),
        ({"num_beams": 4, "early_stopping": 1}, "early_stopping: expected True, False or 'never', got 1"),
        ({"length_penalty": 2.0}, "length_penalty: only beams read it; set num_beams"),
        ({"penalty_alpha": 0.6}, "penalty_alpha: contrastive search weighs the top_k likeliest tokens; give top_k"),
        ({"penalty_alpha": 0.6, "top_k": 4, "stream": True}, "penalty_alpha: a search knows its tokens only at the end"),
        ({"n": 3}, "n: 3 answers of the likeliest tokens are the same; give a temperature"),
        ({"n": True}, "n: expected a whole number"),
        ({"logprobs": 3}, "logprobs: is answered with details=True only"),
        ({"logprobs": 301, "details": True}, "logprobs: 301 is not at most 300"),
        ({"logprobs": True, "details": True}, "logprobs: expected a whole number, got True"),
        ({"prompt_logprobs": 1, "stream": True, "details": True}, "prompt_logprobs: the steps of a stream are new tokens"),
    ],
)  # fmt: skip
def test_generate_refuses_an_option(given, words):
    with pytest.raises(af.InputError, match=words):
        af.generate(model(), PROMPT, tokenizer=tokenizer(), **given)


@pytest.mark.parametrize(
    ("given", "words"),
    [({"choices": ["yes"]}, "choices: 'yes' is a text"), ({"bad_words": ["yes"]}, "bad_words: 'yes' is a text")],
)
def test_generate_without_a_tokenizer_refuses_texts(given, words):
    with pytest.raises(af.InputError, match=f"{words}; give ids, or the model's tokenizer as tokenizer="):
        af.generate(model(), PROMPT, **given)


def test_options_say_all_that_is_wrong_at_once():
    bad = SamplingParams(
        temperature=-1, top_p=0, stop=["x" * 1001, 999], seed=-1, n=0, num_beams=HUGE, logit_bias={3: "a"}
    )
    with pytest.raises(af.InputError) as caught:
        resolved(bad, model().spec, tokenizer=tokenizer())
    lines = str(caught.value).splitlines()
    assert lines[0] == "generate(...):"
    for name in ("temperature", "top_p", "stop: a text", "stop: 999", "seed", "n:", "num_beams", "logit_bias"):
        assert sum(line.strip().startswith(name) for line in lines) == 1, name


@pytest.mark.parametrize("given", [{"top_k": 4}, {"top_p": 0.5}, {"min_p": 0.1}, {"typical_p": 0.5}])
def test_generate_warns_of_a_filter_without_a_draw(given):
    (name,) = given
    with pytest.warns(UserWarning, match=f"{name} has no effect without a draw; give a temperature") as caught:
        af.generate(model(), PROMPT, max_new_tokens=1, **given)
    assert caught[0].filename == __file__
    # At temperature 0 they have the effect that they would have next to it.
    af.generate(model(), PROMPT, max_new_tokens=1, temperature=0, **given)


def test_plan_of_the_usual_options_says_so_and_leaves_out_what_is_off():
    spec = model().spec
    plan = resolved(
        SamplingParams(temperature=0.7, top_k=4, top_p=0.9, repetition_penalty=1.0, presence_penalty=0), spec
    )
    assert plan.batchable
    assert not plan.reads_history
    assert plan.logits_processors == (Temperature(0.7), TopK(4), TopP(0.9))
    assert (plan.temperature, plan.top_k, plan.top_p, plan.min_p) == (0.7, 4, 0.9, 0.0)
    assert resolved(SamplingParams(), spec).logits_processors == ()
    other = resolved(SamplingParams(temperature=1.0, repetition_penalty=1.2), spec)
    assert other.logits_processors == (RepetitionPenalty(1.2),)
    assert other.reads_history
    assert not other.batchable
    assert not resolved(SamplingParams(temperature=1.0, typical_p=0.5), spec).batchable


def test_bad_words_as_texts_are_barred_at_the_beginning_of_a_text_and_inside():
    words = tokenizer()
    (sampler,) = resolved(
        SamplingParams(bad_words=["cat", [4, 5], 7, "cat"]), model().spec, tokenizer=words
    ).logits_processors
    assert sampler == BadWords((tuple(words.encode("cat")), tuple(words.encode(" cat")), (4, 5), (7,)))


def test_options_by_name_know_the_familiar_ones():
    assert read_params({"num_return_sequences": 3, "top_p": 0.5}) == SamplingParams(n=3, top_p=0.5)
    with pytest.raises(TypeError, match="'n' and 'num_return_sequences' mean the same; give one"):
        read_params({"num_return_sequences": 3, "n": 3})
    with pytest.raises(
        TypeError, match=r"serve\(...\): 'max_tokens' is called 'max_new_tokens' here; 'topp' is unknown"
    ):
        read_params({"topp": 1, "max_tokens": 3}, caller="serve")
