"""Megatron-BERT as a decoder: a config beyond its own small one; the others are tried with the encoder."""

from tests.families.cases import megatron_bert

VARIANTS = {"untied": megatron_bert.VARIANTS["untied"]}
