"""From a text to what a model reads: templates, bos tokens, and the blank at the end."""

import pytest
import tokenizers
import torch
from tokenizers.processors import TemplateProcessing

import anyformer as af
from anyformer.data.tokenizer import Tokenizer, train_bpe
from anyformer.errors import InputError
from anyformer.generation.text.detokenizer import Detokenizer
from anyformer.generation.text.prompt import read_prompt
from tests.contract.draw import BASE

TEXT = "the cat sat on the mat, and the dog sat on the cat; the cat ran.\n" * 6


@pytest.fixture(scope="module")
def trained() -> Tokenizer:
    return train_bpe([TEXT], 300)


def spec(tokenizer: Tokenizer, **ids):
    return af.spec(BASE | {"vocab": tokenizer.vocab, "ids": ids})


def templated(trained: Tokenizer, single: str) -> Tokenizer:
    inner = tokenizers.Tokenizer.from_str(trained.to_json())
    inner.post_processor = TemplateProcessing(single=single, special_tokens=[("<|endoftext|>", 0)])
    return Tokenizer(inner)


def test_prompt_of_a_separating_token_is_the_text_alone(trained):
    read = read_prompt(spec(trained, bos=0, eos=[0]), trained, "the cat")
    assert list(read.ids) == trained.encode("the cat")


def test_prompt_of_a_beginning_token_begins_with_it(trained):
    read = read_prompt(spec(trained, bos=0, eos=[5]), trained, "the cat")
    assert list(read.ids) == [0, *trained.encode("the cat")]


def test_prompt_of_a_template_is_what_the_template_says(trained):
    made = templated(trained, "<|endoftext|> $A")
    assert list(read_prompt(spec(made, bos=0, eos=[0]), made, "the cat").ids) == [0, *trained.encode("the cat")]
    made = templated(trained, "$A <|endoftext|>")
    # An eos at the end would end the text before the model has said a word.
    assert list(read_prompt(spec(made, bos=7, eos=[0]), made, "the cat").ids)[-1] != 0


def test_prompt_that_is_missing_is_the_bos_token_or_refused(trained):
    assert read_prompt(spec(trained, bos=0, eos=[0]), trained, None).ids == (0,)
    with pytest.raises(InputError, match=r"no ids\.bos"):
        read_prompt(spec(trained, eos=[0]), trained, None)


def test_prompt_with_a_blank_at_its_end_takes_it_back(trained):
    read = read_prompt(spec(trained, bos=0, eos=[0]), trained, "the ")
    assert list(read.ids) == trained.encode("the")
    blank = trained.encode(" ")
    assert len(blank) == 1
    assert read.repeated == 1
    assert blank[0] in read.first
    assert trained.encode("the cat")[-1] in read.first
    assert all(trained.decode([i]).startswith(" ") for i in read.first)
    others = set(range(trained.vocab)) - set(read.first) - {0}
    assert not any(trained.decode([i]).startswith(" ") for i in others)


def test_prompt_with_many_blanks_takes_back_only_the_last():
    code = "".join(f"def f{i}(self):\n    return {i}\n\n" for i in range(40))
    trained = train_bpe([code], 300)
    read = read_prompt(spec(trained, bos=0, eos=[0]), trained, "def f1(self):\n    ")
    whole = trained.encode("def f1(self):\n    return")
    # What a text of the same kind goes on with is allowed, after what stands before it there.
    assert list(read.ids) == whole[: len(read.ids)]
    assert whole[len(read.ids)] in read.first
    assert read.repeated == 1


def test_prompt_of_a_blank_alone_or_without_one_stays_as_it_is(trained):
    for text in (" ", "the", "the\n"):
        read = read_prompt(spec(trained, bos=0, eos=[0]), trained, text)
        assert (list(read.ids), read.first, read.repeated) == (trained.encode(text), None, 0)


def test_generation_after_a_blank_shows_it_once(trained):
    model = af.build(spec(trained, bos=0, eos=[0]), seed=3)
    read = read_prompt(model.spec, trained, "the ")
    for seed in range(6):
        ids = af.generate(
            model, torch.tensor([read.ids]), first=read.first, max_new_tokens=5, temperature=1.0, seed=seed, stop=()
        )[0].tolist()
        assert ids[len(read.ids)] in read.first
        stream = Detokenizer(trained, read.ids, repeated=read.repeated)
        shown = "the " + "".join(stream.push(i) for i in ids[len(read.ids) :]) + stream.end()
        assert shown == trained.decode(ids)


@pytest.mark.parametrize("first", [[], "ab", [99999], [-1], [1.5]])
def test_generation_refuses_first_tokens_that_are_none(trained, first):
    model = af.build(spec(trained))
    with pytest.raises(InputError, match=r"first: .* is not a list of ids below vocab"):
        af.generate(model, torch.tensor([[1, 2]]), first=first, max_new_tokens=1)
