"""Whatever stands in a spec file, reading it gives a spec or a SpecError, never another exception."""

import copy
import random
import tomllib
from typing import Any

import pytest

from anyformer.errors import SpecError
from anyformer.specs import FeedForward, ModelSpec, Norm, Pattern, Position
from tests.specs.small import SMALL
from tests.specs.test_written import RICH

GARBAGE: list[Any] = [
    None, True, False, 0, 1, -1, 2, 3, 1000, 0.0, 0.5, -1.5, 1e300, float("inf"), float("nan"), "", "none", "x", "rope",
    "layernorm", "window(0)", "causal & (", "2 a, rest b", "1/sqrt(head_dim)", "1/0", [], [1], ["a", "b"], [[1]], {},
    {"kind": 3}, {"kind": "x"}, {"kind": "rope", "theta": "x"}, {"a": {"b": {"c": 1}}}, {"order": "a", "a": 3},
    (1, 2), b"x",
]  # fmt: skip


def paths(table: dict[str, Any], above: str = "") -> list[str]:
    found: list[str] = []
    for name, value in table.items():
        found += [above + name, *(paths(value, f"{above}{name}.") if isinstance(value, dict) else [])]
    return found


def with_garbage(rng: random.Random, data: dict[str, Any], known: list[str]) -> dict[str, Any]:
    data = copy.deepcopy(data)
    for _ in range(rng.randint(1, 4)):
        *parents, last = rng.choice(known).split(".")
        table = data
        for parent in parents:
            inner = table.get(parent)
            table[parent] = table = inner if isinstance(inner, dict) else {}
        if rng.random() < 0.15:
            table.pop(last, None)
        else:
            table[last + "x" * (rng.random() < 0.1)] = copy.deepcopy(rng.choice(GARBAGE))
    return data


FULL = [ModelSpec.from_toml(RICH).to_data(), ModelSpec.from_data(SMALL).to_data(), tomllib.loads(RICH)]
KNOWN = sorted({path for data in FULL for path in paths(data)} | {
    "attention.qk_norm.eps", "attention.v_norm", "attention.temperature.kind", "position.scaling",
    "position.scaling.kind", "layers.order", "layers.0", "layers.a.attention.pattern", "encoder.layers.order",
    "encoder.norm", "decoder.attention",
    "attention.pattern.size", "head.labels", "embed.patch",
})  # fmt: skip


FITTING = {"depth": 3, "ffn.width": 20, "position.kind": "alibi", "norm.kind": "rmsnorm", "attention.softcap": 5.0,
           "attention.qk_norm.scope": "heads", "attention.heads": 8, "layers.0.ffn.width": 12, "encoder.depth": 2,
           "block": None, "norm.placement": "sandwich", "init": "gpt2", "loss.z": 0.1, "layers.order": None,
           "head.tied": True}  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
def test_data_with_garbage_is_read_or_refused(seed: int):
    rng, refused, read = random.Random(seed), 0, 0
    for _ in range(150):
        data = with_garbage(rng, rng.choice(FULL), KNOWN)
        try:
            spec = ModelSpec.from_data(data)
        except SpecError:
            refused += 1
        else:
            read += 1
            assert ModelSpec.from_toml(spec.to_toml()) == spec, data
            assert spec.count().params > 0, data
    assert refused > 30
    assert read > 0


@pytest.mark.parametrize("seed", range(4))
def test_change_with_garbage_is_applied_or_refused(seed: int):
    rng, refused, made = random.Random(seed), 0, 0
    nodes = [axis.named(kind) for axis in (FeedForward, Norm, Position) for kind in axis.kinds()]
    values = GARBAGE + [leaf() for leaf in nodes if leaf is not None] + [Pattern.named("window")(size=3)]
    specs = [ModelSpec.from_toml(RICH), ModelSpec.from_data(SMALL)]
    for _ in range(150):
        changes = {path: rng.choice(values) for path in rng.sample(KNOWN, rng.randint(1, 2))}
        changes |= {path: FITTING[path] for path in rng.sample(sorted(FITTING), 1)} if rng.random() < 0.5 else {}
        changes = {path: FITTING.get(path, value) if rng.random() < 0.5 else value for path, value in changes.items()}
        spec = rng.choice(specs)
        try:
            varied = spec.vary(changes)
        except SpecError:
            refused += 1
        else:
            made += 1
            assert ModelSpec.from_toml(varied.to_toml()) == varied, changes
    assert refused > 30
    assert made > 0
