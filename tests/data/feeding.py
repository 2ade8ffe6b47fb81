"""A small spec and small data for any objective, from what its class says that it needs."""

from types import SimpleNamespace

import numpy as np
import torch

import anyformer as af
from anyformer.data.dataset import Examples
from anyformer.data.loader import BatchLoader
from anyformer.data.objectives import Objective
from anyformer.specs.model import ModelSpec

VOCAB = 64
TEXT = 40
"""Ids from 8 to here are text; those above are sentinels, those below special."""
IDS = {"pad": 0, "bos": 1, "eos": [2], "start": 3}
INDEX = SimpleNamespace(ids={"mask": 4, "cls": 5, "sep": 6}, sentinels=tuple(range(63, 50, -1)))
SPECS = {
    "prefix": {"attention.pattern": "causal | prefix(3)"},
    "triplet": {"head.labels": 1},
}
"""What an objective needs of a spec besides what its class says."""
EVERY = [(kind, way) for kind in Objective.kinds() for way in Objective.named(kind).ways]


def make(kind, **fields):
    """An objective with the ids of a tokenizer."""
    return Objective.named(kind)(**fields).ready(INDEX, None)


def spec_for(objective, **changes):
    """A spec that the objective fits."""
    heads = {"lm": {}, "regression": {"outputs": 2}}
    data = {
        "topology": objective.topologies[0], "vocab": VOCAB, "width": 16, "depth": 2, "context": 64,
        "attention": {"heads": 2}, "position": {"kind": "rope"}, "ids": IDS,
        "head": {"kind": objective.heads[0], **heads.get(objective.heads[0], {"labels": 3})},
    }  # fmt: skip
    if "values" in objective.columns:
        data |= {"vocab": 0, "embed": {"kind": "series", "channels": 3}, "ids": {}}
    return ModelSpec.from_data(data).vary(SPECS.get(objective.kind, {}) | changes)


def examples_for(objective, count=11, seed=0, longest=20, shortest=1):
    """Examples with the columns that the objective reads."""
    draw = np.random.default_rng(seed)
    lengths = draw.integers(shortest, longest + 1, count)

    def column(name):
        if name == "label":
            return [[int(draw.integers(2))] for _ in range(count)]
        if name == "tags":
            return [np.where(draw.random(n) < 0.3, -100, draw.integers(3, size=n)) for n in lengths]
        if name == "values":
            return [draw.normal(size=3 * n).astype(np.float32) for n in lengths]
        if objective.kind == "regress":
            return [draw.normal(size=2).astype(np.float32) for _ in range(count)]
        own = lengths if name == "tokens" else draw.integers(1, longest // 2 + 1, count)
        return [draw.integers(8, TEXT, n) for n in own]

    return Examples.of({name: column(name) for name in objective.columns}, bytes=100)


def feed_for(kind, way, *, length=24, batch=4, seed=7, examples=None, changes=None, **rest):
    """A feed of everything above."""
    objective = make(kind)
    examples = examples or examples_for(objective)
    spec = spec_for(objective, **(changes or {}))
    return BatchLoader(examples, objective, spec=spec, length=length, batch=batch, seed=seed, rows=way, **rest)


def model_for(feed):
    """A model in fp64, with nothing dropped."""
    return af.build(feed.spec, dtype=torch.float64, seed=1).eval()


def tensors(batch):
    """A batch as arguments, real numbers in fp64."""
    found = {name: torch.from_numpy(array) for name, array in batch.inputs.items()}
    return {name: t.double() if t.is_floating_point() else t for name, t in found.items()}
