"""ERNIE as a decoder: a config beyond its own small one; the others are tried with the encoder."""

from tests.families.cases import ernie

VARIANTS = {"untied": ernie.VARIANTS["untied"]}

SEEDS = {"ernie_decoder": 1}
