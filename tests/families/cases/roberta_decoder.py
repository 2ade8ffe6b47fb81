"""RoBERTa as a decoder: a config beyond its own small one; the others are tried with the encoder."""

from tests.families.cases import roberta

VARIANTS = {"untied": roberta.VARIANTS["untied"]}
