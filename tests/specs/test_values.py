"""Specs are values: every dataclass below them is frozen, hashable and made by keyword only."""

import copy
import dataclasses
import importlib
import inspect
import pickle
import pkgutil
from typing import Any

import pytest

import anyformer.specs
from anyformer.parts.positions.rope_scaling import RopeScaling
from anyformer.registry import OpenAxis
from anyformer.specs import Embed, FeedForward, Head, Init, Mixer, ModelSpec, Norm, NormPlacement, Pattern, Position
from anyformer.specs.codec import draft
from anyformer.specs.patterns import Pair
from tests.specs.small import small

AXES: list[type[OpenAxis]] = [Embed, FeedForward, Head, Init, Mixer, Norm, Pattern, Position, RopeScaling]


def dataclasses_of_specs() -> list[type[Any]]:
    found: dict[str, type[Any]] = {}
    for module in pkgutil.iter_modules(anyformer.specs.__path__):
        for node in vars(importlib.import_module(f"anyformer.specs.{module.name}")).values():
            if inspect.isclass(node) and dataclasses.is_dataclass(node):
                found[f"{node.__module__}.{node.__qualname__}"] = node
    for axis in AXES:
        for kind in axis.kinds():
            leaf: Any = axis.named(kind)
            found[f"{leaf.__module__}.{leaf.__qualname__}"] = leaf
    return [found[name] for name in sorted(found)]


EVERY = dataclasses_of_specs()


def made(node: type[Any]) -> Any:
    """An instance with a default or a stand-in in every field."""
    if node is ModelSpec:
        return small()
    given = {"spec": small(), "stack": small().stacks[0]}
    return node(**draft(node, given | ({"first": pattern(), "second": pattern()} if issubclass(node, Pair) else {})))


def pattern() -> Pattern:
    return Pattern.named("causal")()


def test_the_list_of_dataclasses_is_not_empty():
    names = {node.__name__ for node in EVERY}
    assert names > {
        "ModelSpec",
        "Attention",
        "NormPlacement",
        "Overrides",
        "Layers",
        "Stack",
        "Count",
        "Rope",
        "Swiglu",
    }


@pytest.mark.parametrize("node", EVERY, ids=lambda node: node.__name__)
def test_dataclass_is_frozen_and_keyword_only(node: type[Any]):
    parameters = node.__dataclass_params__
    assert parameters.frozen
    assert all(field.kw_only for field in dataclasses.fields(node))
    if dataclasses.fields(node):
        with pytest.raises(TypeError, match="positional argument"):
            node(1)


@pytest.mark.parametrize("node", [node for node in EVERY if node.__name__ != "Pair"], ids=lambda node: node.__name__)
def test_dataclass_is_hashable_and_equal_to_its_copy(node: type[Any]):
    value, again = made(node), made(node)
    assert hash(value) == hash(again)
    assert value == again == copy.deepcopy(value) == pickle.loads(pickle.dumps(value))
    for field in dataclasses.fields(node)[:1]:
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, field.name, None)


def test_spec_survives_pickling_with_its_stacks():
    spec = small({"layers": {"0": {"position": "none"}}})
    assert spec.stacks == pickle.loads(pickle.dumps(spec)).stacks


def test_spec_replaced_by_dataclasses_is_checked():
    assert dataclasses.replace(small(), depth=2) == small({"depth": 2})
    with pytest.raises(ValueError, match="depth: 0 is not between 1 and 10000"):
        dataclasses.replace(small(), depth=0)


@pytest.mark.parametrize(
    ("norm", "final"),
    [
        ({}, True),
        ({"placement": "post"}, False),
        ({"placement": "none"}, False),
        ({"placement": "output"}, True),
        ({"placement": "post", "attention_placement": "pre"}, True),
        ({"attention_placement": "post", "ffn_placement": "post"}, False),
        ({"placement": "post", "final": True}, True),
        ({"final": False}, False),
    ],
)
def test_final_norm_is_there_unless_both_branches_are_placed_post_or_none(norm: dict[str, Any], final: bool):
    assert NormPlacement(**norm).has_final() is final
