"""`anyformer eval`."""

from __future__ import annotations

import argparse

from anyformer.cli.parser import Command
from anyformer.errors import CapabilityError


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""


def run(given: argparse.Namespace) -> int:
    """Do it."""
    raise CapabilityError("being built")


COMMAND = Command(name="eval", summary="perplexity and bits per byte of a model on a text", example="anyformer eval", arguments=arguments, run=run)
