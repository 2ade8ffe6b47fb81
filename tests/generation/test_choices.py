"""Constrained choice: exactly one of some texts, with the probability that the model gives it among them."""

import pytest
import torch

import anyformer as af
from tests.generation.words import model, tokenizer
from tests.tolerances import assert_close

CHOICES = ["yes", "no", "yes please", "no thanks", "maybe"]


def prompts() -> torch.Tensor:
    words = tokenizer()
    return torch.tensor([words.encode("the cat sat")[:3], words.encode("on the mat")[:3]])


@torch.no_grad()
def chances(ids: torch.Tensor) -> dict[str, float]:
    """Of each choice, by the definition: at each step the share of its token among those that go on with a choice."""
    words, m = tokenizer(), model()
    answers = {text: words.encode(text) for text in CHOICES}
    # One that is the beginning of another ends with the stop token.
    for text, answer in answers.items():
        if any(other != answer and other[: len(answer)] == answer for other in answers.values()):
            answer.append(0)
    found = {}
    for text, answer in answers.items():
        total = 1.0
        for i, token in enumerate(answer):
            left = {other[i] for other in answers.values() if other[:i] == answer[:i]}
            probs = m(torch.tensor([ids.tolist() + answer[:i]])).logits[0, -1].softmax(-1)
            total *= float(probs[token] / probs[sorted(left)].sum())
        found[text] = total
    return found


@pytest.mark.parametrize("given", [{}, {"temperature": 5.0, "seed": 3, "n": 20}, {"use_cache": False}])
def test_generate_with_choices_answers_exactly_one(given):
    found = af.generate(model(), prompts(), choices=CHOICES, tokenizer=tokenizer(), details=True, **given)
    for row, length, text, reason in zip(found.ids, found.lengths, found.met, found.reasons, strict=True):
        assert tokenizer().decode(row[3 : 3 + length].tolist()) == text
        assert text in CHOICES
        assert reason == "stop"
    if "n" in given:
        assert len(set(found.met)) >= 4


def test_generate_with_choices_draws_each_with_its_probability():
    ids, count = prompts()[0], 4000
    given = {"choices": CHOICES, "tokenizer": tokenizer(), "details": True, "temperature": 1.0, "n": 1000}
    found = [text for seed in range(4) for text in af.generate(model(), ids[None], seed=seed, **given).met]
    want = chances(ids)
    assert_close(
        "promise", torch.tensor(sum(want.values()), dtype=torch.float64), torch.tensor(1.0, dtype=torch.float64)
    )
    for text, p in want.items():
        assert abs(found.count(text) / count - p) < 5 * (p * (1 - p) / count) ** 0.5 + 1e-9


def test_generate_with_one_choice_says_it():
    found = af.generate(model(), prompts(), choices=["no thanks"], tokenizer=tokenizer(), details=True)
    assert found.met == ("no thanks",) * 2


def test_generate_with_choices_in_a_batch_is_generate_alone():
    given = {"choices": CHOICES, "tokenizer": tokenizer(), "temperature": 3.0, "details": True}
    together = af.generate(model(), prompts(), seed=[7, 8], **given)
    for i, row in enumerate(prompts()):
        assert af.generate(model(), row[None], seed=[7 + i], **given).met == together.met[i : i + 1]
