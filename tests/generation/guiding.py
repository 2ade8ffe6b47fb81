"""Tokenizers and models on which a grammar can be held against what it must allow, token by token."""

import functools
import itertools
import re
from typing import Any

import numpy as np
import tokenizers
import torch
from tokenizers import decoders, models

import anyformer as af
from anyformer.data.tokenizer import Tokenizer
from anyformer.generation.guided.guide import Guide
from anyformer.model.model import Model
from tests.contract.contracts import randomise
from tests.contract.draw import BASE

PIECES = ["a", "b", "c", "1", "2", "-", " ", "ab", "bc", "abc", "ca", "12", "a-", "-1", "b ", "a1", "cc", "1-2"]
"""What tokens 1 to 18 say; token 0 is the end."""


@functools.cache
def pieces() -> Tokenizer:
    """A tokenizer of a few texts, some of which begin others, and a special token with the id 0."""
    vocab = {"<end>": 0} | {piece: i for i, piece in enumerate(PIECES, 1)}
    inner = tokenizers.Tokenizer(models.BPE(vocab, [], unk_token="a"))
    inner.add_special_tokens(["<end>"])
    inner.decoder = decoders.Fuse()
    return Tokenizer(inner)


@functools.cache
def model(seed: int = 0, eos: tuple[int, ...] = (0,), vocab: int = len(PIECES) + 1) -> Model:
    spec = af.spec(BASE, {"vocab": vocab, "ids.eos": list(eos), "context": 96})
    return randomise(af.build(spec, dtype=torch.float64), seed).eval()


def texts(expression: str, longest: int = 6, letters: str = "abc12- ") -> set[str]:
    """All texts of up to so many letters that an expression matches."""
    read = re.compile(expression)
    every = ("".join(each) for length in range(longest + 1) for each in itertools.product(letters, repeat=length))
    return {text for text in every if read.fullmatch(text)}


def allowed(language: set[str], said: str, eos: tuple[int, ...] = (0,)) -> set[int]:
    """The tokens after which some text of a language can still be reached, by looking at all of them."""
    some = {i for i, piece in enumerate(PIECES, 1) if any(text.startswith(said + piece) for text in language)}
    return some - {*eos} | ({*eos} if said in language else set())


def mask_of(guide: Guide, new: list[int], vocab: int = len(PIECES) + 1) -> set[int]:
    """The tokens that a guide allows."""
    return {*np.unpackbits(guide.mask(new), bitorder="little")[:vocab].nonzero()[0].tolist()}


def fits(value: Any, schema: Any, root: Any = None) -> bool:
    """Whether a value is what a schema says, for the keywords that the tests use."""
    root = schema if root is None else root
    if isinstance(schema, bool):
        return schema
    if schema.get("$ref") == "#":
        return fits(value, root, root)
    kinds = {"object": dict, "array": list, "string": str, "integer": int, "number": int | float, "boolean": bool, "null": type(None)}  # fmt: skip
    kind = schema.get("type")
    if kind is not None and (not isinstance(value, kinds[kind]) or (kind in ("integer", "number") and isinstance(value, bool))):  # fmt: skip
        return False
    if "anyOf" in schema and not any(fits(value, each, root) for each in schema["anyOf"]):
        return False
    if "enum" in schema and value not in schema["enum"]:
        return False
    if "const" in schema and value != schema["const"]:
        return False
    if isinstance(value, dict):
        known, other = schema.get("properties", {}), schema.get("additionalProperties", True)
        inside = all(fits(each, known.get(name, other), root) for name, each in value.items())
        return inside and {*schema.get("required", ())} <= value.keys()
    if isinstance(value, list):
        enough = schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value))
        return enough and all(fits(each, schema.get("items", True), root) for each in value)
    if isinstance(value, str):
        enough = schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value))
        return enough and re.search(schema.get("pattern", ""), value) is not None
    if isinstance(value, int | float) and not isinstance(value, bool):
        return schema.get("minimum", value) <= value <= schema.get("maximum", value)
    return True
