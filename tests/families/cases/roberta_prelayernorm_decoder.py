"""RoBERTa with its norms first as a decoder: a config beyond its own small one; the others are tried with the encoder."""

from tests.families.cases import roberta_prelayernorm

VARIANTS = {"untied": roberta_prelayernorm.VARIANTS["untied"]}
