"""The state of a run: read back as it was, and every change under a resume named."""

import dataclasses
import json
import re
import warnings
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

import anyformer as af
from anyformer.errors import CheckpointError
from anyformer.specs.codec import flatten
from anyformer.train.run_state import RunState, check_resume, differences, machine, versions

SPEC = af.ModelSpec.from_data(
    {"topology": "decoder", "vocab": 16, "width": 8, "depth": 2, "context": 8, "attention": {"heads": 2}}
)
STATE = RunState(
    step=100, tokens=6400, seconds=1.5, seed=3, data={"train": "aa", "valid": "bb"}, tokenizer="cc",
    spec=dict(flatten(SPEC.to_data())), config={"optim.rate": 0.01, "objective.kind": "causal", "stages": [{"steps": 4}]},
    versions=versions(), machine=machine(torch.device("cpu")), guard={"skipped": 0}, digest="dd",
)  # fmt: skip


def test_state_is_read_back_as_it_was():
    again = RunState.from_data(json.loads(json.dumps(asdict(STATE))), "here")
    assert again == STATE
    assert differences(STATE, again) == differences(STATE, STATE)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_resume(STATE, again, Path("runs/a"))


def test_state_that_is_none_is_refused_with_all_that_is_wrong():
    data = asdict(STATE) | {"step": "3", "more": 1, "seed": -1, "tokens": True}
    del data["data"]
    message = "state.json is no state of a run:\n  data: is missing\n  more: is unknown\n  seed: -1 is below 0"
    with pytest.raises(CheckpointError, match=re.escape(message)) as failed:
        RunState.from_data(data, "state.json")
    assert "step: '3' is of the wrong type" in str(failed.value)
    assert "tokens: True is of the wrong type" in str(failed.value)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"data": {"train": "ab", "valid": "bb"}}, "data.train: was 'aa', is 'ab'"),
        ({"data": {"train": "aa"}}, "data.valid: was 'bb', is not set"),
        ({"tokenizer": "cd"}, "tokenizer: was 'cc', is 'cd'"),
        ({"seed": 4}, "run.seed: was 3, is 4"),
        ({"spec": dict(flatten(SPEC.vary({"norm.eps": 1e-4}).to_data()))}, "spec.norm.eps: was 1e-06, is 0.0001"),
        ({"spec": dict(flatten(SPEC.vary({"depth": 3}).to_data()))}, "spec.depth: was 2, is 3"),
        ({"config": STATE.config | {"optim.rate": 0.02}}, "optim.rate: was 0.01, is 0.02"),
        ({"config": STATE.config | {"new": 1}}, "new: was not set, is 1"),
        ({"config": STATE.config | {"stages": [{"steps": 5}]}}, "stages: was [{'steps': 4}], is [{'steps': 5}]"),
    ],
)
def test_changed_run_is_refused_with_the_key_that_differs(change, named):
    """R10."""
    with pytest.raises(CheckpointError) as failed:
        check_resume(STATE, dataclasses.replace(STATE, **change), Path("runs/a"))
    assert named in str(failed.value)
    assert "runs/a was begun otherwise" in str(failed.value)
    assert "Set these back to continue it" in str(failed.value)


def test_every_change_is_named_at_once():
    new = dataclasses.replace(STATE, seed=4, tokenizer="x", config={**STATE.config, "optim.rate": 1.0})
    assert len(differences(STATE, new)[0]) == 3


@pytest.mark.parametrize(
    ("field", "key"), [("versions", "torch"), ("versions", "python"), ("machine", "threads"), ("machine", "world")]
)
def test_other_machine_is_warned_of_by_name(field, key):
    new = dataclasses.replace(STATE, **{field: getattr(STATE, field) | {key: "other"}})
    with pytest.warns(UserWarning, match=rf"may differ in the last bits:\n  {field}.{key}: was .*, is 'other'"):
        check_resume(STATE, new, Path("runs/a"))


def test_machine_tells_what_the_last_bits_depend_on():
    told = machine(torch.device("cpu"), world=2)
    assert told["threads"] == torch.get_num_threads()
    assert told["world"] == 2
    assert told["deterministic"] is True
    assert told["cpu"]
