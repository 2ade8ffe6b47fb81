"""A tiny model with a tokenizer of its own, for options that are texts."""

import functools

import anyformer as af
from anyformer.data.tokenizer import Tokenizer, train_bpe
from anyformer.model.model import Model
from tests.contract.contracts import model_of
from tests.contract.draw import BASE


@functools.cache
def tokenizer() -> Tokenizer:
    return train_bpe(["yes no maybe yes please no thanks the cat sat on the mat. " * 4, "naïve café 日本語 " * 9], 300)


@functools.cache
def model(eos: tuple[int, ...] = (0,)) -> Model:
    return model_of(af.spec(BASE, {"vocab": 300, "ids.eos": list(eos), "context": 64}))
