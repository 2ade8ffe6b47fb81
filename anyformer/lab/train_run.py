"""A run with all that goes with it: samples, the architecture in words and the device's peak in its report, loss.png."""

from __future__ import annotations

from collections.abc import Sequence

from anyformer.explain.hardware import peak_of
from anyformer.explain.summary import summary
from anyformer.lab.samples import sample_text
from anyformer.train.components import Components
from anyformer.train.config import Config
from anyformer.train.loggers import Logger
from anyformer.train.report import About
from anyformer.train.report.about import about_of
from anyformer.train.run_state import machine
from anyformer.train.trainer import Trainer


def training(config: Config, loggers: Sequence[Logger] = ()) -> Trainer:
    """The run of a config, to be used in a `with`. `loggers` are told beside those that the config names."""
    return Trainer(config, speak=sample_text, about=about, loggers=loggers)


def about(setup: Components) -> About:
    """What a run's report says about it."""
    return about_of(setup, summary=summary(setup.spec), peak=peak(setup), picture=True)


def peak(setup: Components) -> float | None:
    """FLOP/s that all devices of a run could do at best in the dtype of its products; None where that is unknown."""
    compute = setup.config.compute
    dtype = "bfloat16" if compute.autocast == "bfloat16" else compute.dtype
    found = peak_of(str(machine(setup.device)["device"]), dtype)
    return None if found is None else found * setup.team.world
