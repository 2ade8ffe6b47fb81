"""ELECTRA as a decoder: a config beyond its own small one; the others are tried with the encoder."""

from tests.families.cases import electra

VARIANTS = {"untied": electra.VARIANTS["untied"]}

SEEDS = {"electra_decoder": 1}
