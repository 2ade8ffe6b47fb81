"""The options with which commands choose tokens, under the names that `generate` has."""

from __future__ import annotations

import argparse
from typing import Any

from anyformer.cli.parser import flag, number, option, whole

TEMPERATURE, TOP_P = 0.8, 0.95
"""Defaults."""
NAMES = (
    "seed", "top_k", "top_p", "min_p", "repetition_penalty", "typical_p", "presence_penalty", "frequency_penalty", "no_repeat_ngram_size",
    "min_new_tokens",
)  # fmt: skip


def add_sampling(parser: argparse.ArgumentParser, *, new: int) -> None:
    """How tokens are chosen, and when a text ends."""
    option(parser, "--max-new-tokens", "at most so many", whole(1), default=new)
    temperature = parser.add_mutually_exclusive_group()
    words = "below 1 the likely tokens gain, above 1 the others; 0 is --greedy (0.8)"
    option(temperature, "--temperature", words, number(least=0), metavar="T")
    flag(temperature, "--greedy", "always the likeliest token")
    option(parser, "--top-k", "draw from the K likeliest tokens", whole(1), metavar="K")
    words = "draw from the fewest tokens that together have this probability (0.95)"
    option(parser, "--top-p", words, number(above=0, most=1), metavar="P")
    words = "draw from tokens that are at least P times as likely as the likeliest"
    option(parser, "--min-p", words, number(least=0, most=1), metavar="P")
    words = "above 1: tokens that occurred become less likely"
    option(parser, "--repetition-penalty", words, number(above=0), metavar="R")
    option(parser, "--seed", "the same seed draws the same text", whole(0), metavar="S")


def add_more_sampling(parser: argparse.ArgumentParser) -> None:
    """What is seldom needed."""
    words = "draw from the tokens with this probability together whose surprise is nearest to the expected one"
    option(parser, "--typical-p", words, number(above=0, most=1), metavar="P")
    option(parser, "--presence-penalty", "subtracted from tokens that were generated", number(), metavar="X")
    option(parser, "--frequency-penalty", "the same, as many times as they were generated", number(), metavar="X")
    option(parser, "--no-repeat-ngram-size", "no run of N tokens occurs twice", whole(1))
    option(parser, "--min-new-tokens", "do not end before", whole(1))
    option(parser, "--stop", "end before this text; may be given several times", "TEXT", action="append")


def sampling(given: argparse.Namespace, *, draws: bool = True) -> dict[str, Any]:
    """The options that were given, by the names of `generate`. Without a draw they are those of a search."""
    temperature = TEMPERATURE if given.temperature is None else given.temperature
    drawn = draws and temperature > 0 and not given.greedy
    # Without a temperature nothing is drawn, and `generate` says which options then have no effect.
    named = {"temperature": temperature if drawn else None} | {name: getattr(given, name, None) for name in NAMES}
    if drawn and given.top_p is None:
        named["top_p"] = TOP_P
    return {name: value for name, value in named.items() if value is not None}
