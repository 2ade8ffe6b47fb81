"""The options with which commands choose tokens, under the names that `generate` has."""

from __future__ import annotations

import argparse
from typing import Any

from anyformer.cli.parser import number, whole


def add_sampling(parser: argparse.ArgumentParser, *, new: int) -> None:
    """How tokens are chosen, and when a text ends."""
    parser.add_argument("--max-new-tokens", type=whole(1), default=new, metavar="N", help=f"at most so many ({new})")
    heat = parser.add_mutually_exclusive_group()
    heat.add_argument(
        "--temperature", type=number(least=0), metavar="T",
        help="below 1 the likely tokens gain, above 1 the others; 0 is --greedy (0.8)",
    )  # fmt: skip
    heat.add_argument("--greedy", action="store_true", help="always the likeliest token")
    parser.add_argument("--top-k", type=whole(1), metavar="K", help="draw from the K likeliest tokens")
    parser.add_argument(
        "--top-p", type=number(above=0, most=1), metavar="P",
        help="draw from the fewest tokens that together have this probability (0.95)",
    )  # fmt: skip
    parser.add_argument(
        "--min-p", type=number(least=0, most=1), metavar="P",
        help="draw from tokens that are at least P times as likely as the likeliest",
    )  # fmt: skip
    parser.add_argument(
        "--repetition-penalty", type=number(above=0), metavar="R",
        help="above 1: tokens that occurred become less likely",
    )  # fmt: skip
    parser.add_argument("--seed", type=whole(0), metavar="S", help="the same seed draws the same text")


def add_more_sampling(parser: argparse.ArgumentParser) -> None:
    """What is seldom asked for."""
    parser.add_argument(
        "--typical-p", type=number(above=0, most=1), metavar="P",
        help="draw from the tokens with this probability together whose surprise is nearest to the expected one",
    )  # fmt: skip
    parser.add_argument(
        "--presence-penalty", type=number(), metavar="X", help="subtracted from tokens that were generated"
    )
    parser.add_argument(
        "--frequency-penalty", type=number(), metavar="X", help="the same, as many times as they were generated"
    )
    parser.add_argument("--no-repeat-ngram-size", type=whole(1), metavar="N", help="no run of N tokens occurs twice")
    parser.add_argument("--min-new-tokens", type=whole(1), metavar="N", help="do not end before")
    parser.add_argument(
        "--stop", action="append", metavar="TEXT", help="end before this text; may be given several times"
    )


HEAT, TOP_P = 0.8, 0.95
"""What is taken unless told otherwise."""
NAMES = (
    "seed", "top_k", "top_p", "min_p", "repetition_penalty", "typical_p", "presence_penalty", "frequency_penalty", "no_repeat_ngram_size",
    "min_new_tokens",
)  # fmt: skip


def sampling(given: argparse.Namespace, *, draws: bool = True) -> dict[str, Any]:
    """The options that were asked for, by the names of `generate`. Without a draw they are those of a search."""
    heat = HEAT if given.temperature is None else given.temperature
    drawn = draws and heat > 0 and not given.greedy
    # Without a temperature nothing is drawn, and `generate` says which options then have no effect.
    named = {"temperature": heat if drawn else None} | {name: getattr(given, name, None) for name in NAMES}
    if drawn and given.top_p is None:
        named["top_p"] = TOP_P
    return {name: value for name, value in named.items() if value is not None}
