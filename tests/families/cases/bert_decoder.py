"""BERT as a decoder: a config beyond its own small one; the others are tried with the encoder."""

from tests.families.cases import bert

REFUSED = {"bert_decoder": [({"is_decoder": False}, "is_decoder: without it this class lets tokens see later")]}

VARIANTS = {"untied": bert.VARIANTS["untied"]}
