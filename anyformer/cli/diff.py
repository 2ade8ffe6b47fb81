"""`anyformer diff`."""

from __future__ import annotations

import argparse

from anyformer.cli.parser import Command
from anyformer.errors import CapabilityError


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""


def run(given: argparse.Namespace) -> int:
    """Do it."""
    raise CapabilityError("being built")


COMMAND = Command(name="diff", summary="what differs between two models", example="anyformer diff", arguments=arguments, run=run)
