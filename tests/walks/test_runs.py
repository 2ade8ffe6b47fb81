"""Whole runs: what is said, looked at, averaged, stopped and taken up between the steps leaves no trace in the weights."""

import pytest
import torch

import anyformer as af
from anyformer.model.model import Model
from anyformer.train.components import Components
from anyformer.train.trainer import Sampled, Trainer
from tests.train.small_data import text_config, text_data

STEPS = 12
STAGES = [
    {"steps": 5, "length": 16, "batch": 4},
    {"steps": 7, "length": 32, "batch": 4, "spec": {"attention.pattern": "window(6)"}},
]
VARIANTS = {
    "plain": {},
    "adamw": {"optim.kind": "adamw"},
    "mean": {"run.ema": 0.8},
    "threads": {"compute.threads": 2},
    "dropout": {"model.spec.block": {"dropout": 0.2}},
    "narrow": {"model.spec.ffn": {"kind": "swiglu"}, "compute.micro": 2},
    "recomputed": {"compute.recompute": "block"},
    "stages": {"stages": STAGES},
}


def speak(made: Components, step: int) -> str:
    """A sample in some way, another one after each step."""
    prompt = torch.tensor([[5, 8, 11]], device=made.device)
    model: Model = made.model
    ways = ({}, {"temperature": 0.9, "seed": 1}, {"num_beams": 2}, {"lookup": True}, {"use_cache": False})
    said = af.generate(model, prompt, max_new_tokens=4, stop=(), **ways[step % len(ways)])
    stream = af.generate(model, prompt, max_new_tokens=4, stop=(), stream=True)
    next(stream)
    stream.close()
    model.trace(prompt, residuals="all")
    return str(said.tolist())


def trained(config, *, until=None, says=True):
    with Trainer(config, sample=speak if says else None) as run:
        return list(run.events(until=until))


def files(run):
    folder = run / "checkpoints" / f"step-{STEPS:08d}"
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.suffix == ".safetensors"}


@pytest.mark.parametrize("variant", VARIANTS)
def test_run_that_speaks_and_is_taken_up_ends_as_a_silent_one_to_the_bit(tmp_path, variant):
    data = text_data(tmp_path / "data")
    changes = VARIANTS[variant]
    silent, speaking, parts = (tmp_path / name for name in ("silent", "speaking", "parts"))
    trained(text_config(data, silent, changes), says=False)
    told = trained(text_config(data, speaking, changes | {"run.sample_every": 2}))
    assert [event.step for event in told if isinstance(event, Sampled)] == [2, 4, 6, 8, 10, 12]
    for until in (3, 7, None):
        trained(text_config(data, parts, changes | {"run.sample_every": 1}), until=until)
    assert files(speaking) == files(silent)
    assert files(parts) == files(silent)
